package sim

import (
	"context"
	"errors"
	"iter"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/engine/record"
)

// revertibleTable is a table whose rows can return to what they were, as in a failover that loses writes.
type revertibleTable struct {
	record.Table // for all methods that do not use rows

	mu          sync.Mutex
	rows        map[string]record.Row
	count       int
	standbyAway bool
}

// errConnectionBroke is what a client gets if its connection breaks while its commit waits for the standby.
var errConnectionBroke = errors.New("the connection broke")

func (b *revertibleTable) loseStandby() map[string]record.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.standbyAway = true
	return maps.Clone(b.rows)
}

func (b *revertibleTable) revertTo(rows map[string]record.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = rows
}

func (b *revertibleTable) regainStandby() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.standbyAway = false
}

func (b *revertibleTable) Load(_ context.Context, name string) (record.Row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.currentRow(name), nil
}

func (b *revertibleTable) currentRow(name string) record.Row {
	row := b.rows[name]
	row.Name = name
	return row
}

// Swap writes a row. While the standby is away, the write is made and its reply is lost.
func (b *revertibleTable) Swap(_ context.Context, row record.Row) (record.Row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows[row.Name].Version != row.Version {
		return b.currentRow(row.Name), record.ErrConflict
	}
	b.count++
	b.rows[row.Name] = record.Row{Name: row.Name, Version: strconv.Itoa(b.count), Data: row.Data}
	if b.standbyAway {
		return b.currentRow(row.Name), errConnectionBroke
	}
	return b.currentRow(row.Name), nil
}

// Delete removes a row. While the standby is away, the reply is lost.
func (b *revertibleTable) Delete(_ context.Context, row record.Row) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.rows[row.Name].Version {
	case "":
	case row.Version:
		delete(b.rows, row.Name)
	default:
		return record.ErrConflict
	}
	if b.standbyAway {
		return errConnectionBroke
	}
	return nil
}

// List returns the rows as they were at one moment.
func (b *revertibleTable) List(_ context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		b.mu.Lock()
		rows := maps.Clone(b.rows)
		b.mu.Unlock()
		for name, row := range rows {
			if strings.HasPrefix(name, prefix) && !yield(row, nil) {
				return
			}
		}
	}
}
