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
	opened     = storetest.Open
	apart      = storetest.Apart
	mutex      = storetest.Mutex
	acquire    = storetest.Acquire
	renew      = storetest.Renew
	release    = storetest.Release
	loss       = storetest.Loss
	eventually = storetest.Eventually
	conform    = storetest.Conform
)

func exec(t testing.TB, s *pgtest.Server, text string) {
	t.Helper()
	if err := s.Exec(text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// patient is how long anything may take that has no time of its own.
const patient = time.Minute

// renewed asks for a renewal as a client does, who asks again where the outcome is not known, and gives the error only if the
// claim is lost, or stays unknown.
func renewed(t testing.TB, s driver.Store, g driver.Grant) (err error) {
	t.Helper()
	for end := time.Now().Add(patient); ; {
		if err = renew(t, s, g).Err; err == nil || loss(err) != "" || time.Now().After(end) {
			return err
		}
	}
}

// is fails unless the error is one of the driver's and says these words.
func is(t testing.TB, err, target error, words ...string) {
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

func mustPlace(t testing.TB, o *Options) *place {
	p, err := o.place()
	if err != nil {
		t.Fatal(err)
	}
	return p
}
