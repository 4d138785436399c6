-- name: which_file
-- The file that a connection leads to, and whether it syncs its commits.
select file, (select synchronous from pragma_synchronous) from pragma_database_list where name = 'main';
