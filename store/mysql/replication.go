package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// replication is a server's part in replication.
type replication struct {
	sources  int // from how many servers it replicates now, or unseen
	replicas int // how many servers replicate from it now, or unseen
}

// unseen stands for a number that the user may not see.
const unseen = -1

// readReplication reads what this user may see. MariaDB shows the numbers to every user. MySQL shows the sources with
// REPLICATION CLIENT, and the replicas with PROCESS.
func (t *table) readReplication(ctx context.Context) (r replication, err error) {
	err = t.callServer(ctx, func(ctx context.Context) error {
		r = replication{unseen, unseen}
		counts, err := t.queryTexts(ctx, `show global status where variable_name in ('Slaves_running', 'Slaves_connected')`)
		if err != nil {
			return err
		}
		for _, row := range counts {
			n, _ := strconv.Atoi(row["Value"])
			if row["Variable_name"] == "Slaves_running" {
				r.sources = n
			} else {
				r.replicas = n
			}
		}
		sources, err := t.queryTexts(ctx, `show replica status`)
		if isRefusedWith(err, syntaxError) {
			sources, err = t.queryTexts(ctx, `show slave status`)
		}
		if err == nil {
			r.sources = max(r.sources, countRunning(sources))
		} else if !isForbidden(err) {
			return err
		}
		if r.replicas != unseen {
			return nil
		}
		if _, err := t.queryTexts(ctx, `select 1 from information_schema.innodb_cmp limit 1`); err != nil { // needs PROCESS, too
			if isForbidden(err) {
				return nil
			}
			return err
		}
		return t.db.QueryRowContext(ctx, `select count(*) from information_schema.processlist
			where command like 'Binlog Dump%'`).Scan(&r.replicas)
	})
	return r, err
}

// countRunning counts the rows of SHOW REPLICA STATUS in which a thread runs. The channels of a group are not counted:
// its members take writes together, or are read-only.
func countRunning(rows []map[string]string) (n int) {
	for _, row := range rows {
		runs := false
		for column, value := range row {
			isThread := strings.HasSuffix(column, "_IO_Running") || strings.HasSuffix(column, "_SQL_Running")
			runs = runs || isThread && value != "No"
		}
		if runs && !strings.HasPrefix(row["Channel_Name"], "group_replication_") {
			n++
		}
	}
	return n
}

// queryTexts returns the rows of a statement, with all values as texts.
func (t *table) queryTexts(ctx context.Context, text string, args ...any) (all []map[string]string, err error) {
	rows, err := t.db.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		to := make([]any, len(columns))
		for i := range values {
			to[i] = &values[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		row := map[string]string{}
		for i, c := range columns {
			row[c] = values[i].String
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

func isRefusedWith(err error, number uint16) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && refused.Number == number
}

// isForbidden reports whether the user lacks a permission.
func isForbidden(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && permissionErrors[refused.Number]
}

// refuseReplica refuses a server that takes no writes, and a replica that does: its source grants the same locks, and
// overwrites what is written here.
func (t *table) refuseReplica(ctx context.Context, s *serverState) error {
	switch {
	case s.readOnly:
		return driverutil.RefuseStore(errors.New("this MySQL server is read-only: it is a replica, or read_only is on; " +
			"open the primary"))
	case t.opts.Replica:
		return nil
	}
	part, err := t.readReplication(ctx)
	if err == nil && part.sources > 0 {
		err = driverutil.RefuseStore(errors.New("this MySQL server is a replica: open the primary, and SET GLOBAL " +
			"read_only = 1 here; if it replicates in a circle, and all clients use this server alone, add replica=true to " +
			"the URL (Options.Replica)"))
	}
	return err
}

// findings say what a server's part in replication means for its locks.
func (r replication) findings() (all []driver.Finding) {
	switch {
	case r.sources > 0:
		all = append(all, findingReplica.With("", fmt.Sprintf("this server takes writes, and replicates from %d others",
			r.sources)))
	case r.sources == unseen:
		all = append(all, findingUnseen.With("", "this user may not see whether the server is a replica: it lacks "+
			"REPLICATION CLIENT"))
	}
	switch {
	case r.replicas > 0:
		all = append(all, findingReplicas.With("", fmt.Sprintf("%d replicas follow this server", r.replicas)))
	case r.replicas == unseen:
		all = append(all, findingUnseen.With("", "this user may not see which replicas follow the server: it lacks PROCESS"))
	}
	return all
}
