-- Version 1 of the tables that Holdfast keeps its locks in. LOCKS and FENCE stand for their names.

-- A row is a lock: its record as Holdfast's record engine writes it, in JSON. Renewals rewrite rows that stay in place:
-- the free half of each page lets them do so without touching the index.
create table LOCKS (
	name text collate "C" primary key,
	version uuid not null, -- another after every write
	data bytea not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.5);
comment on table LOCKS is 'Holdfast locks, version 1';

-- The largest token that each resource has seen: see postgres.Fence.
create table FENCE (
	resource text collate "C" primary key,
	token bigint not null
);
comment on table FENCE is 'Holdfast fence, version 1';
