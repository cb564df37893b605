package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

func mutex(name string, ttl time.Duration) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ttl, Owner: "test"}
}

func opened(t testing.TB, raw string) driver.Store {
	t.Helper()
	s, err := driver.Open(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// apart is a client's clock that is off by d.
func apart(d time.Duration) driver.Clock {
	return driver.Clock{
		Monotonic: func() time.Duration { return driver.SystemClock.Monotonic() + d },
		Real:      func() time.Duration { return driver.SystemClock.Real() + d },
	}
}

func acquire(t testing.TB, s driver.Store, c driver.Claim) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	g, err := s.Acquire(ctx, c)
	if err != nil {
		t.Fatalf("acquire %s: %v", c.Name, err)
	}
	return g
}

func renewal(t testing.TB, s driver.Store, g driver.Grant) driver.Renewal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var r driver.Renewal
	s.Renew(ctx, []driver.Grant{g}, func(_ int, a driver.Renewal) { r = a })
	return r
}

func lost(err error) driver.Loss {
	var l *driver.LossError
	if errors.As(err, &l) {
		return l.Loss
	}
	return ""
}

func exec(t testing.TB, s *pgtest.Server, text string) {
	t.Helper()
	if err := s.Exec(text); err != nil {
		t.Fatalf("%s: %v", text, err)
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
