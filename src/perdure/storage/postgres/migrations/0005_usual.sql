-- What most jobs have, for a COPY that leaves it out: it costs less to fill in than to be told with every row.
ALTER TABLE {schema}.jobs ALTER lease SET DEFAULT 60000000, ALTER timeout SET DEFAULT 300000000,
    ALTER max_attempts SET DEFAULT 3, ALTER priority SET DEFAULT 0, ALTER queue SET DEFAULT 'default';
ALTER TABLE {schema}.waiting ALTER urgency SET DEFAULT -1, ALTER state SET DEFAULT 'ready',
    ALTER queue SET DEFAULT 'default', ALTER route SET DEFAULT '';
