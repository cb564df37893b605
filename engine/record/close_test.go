package record_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// slowClosingTable is a table whose Close takes a second.
type slowClosingTable struct {
	record.Table
	closes, closed atomic.Int64
}

func (*slowClosingTable) Watcher() record.Watcher { return nil }

func (c *slowClosingTable) Close() error {
	c.closes.Add(1)
	time.Sleep(time.Second)
	c.closed.Add(1)
	return c.Table.Close()
}

// TestConcurrentClose: of several concurrent calls of Close, one closes the table, and the others wait for it.
func TestConcurrentClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowClosingTable{Table: fakeMemory().Table()}
		s := record.New(table)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := s.Close(); err != nil || table.closed.Load() != 1 {
					t.Errorf("%v, and it was closed %d times", err, table.closed.Load())
				}
			})
		}
		all.Wait()
		if n := table.closes.Load(); n != 1 {
			t.Errorf("closed %d times", n)
		}
	})
}
