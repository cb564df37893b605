package record_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/engine/record"
)

// closing is a table that takes its time to close.
type closing struct {
	record.Table
	closes, closed atomic.Int64
}

func (c *closing) Close() error {
	c.closes.Add(1)
	time.Sleep(time.Second)
	c.closed.Add(1)
	return c.Table.Close()
}

// TestClosedAtOnce promises that of several Close at one time one closes the table, and the others wait for that.
func TestClosedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &closing{Table: fakeMemory().Table()}
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
