package mysql

import (
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/shedlock"
)

// The statements. WRITABLE is takesWrites, which each write has. MINE is the condition that the claim of the parameter,
// the first 35 characters of a signature, holds the lock, and takesWrites. DONE writes a positive result. Times are
// rounded down to milliseconds, as ShedLock's clients do, so a lock_until is a millisecond later than it would have to
// be.
//
// A write returns its result in the place of the id that the server has given to a new row, by last_insert_id(...). The
// server evaluates it for a row that the WHERE clause has chosen, if it depends on a column, and returns 0 if there is
// none. The number of changed rows would not do: a renewal in the same millisecond changes nothing.
//
// A time is that at which the statement began, maybe long before it got the row. So a take and a renewal never lower
// the lock_until of their own claim: a newer one may have raised it, and the holder trusts that. A detach may,
// because its claim ends when it says.
//
// Each update sets both times. In tables made without explicit_defaults_for_timestamp, the server sets the first
// TIMESTAMP of a row to its own time if an update does not.
//
// A take writes a note of how the previous holder ended into its own signature. The release of that holder may have
// lost its reply, and ask what became of it. A take raises locked_at even if the server's clock was set back, because
// it is the token. (A take of ShedLock's own clients sets it to the present time, whatever it was.)
const (
	shedMicrosOfNow = `timestampdiff(microsecond, '1970-01-01', NOW)`
	shedEnd         = `timestampadd(microsecond, ? * 1000 + 1000, NOW)` // after so many milliseconds
	// It takes the row of its own name only: to the column, other names may be equal to it.
	//
	// Parameters: prefix, head, prefix, rest, milliseconds, name, name, prefix.
	shedTake = `update LOCKS set locked_at = timestampadd(microsecond, last_insert_id(
			if(left(locked_by, 35) = ? and lock_until > NOW, timestampdiff(microsecond, '1970-01-01', locked_at),
			greatest(` + shedMicrosOfNow + `, timestampdiff(microsecond, '1970-01-01', locked_at) + 1000))), '1970-01-01'),
		locked_by = concat(?, case when left(locked_by, 9) <> 'holdfast/' then ''
			when left(locked_by, 35) <> ? then concat('/', substr(locked_by, 37, 1), substr(locked_by, 10, 26))
			when char_length(NOTE) = 27 then concat('/', NOTE) else '' end, ?),
		lock_until = greatest(lock_until, ` + shedEnd + `)
		where name = ? and BYTES = ? and (lock_until <= NOW or left(locked_by, 35) = ? and substr(locked_by, 37, 1) <> 'b')
		and WRITABLE`
	// Parameters: name, milliseconds, signature.
	shedInsert = `insert into LOCKS (name, lock_until, locked_at, locked_by) select ?, ` + shedEnd + `,
		timestampadd(microsecond, last_insert_id(` + shedMicrosOfNow + `), '1970-01-01'), ? from dual where WRITABLE`
	// Parameters: milliseconds, d or nothing, the same, name, prefix, locked_at, d or nothing. The result is 1, or 2 if
	// the release was requested. A renewal that arrives after its claim was detached does nothing.
	shedRenew = `update LOCKS set lock_until = greatest(` + shedEnd + `,
			if(? = 'd' and substr(locked_by, 38, 1) <> 'd', NOW, lock_until)),
		locked_by = if(last_insert_id(1 + (substr(locked_by, 39, 1) = 'a')) = 0, '',
			if(? = 'd', insert(locked_by, 38, 1, 'd'), locked_by)), locked_at = locked_at
		where MINE and locked_at = ? and substr(locked_by, 37, 1) <> 'b' and (substr(locked_by, 38, 1) <> 'd' or ? = 'd')`
	// Parameters: name, prefix. lock_until is NOW, and not before locked_at if the clock was set back.
	shedRelease = `update LOCKS set locked_by = if(DONE = 0, '', insert(locked_by, 37, 1, 'r')),
		lock_until = NOW, locked_at = locked_at where MINE`
	// Parameters: position, flag, name, prefix.
	shedFlag = `update LOCKS set locked_by = if(DONE = 0, '', insert(locked_by, ?, 1, ?)),
		lock_until = lock_until, locked_at = locked_at where MINE`
	// Parameters: name, prefix, locked_at of a foreign holder.
	shedForce = `update LOCKS set locked_by = if(DONE = 0, '',
			if(left(locked_by, 9) = 'holdfast/', insert(locked_by, 37, 1, 'f'), locked_by)),
		lock_until = NOW, locked_at = locked_at where name = ? and lock_until > NOW
		and (left(locked_by, 35) = ? or left(locked_by, 9) <> 'holdfast/' and locked_at = nullif(?, '')) and WRITABLE`

	shedColumns = `select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), WRITABLE, l.name,
		l.locked_by, timestampdiff(microsecond, '1970-01-01', l.locked_at),
		timestampdiff(microsecond, '1970-01-01', l.lock_until)`
	shedRead = shedColumns + ` from (select 1) one left join LOCKS l on l.name = ?`
	// Parameters: prefix of the names, the name after which the page begins.
	shedList = shedColumns + ` from (select 1) one left join (select name, locked_by, locked_at, lock_until from LOCKS
		where lock_until > NOW and BYTES >= ? and BYTES > ? order by BYTES limit 200) l on true order by BYTES`
	// Rows whose times may be wrong: see shedlock.Row.
	shedSuspect = shedColumns + ` from LOCKS l where l.locked_at > NOW or l.lock_until < l.locked_at
		order by l.locked_at desc limit 100`
)

// expandShedlock writes out the abbreviations in a statement.
func expandShedlock(text string) string {
	return strings.NewReplacer(
		"MINE", "name = ? and left(locked_by, 35) = ? and lock_until > utc_timestamp(3) and "+takesWrites,
		"WRITABLE", takesWrites,
		"DONE", "last_insert_id(1 + (locked_by = ''))",
		"NOTE", "substring_index(substring_index(locked_by, ' ', 1), '/', -1)",
		"BYTES", "cast(convert(name using utf8mb4) as binary)",
		"NOW", "utc_timestamp(3)").Replace(text)
}

// shedlockTrials are the statements by which the permissions are checked. Rows of this layout are never deleted.
var shedlockTrials = []string{
	`insert into LOCKS (name, lock_until, locked_at, locked_by) select name, lock_until, locked_at, locked_by from LOCKS
		where 1 = 0`,
	`update LOCKS set locked_by = locked_by, lock_until = lock_until, locked_at = locked_at where name = ''`,
}

// requiredPrivileges are the permissions on the locks' table that its user needs.
func (t *table) requiredPrivileges() string {
	if t.opts.Layout == LayoutShedLock {
		return "SELECT, INSERT, UPDATE"
	}
	return "SELECT, INSERT, UPDATE, DELETE"
}

// strictMode is the sql_mode of our own connections in this layout. Without it the server would cut a name or a
// signature that does not fit its column.
const strictMode = "STRICT_ALL_TABLES"

// readShedlockColumns reads what ShedLock's table is like.
func (t *table) readShedlockColumns(ctx context.Context, s *serverState) error {
	s.sizes = map[string]int{}
	return t.callServer(ctx, func(ctx context.Context) error {
		rows, err := t.db.QueryContext(ctx, `select lower(c.column_name), c.data_type, coalesce(c.character_maximum_length, 0),
			coalesce(c.datetime_precision, 0), (select count(*) from information_schema.statistics k
				where k.table_schema = c.table_schema and k.table_name = c.table_name and k.column_name = c.column_name
				and k.non_unique = 0 and k.sub_part is null and (select count(*) from information_schema.statistics o
					where o.table_schema = k.table_schema and o.table_name = k.table_name and o.index_name = k.index_name) = 1),
			c.extra
			from information_schema.columns c where c.table_schema = database() and c.table_name = ?`, t.opts.Table)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name, kind, extra string
			var size int64
			var digits, keys int
			if err := rows.Scan(&name, &kind, &size, &digits, &keys, &extra); err != nil {
				return err
			}
			s.generatesID = s.generatesID || strings.Contains(strings.ToLower(extra), "auto_increment")
			kind = strings.ToLower(kind)
			isText := kind == "varchar" || kind == "char" || strings.HasSuffix(kind, "text")
			isTime := (kind == "datetime" || kind == "timestamp") && digits >= 3
			switch {
			case name == "name" && isText, name == "locked_by" && isText:
				s.columns++
				s.sizes[name] = int(min(size, 1<<20))
				s.nameIsKey = s.nameIsKey || name == "name" && keys > 0
			case name == "lock_until" && isTime, name == "locked_at" && isTime:
				s.columns++
				s.zoneMatters = s.zoneMatters || kind == "timestamp"
			}
		}
		return rows.Err()
	})
}

// checkShedlockColumns reports why locks cannot be kept in ShedLock's table.
func (t *table) checkShedlockColumns(s *serverState) error {
	switch {
	case s.columns < 4:
		return fmt.Errorf("%w: the table %s is not like ShedLock's: it needs name and locked_by as VARCHAR, lock_until and "+
			"locked_at as TIMESTAMP(3) or DATETIME(3)", driver.ErrInvalid, t.quotedName)
	case !s.nameIsKey:
		return fmt.Errorf("%w: the table %s can have two rows of one name: ALTER TABLE %s ADD PRIMARY KEY (name)",
			driver.ErrInvalid, t.quotedName, t.quotedName)
	case s.generatesID:
		return fmt.Errorf("%w: the table %s has an AUTO_INCREMENT column, and the server would return its values in the place "+
			"of tokens: remove it, and ALTER TABLE %s ADD PRIMARY KEY (name)", driver.ErrUnsupported, t.quotedName, t.quotedName)
	case shedlock.SignatureRoom(s.sizes["locked_by"]) < 0:
		return fmt.Errorf("%w: locked_by of the table %s is too short for the signature of a holder: ALTER TABLE %s MODIFY "+
			"locked_by VARCHAR(255) NOT NULL", driver.ErrUnsupported, t.quotedName, t.quotedName)
	case s.settings["character_set_client"] != "utf8mb4" || s.settings["character_set_results"] != "utf8mb4":
		return fmt.Errorf("%w: the connection uses another character set than UTF-8, so names would be other ones to "+
			"ShedLock's clients: add charset=utf8mb4 to the connection's settings", driver.ErrUnsupported)
	case !strings.Contains(s.settings["sql_mode"], "STRICT_"):
		return fmt.Errorf("%w: the server cuts texts that do not fit: add sql_mode='%s' to the connection's settings",
			driver.ErrUnsupported, strictMode)
	}
	return nil
}
