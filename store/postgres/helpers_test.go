package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// Short names for what the tests say often.
var (
	mustOpen     = storetest.Open
	shiftedClock = storetest.Apart
	mutexClaim   = storetest.Mutex
	acquire      = storetest.Acquire
	renew        = storetest.Renew
	release      = storetest.Release
	lossOf       = storetest.Loss
	eventually   = storetest.Eventually
	conform      = storetest.Conform
)

func execSQL(t testing.TB, s *pgtest.Server, text string) {
	t.Helper()
	if err := s.Exec(text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// testTimeout is how long anything may take that has no time of its own.
const testTimeout = time.Minute

// renewUntilKnown asks for a renewal as a client does, who asks again where the outcome is not known, and gives the error only if the
// claim is lost, or stays unknown.
func renewUntilKnown(t testing.TB, s driver.Store, g driver.Grant) (err error) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; {
		if err = renew(t, s, g).Err; err == nil || lossOf(err) != "" || time.Now().After(end) {
			return err
		}
	}
}

// checkError fails unless the error is one of the driver's and says these words.
func checkError(t testing.TB, err, target error, words ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func mustLocate(t testing.TB, o *Options) *location {
	p, err := o.resolveLocation()
	if err != nil {
		t.Fatal(err)
	}
	return p
}
