-- Rows that could not be read, as they were found: a JSON object each. `place` is the table; `id` is that of the job, or another
-- name of the row; `fields` is a JSON array.
CREATE TABLE {schema}.unreadable (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    place text COLLATE "C" NOT NULL,
    fields text COLLATE "C" NOT NULL,
    raw text COLLATE "C" NOT NULL
);
-- a hash, because the name of a row that is no job may be of any length
CREATE INDEX unreadable_id ON {schema}.unreadable USING hash (id);

-- The strings in a JSON array; none, if the text is something else. A cast would fail for all rows because of one.
CREATE FUNCTION {schema}.strings_in(given text) RETURNS SETOF text LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT json_array_elements_text(given::json);
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
    RETURN;
END
$$;
