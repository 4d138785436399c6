-- The second version: a column, a table, and rows that are moved to it.
ALTER TABLE perdure_letters ADD COLUMN sender TEXT;
CREATE TABLE perdure_senders (name TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TRIGGER perdure_letters_sent AFTER INSERT ON perdure_letters BEGIN
    INSERT OR IGNORE INTO perdure_senders SELECT new.sender WHERE new.sender IS NOT NULL;
END;
UPDATE perdure_letters SET sender = 'unknown';
INSERT INTO perdure_senders SELECT DISTINCT sender FROM perdure_letters;
