package drivertest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
)

// TestSlowServer: a case that was too slow runs again if the server was slow for a client without locks, too, and
// fails if it is too slow each time. A store that is slow only in what the case does fails at once, however far away
// its server is. A server that cannot be watched changes nothing.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	const far = 300 * time.Millisecond
	for name, c := range map[string]struct {
		distance time.Duration // of each answer
		stalls   int64         // how many grants take too long
		whole    bool          // the whole server stands still meanwhile
		clients  int64         // how many the store allows; 0: any number
		panics   bool          // when the watch asks
		hangs    bool          // when the watch asks
		runs     int           // of the case, the last of which decides
		passes   bool
	}{
		"in time":                    {runs: 1, passes: true},
		"stands still once":          {stalls: 1, whole: true, runs: 2, passes: true},
		"stands still three times":   {stalls: 3, whole: true, runs: 4, passes: true},
		"always stands still":        {stalls: 1000, whole: true, runs: 4},
		"slow in the case":           {stalls: 1, runs: 1},
		"far away":                   {distance: far, runs: 1, passes: true},
		"far away, slow in the case": {distance: far, stalls: 1, runs: 1},
		"far away, stands still":     {distance: far, stalls: 1, whole: true, runs: 2, passes: true},
		"too few clients":            {clients: 4, runs: 1, passes: true},
		"too few clients, slow":      {clients: 4, stalls: 1, whole: true, runs: 1},
		"panics":                     {panics: true, runs: 1, passes: true},
		"panics, slow in the case":   {panics: true, stalls: 1, runs: 1},
		"hangs":                      {hangs: true, runs: 1, passes: true},
		"hangs, slow in the case":    {hangs: true, stalls: 1, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const stall = 10 * time.Second // longer than the slack of the last repetition
				var stalls, opened, standsUntil atomic.Int64
				end := make(chan struct{})
				defer close(end)
				b := &brokenStore{
					acquire: func(b *brokenStore, ctx ctx, claim driver.Claim) (driver.Grant, error) {
						g, err := b.Store.Acquire(ctx, claim)
						if claim.Wait && err == nil && stalls.Add(1) <= c.stalls {
							if c.whole {
								standsUntil.Store(time.Now().Add(stall).UnixNano())
							}
							select {
							case <-time.After(stall):
							case <-ctx.Done():
							}
						}
						return g, err
					},
					inspect: func(b *brokenStore, ctx ctx, name string) (driver.Lock, error) {
						if strings.Contains(name, "/pulse/") {
							switch {
							case c.panics:
								panic("in the store")
							case c.hangs:
								<-end
							}
						}
						select {
						case <-time.After(max(c.distance, time.Until(time.Unix(0, standsUntil.Load())))):
						case <-ctx.Done():
						}
						return b.Store.Inspect(ctx, name)
					},
				}
				h := b.harness()
				open := h.Open
				h.Open = func(ctx context.Context) (driver.Store, error) {
					if opened.Add(1) > c.clients && c.clients > 0 {
						return nil, errors.New("too many clients")
					}
					return open(ctx)
				}
				runs := 1
				results := drivertest.Run(t.Context(), h, &drivertest.Options{
					Match: func(c drivertest.Case) bool { return c.Name == "release-grants-next" },
					Log: func(line string) {
						if strings.Contains(line, "runs again") {
							runs++
						}
					},
				})
				if len(results) != 1 || runs != c.runs || (results[0].Err == nil) != c.passes {
					t.Errorf("%d runs, want %d that pass: %v; got %+v", runs, c.runs, c.passes, results)
				}
			})
		})
	}
}
