package tabletest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestSlowMachine: a case runs again if a request had no answer and the machine was slow meanwhile. Any other failure
// counts at once, and so does one that remains.
func TestSlowMachine(t *testing.T) {
	away, stale := markUnanswered(errors.New("timeout")), errors.New("a stale read")
	h := Harness{Open: func(context.Context) (record.Table, error) { return memory.New(nil).Table(), nil }}
	for name, c := range map[string]struct {
		task time.Duration // of what the machine usually does within a millisecond
		errs []error
		want error
		runs int
	}{
		"slow":            {time.Second, []error{away, away, nil}, nil, 3},
		"quick":           {time.Millisecond, []error{away, nil}, away, 1},
		"never answers":   {time.Second, []error{away, away, away, away, nil}, away, 4},
		"breaks promises": {time.Second, []error{stale, nil}, stale, 1},
		"refuses":         {time.Second, []error{markUnanswered(driver.ErrDenied), nil}, driver.ErrDenied, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var machine pace.Pace
				defer machine.WatchTask(time.Millisecond, func(<-chan struct{}) { time.Sleep(c.task) })()
				runs := 0
				tried := Case{Name: "tried", run: func(*caseEnv) error {
					time.Sleep(10 * time.Second)
					runs++
					return c.errs[runs-1]
				}}
				r := runCase(t.Context(), h, tried, time.Minute, &machine)
				if !errors.Is(r.Err, c.want) || runs != c.runs {
					t.Errorf("%v after %d runs, want %v after %d", r.Err, runs, c.want, c.runs)
				}
			})
		})
	}
}
