-- The first version of a schema, for tests of the machinery.
CREATE TABLE perdure_letters (number INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL) STRICT;
CREATE INDEX perdure_letters_text ON perdure_letters (text);
