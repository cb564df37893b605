package record

import (
	"cmp"
	"context"
	"iter"

	"github.com/holdfast-go/holdfast/driver"
)

// Wrappers. A wrapper embeds a Table and overrides what it is about, so it loses nothing. record.WithPrefix gives
// several stores one table, on MySQL. DynamoDB, Consul, Cloud Storage and S3 have a prefix of their own: it is part of
// how they encode keys, or leaves names their full length, and what they have stored must stay where it is.

// WithPrefix returns a view of a table that has the prefix before all of its names there, and shows only the records
// whose names begin with it. So several stores share a table: no prefix of one may begin with that of another.
// Closing the view closes the table.
func WithPrefix(table Table, prefix string) Table {
	if prefix == "" {
		return table
	}
	return &prefixedTable{table, prefix}
}

type prefixedTable struct {
	Table
	prefix string
}

// Info allows names that are as much shorter.
func (t *prefixedTable) Info() driver.Info {
	info := t.Table.Info()
	info.MaxName = cmp.Or(info.MaxName, driver.MaxName) - len(t.prefix)
	return info
}

func (t *prefixedTable) Load(ctx context.Context, name string) (Row, error) {
	row, err := t.Table.Load(ctx, t.prefix+name)
	row.Name = name
	return row, err
}

// Swap returns the row under the caller's name, also with ErrConflict, when it is the present row.
func (t *prefixedTable) Swap(ctx context.Context, row Row) (Row, error) {
	name := row.Name
	row.Name = t.prefix + name
	now, err := t.Table.Swap(ctx, row)
	if now.Name != "" {
		now.Name = name
	}
	return now, err
}

func (t *prefixedTable) Delete(ctx context.Context, row Row) error {
	row.Name = t.prefix + row.Name
	return t.Table.Delete(ctx, row)
}

// List continues after a name of the caller, and returns such names.
func (t *prefixedTable) List(ctx context.Context, prefix, after string) iter.Seq2[Row, error] {
	if after != "" {
		after = t.prefix + after
	}
	return func(yield func(Row, error) bool) {
		for row, err := range t.Table.List(ctx, t.prefix+prefix, after) {
			if row.Name != "" {
				row.Name = row.Name[len(t.prefix):]
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

func (t *prefixedTable) Keys(name string) []string { return t.Table.Keys(t.prefix + name) }

// Watcher is nil if the table has none, so that the engine polls.
func (t *prefixedTable) Watcher() Watcher {
	if w := t.Table.Watcher(); w != nil {
		return prefixedWatcher{w, t.prefix}
	}
	return nil
}

type prefixedWatcher struct {
	Watcher
	prefix string
}

func (w prefixedWatcher) Watch(name string) Watch { return w.Watcher.Watch(w.prefix + name) }

// OpenLedgerTable opens the ledger of the same stores: its records have the same prefix.
func (t *prefixedTable) OpenLedgerTable(ctx context.Context) (Table, error) {
	ledger, err := t.Table.OpenLedgerTable(ctx)
	if err != nil {
		return nil, err
	}
	return WithPrefix(ledger, t.prefix), nil
}
