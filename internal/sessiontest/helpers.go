//go:build unix

package sessiontest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// NewClient makes a client that is closed at the end of the test.
func NewClient(t testing.TB, s driver.Store, ttl time.Duration) *holdfast.Client {
	t.Helper()
	client, err := holdfast.New(s, &holdfast.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// CheckStoreClock checks that a store tells the time. Its servers run on this machine, so they have the same clock.
func CheckStoreClock(t *testing.T, c *holdfast.Client) {
	t.Helper()
	before := time.Now()
	slot, err := c.Ledger("clock", nil).CurrentSlot(t.Context(), holdfast.Every(time.Hour))
	CheckError(t, err)
	took := time.Since(before) // the answer is that uncertain
	if slot.Now.Before(before.Add(-slot.MaxError)) || slot.Now.After(time.Now().Add(slot.MaxError)) ||
		slot.MaxError > 2*time.Second+took {
		t.Errorf("the store's clock shows %v within %v; this machine's %v", slot.Now, slot.MaxError, before)
	}
}

// Lock takes a mutex, within two minutes.
func Lock(t testing.TB, client *holdfast.Client, name string) *holdfast.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l, err := lockWithRetries(ctx, client, name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lockWithRetries takes a mutex. It retries if no server has answered for a TTL, or this process was stopped for one.
func lockWithRetries(ctx context.Context, client *holdfast.Client, name string) (*holdfast.Lease, error) {
	for {
		l, err := client.Mutex(name, nil).Lock(ctx)
		if !isPassing(err) || ctx.Err() != nil {
			return l, err
		}
	}
}

// isPassing reports whether an acquire has failed since no server has answered for a TTL, or this process was stopped
// for one.
func isPassing(err error) bool {
	var noAnswer interface{ Timeout() bool }
	return errors.Is(err, holdfast.ErrUncertain) || errors.Is(err, holdfast.ErrLost) || errors.As(err, &noAnswer)
}

// AwaitRenewal waits until a lease is renewed. The lease must not be lost before.
func AwaitRenewal(t testing.TB, l *holdfast.Lease) {
	t.Helper()
	for was, limit := l.Remaining(), time.Now().Add(2*time.Minute); ; time.Sleep(10 * time.Millisecond) {
		now := l.Remaining()
		switch {
		case now == 0:
			t.Fatalf("lost: %v", l.Err())
		case now > was:
			return
		case time.Now().After(limit):
			t.Fatal("it is not renewed")
		}
		was = now
	}
}

// AwaitWaiter waits until another client sees a waiting claim on a lock.
func AwaitWaiter(t testing.TB, s driver.Store, name string) {
	t.Helper()
	awaitState(t, s, name, func(l driver.Lock) bool { return len(l.Waiters) > 0 })
}

// awaitState returns when the claims on a lock are as wanted.
func awaitState(t testing.TB, s driver.Store, name string, isWanted func(driver.Lock) bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		l, err := s.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if isWanted(l) {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("the lock is not as wanted after a minute: %+v", l)
		}
	}
}

// CheckError fails the test if err is not nil.
func CheckError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Claim returns a claim on a mutex.
func Claim(name string) driver.Claim {
	return storetest.Mutex(name, 30*time.Second)
}
