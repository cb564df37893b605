package storetest

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
)

// PollSlack is the slack of stores whose waiters and watchers poll: once a second at the latest, and a second more
// for a busy machine.
const PollSlack = 2 * time.Second

// Conform runs the driver's suite against a store, and logs how many cases passed.
func Conform(t *testing.T, h drivertest.Harness, o drivertest.Options) {
	t.Helper()
	o.Log = func(line string) { t.Log(line) }
	o.Limit = cmp.Or(o.Limit, 3*time.Minute) // a case takes seconds: this ends one that hangs, also on a busy machine
	var passed, refused, skipped, failed int
	for _, r := range drivertest.Run(t.Context(), h, &o) {
		if r.Took > 5*time.Second {
			t.Logf("%s took %v", r.Case.Name, r.Took.Round(time.Millisecond))
		}
		switch {
		case r.Err != nil:
			failed++
			t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
		case r.Skipped != "":
			skipped++
			t.Logf("%s: skipped: %s", r.Case.Name, r.Skipped)
		case r.Refused:
			refused++
		default:
			passed++
		}
	}
	t.Logf("conformance: %d passed, %d refused as Info says, %d skipped, %d failed", passed, refused, skipped, failed)
}

// Connection is a store's own connection to its server, which can be cut.
type Connection interface {
	Cut()
	Heal()
	Close()
}

// Harness returns a harness for stores that each have a connection of their own, which open makes as well.
func Harness(open func(context.Context) (driver.Store, Connection, error)) drivertest.Harness {
	var ways sync.Map // by store
	of := func(s driver.Store) Connection { w, _ := ways.Load(s); return w.(Connection) }
	return drivertest.Harness{
		Open: func(ctx context.Context) (driver.Store, error) {
			s, w, err := open(ctx)
			if err == nil {
				ways.Store(s, w)
			}
			return s, err
		},
		Kill: func(s driver.Store) error { of(s).Close(); return s.Close() },
		Cut:  func(s driver.Store) error { of(s).Cut(); return nil },
		Heal: func(s driver.Store) error { of(s).Heal(); return nil },
	}
}
