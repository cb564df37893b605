// Package storetest has what the tests of several stores have in common.
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

// ShiftedClock is a client's clock that is off by d.
func ShiftedClock(d time.Duration) driver.Clock {
	return driver.Clock{
		Monotonic: func() time.Duration { return driver.SystemClock.Monotonic() + d },
		Boottime:  func() time.Duration { return driver.SystemClock.Boottime() + d },
	}
}

// Mutex is a claim on a mutex, which does not wait.
func Mutex(name string, ttl time.Duration) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ttl, Owner: "test"}
}

// Waiting is the claim of one who waits.
func Waiting(c driver.Claim) driver.Claim {
	c.Wait = true
	return c
}

// Acquire is granted a claim, within a minute.
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

// Renew renews one grant, and takes 10 s at the most.
func Renew(t testing.TB, s driver.Store, g driver.Grant) (r driver.Renewal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s.Renew(ctx, []driver.Grant{g}, func(_ int, a driver.Renewal) { r = a })
	return r
}

// Release gives a claim back.
func Release(t testing.TB, s driver.Store, c driver.Claim) {
	t.Helper()
	if err := s.Release(t.Context(), c, ""); err != nil {
		t.Fatal(err)
	}
}

// LossOf is how a claim was lost; empty if the error says nothing of it.
func LossOf(err error) driver.LossCause {
	var l *driver.LossError
	if errors.As(err, &l) {
		return l.Cause
	}
	return ""
}
