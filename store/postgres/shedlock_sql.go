package postgres

// The statements. $1 is the name, $2 its bucket, $3 the first 35 characters of a signature, which end with
// the claim's id. Its flags are characters 37 (how it ended), 38 (d: detached) and 39 (a: release requested).
//
// A take writes a note of how the previous holder ended into its own signature. The release of that holder
// may have lost its reply, and ask what became of it.
//
// A renewal that arrives after its claim was detached does nothing. No statement that waited for the row lowers the
// lock_until that another one has set: the server then computes its times again.
//
// A take raises locked_at even if the server's clock was set back, because it is the token. (A take of ShedLock's own
// clients sets it to the present time, whatever it was.)
const (
	shedTake = `insert into LOCKS as l (name, lock_until, locked_at, locked_by)
		values ($1, NOW + $5::int8 * interval '1 millisecond', NOW, $4 || $6)
		on conflict (name) do update set lock_until = NOW + $5::int8 * interval '1 millisecond',
		locked_by = $4 || case when left(l.locked_by, 9) <> 'holdfast/' then ''
			when left(l.locked_by, 35) <> $3 then '/' || substr(l.locked_by, 37, 1) || substr(l.locked_by, 10, 26)
			else coalesce(substring(l.locked_by from '^holdfast/[^/]*/[^/]*/[^/]*/[0-9]+(/.[a-z0-9]{26}) '), '') end || $6,
		locked_at = case when left(l.locked_by, 35) = $3 and l.lock_until > NOW then l.locked_at
			else greatest(NOW, l.locked_at + interval STEP) end
		where l.lock_until <= NOW or left(l.locked_by, 35) = $3 and substr(l.locked_by, 37, 1) <> 'b'`
	shedOwnRow = ` where name = $1 and left(locked_by, 35) = $3 and lock_until > NOW`
	shedRenew  = `update LOCKS as l set lock_until = NOW + $5::int8 * interval '1 millisecond',
		locked_by = case when $6 = 'd' then overlay(locked_by placing 'd' from 38 for 1) else locked_by end` +
		shedOwnRow + ` and locked_at = $4::timestamp and substr(locked_by, 37, 1) <> 'b'
		and (substr(locked_by, 38, 1) <> 'd' or $6 = 'd')`
	shedRelease = `update LOCKS as l set lock_until = NOW, locked_by = overlay(locked_by placing 'r' from 37 for 1)` +
		shedOwnRow
	shedFlag = `update LOCKS as l set locked_by = overlay(locked_by placing $4 from $5 for 1)` + shedOwnRow
	// A foreign holder is identified by its locked_at.
	shedForce = `update LOCKS as l set lock_until = NOW,
		locked_by = case when left(locked_by, 9) = 'holdfast/' then overlay(locked_by placing 'f' from 37 for 1)
			else locked_by end
		where name = $1 and lock_until > NOW and
		(left(locked_by, 35) = $3 or left(locked_by, 9) <> 'holdfast/' and locked_at = nullif($4, '')::timestamp)`

	shedColumns = `select clock_timestamp(), l.locked_at, l.lock_until, l.locked_by, l.name, pg_is_in_recovery()`
	shedRead    = shedColumns + ` from (values (0)) v left join LOCKS l on l.name = $1`
	shedList    = shedColumns + ` from (values (0)) v left join (select * from LOCKS
		where lock_until > NOW and starts_with(name, $1) and name collate "C" > $2
		order by name collate "C" limit 200) l on true order by l.name collate "C"`
	// Rows whose times may be wrong: see shedlock.Row.
	shedSuspect = shedColumns + ` from LOCKS l where l.locked_at > NOW or l.lock_until < l.locked_at
		order by l.locked_at desc limit 100`
	// A write returns the row as it was before and, if the write was done, the new locked_at.
	shedWrite = `with done as (%s returning pg_try_advisory_xact_lock(CLASS, $2::int4) as alone, l.locked_at) ` +
		shedColumns +
		`, (select locked_at from done), (select pg_notify(CHANNEL, '*/' || $1) from done where not alone)
		from (values (0)) v left join LOCKS l on l.name = $1`
)
