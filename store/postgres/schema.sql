-- Version 1 of Holdfast's tables. LOCKS and FENCE are replaced by their names.

-- One row per lock. data is the record of Holdfast's record engine, in JSON. Renewals update rows in place. Half of each
-- page is kept free, so that an update needs no change of the index.
create table LOCKS (
	name text collate "C" primary key,
	version uuid not null, -- changes with every write
	data bytea not null
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.5);
comment on table LOCKS is 'Holdfast locks, version 1';

-- One row per resource, with the largest token that it has seen: see postgres.Fence.
create table FENCE (
	resource text collate "C" primary key,
	token bigint not null
);
comment on table FENCE is 'Holdfast fence, version 1';
