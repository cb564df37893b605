// Package storetest contains what the tests of several stores share.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Open opens a store for one test.
func Open(t testing.TB, url string) driver.Store {
	t.Helper()
	s, err := driver.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// ShiftedClock returns a client's clock that is off by d.
func ShiftedClock(d time.Duration) driver.Clock {
	return driver.Clock{
		Monotonic: func() time.Duration { return driver.SystemClock.Monotonic() + d },
		Boottime:  func() time.Duration { return driver.SystemClock.Boottime() + d },
	}
}

// Mutex returns a claim on a mutex that does not wait.
func Mutex(name string, ttl time.Duration) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1,
		TTL: ttl, Owner: "test"}
}

// Waiting returns the claim as one that waits.
func Waiting(c driver.Claim) driver.Claim {
	c.Wait = true
	return c
}

// Acquire makes a claim, which must be granted within a minute.
func Acquire(t testing.TB, s driver.Store, c driver.Claim) driver.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g, err := s.Acquire(ctx, c)
	if err != nil {
		t.Fatalf("acquire %s: %v", c.Name, err)
	}
	return g
}

// Renew renews one grant, with a limit of 10 s.
func Renew(t testing.TB, s driver.Store, g driver.Grant) (r driver.Renewal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s.Renew(ctx, []driver.Grant{g}, func(_ int, a driver.Renewal) { r = a })
	return r
}

// Release releases a claim.
func Release(t testing.TB, s driver.Store, c driver.Claim) {
	t.Helper()
	if err := s.Release(t.Context(), c, ""); err != nil {
		t.Fatal(err)
	}
}

// LossOf returns the cause in a LossError. It is empty if err is none.
func LossOf(err error) driver.LossCause {
	var l *driver.LossError
	if errors.As(err, &l) {
		return l.Cause
	}
	return ""
}
