package sessiontest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// NewClient makes a client that is closed with the test.
func NewClient(t testing.TB, s driver.Store, ttl time.Duration) *holdfast.Client {
	t.Helper()
	client, err := holdfast.New(s, &holdfast.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// Lock takes a mutex.
func Lock(t testing.TB, client *holdfast.Client, name string) *holdfast.Lease {
	t.Helper()
	l, err := insist(t.Context(), client, name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// insist takes a mutex, and asks again where no server has answered for a TTL.
func insist(ctx context.Context, client *holdfast.Client, name string) (*holdfast.Lease, error) {
	for {
		l, err := client.Mutex(name, nil).Lock(ctx)
		if !errors.Is(err, holdfast.ErrUncertain) || ctx.Err() != nil {
			return l, err
		}
	}
}

// Fails fails the test if there is an error.
func Fails(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Claim is one on a mutex.
func Claim(name string) driver.Claim {
	return storetest.Mutex(name, 30*time.Second)
}

// Cycles runs b.N cycles on some goroutines.
func Cycles(b *testing.B, goroutines int, cycle func(worker int)) {
	b.ResetTimer()
	var all sync.WaitGroup
	todo := make(chan struct{}, b.N)
	for range b.N {
		todo <- struct{}{}
	}
	close(todo)
	for w := range goroutines {
		all.Go(func() {
			for range todo {
				cycle(w)
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
}
