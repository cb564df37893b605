package sessiontest

import (
	"crypto/rand"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
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
	l, err := client.Mutex(name, nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
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
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: 30 * time.Second, Owner: "test"}
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
