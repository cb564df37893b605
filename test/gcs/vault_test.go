// Package gcs tests the store on Cloud Storage against programs on which the module of the store must not depend.
package gcs

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	vault "github.com/hashicorp/vault/physical/gcs"
	"github.com/hashicorp/vault/sdk/physical"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

var rounds = flag.Int("rounds", 20, "how often Vault's clients and ours take the lock, each kind")

// start runs a service, a Vault's backend, and a client of ours on the same objects.
func start(t *testing.T) (physical.HABackend, *holdfast.Client) {
	t.Helper()
	s := gcstest.Start("bucket")
	t.Cleanup(s.Stop)
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(s.URL, "http://"))
	t.Setenv("GOOGLE_STORAGE_BUCKET", "")
	backend, err := vault.NewBackend(map[string]string{"bucket": "bucket", "ha_enabled": "true",
		"max_parallel": "0"}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.Open(t.Context(),
		"gcs://bucket/core/?layout=vault&anonymous=true&write-interval=5ms&endpoint="+s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return backend.(physical.HABackend), client
}

// vaultLock makes the lock as a Vault makes it. Each can be locked once.
func vaultLock(backend physical.HABackend) (physical.Lock, error) {
	return backend.LockWith("core/lock", "http://vault:8200")
}

// TestVaultRounds: Vaults and our clients contend for one lock. There is one holder at a time, and both kinds get
// the lock again and again. There are many Vaults, because each tries only every 5 s.
func TestVaultRounds(t *testing.T) {
	backend, client := start(t)
	var inside, vaults, ours atomic.Int64
	work := func(turns *atomic.Int64) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d hold the lock at a time", n)
		}
		time.Sleep(2 * time.Millisecond)
		inside.Add(-1)
		turns.Add(1)
	}
	over := func() bool { return t.Failed() || min(vaults.Load(), ours.Load()) >= int64(*rounds) }
	var all sync.WaitGroup
	for range min(*rounds, 100) {
		all.Go(func() {
			time.Sleep(rand.N(5 * time.Second)) // so that their tries are spread
			for !over() {
				lock, err := vaultLock(backend)
				if err == nil {
					_, err = lock.Lock(nil)
				}
				if err == nil {
					work(&vaults)
					err = lock.Unlock()
				}
				if err != nil {
					t.Error("a Vault: ", err)
				}
			}
		})
	}
	for range 2 {
		all.Go(func() {
			for !over() {
				if err := client.Do(t.Context(), "lock",
					func(context.Context, *holdfast.Lease) error { work(&ours); return nil }); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(rand.N(40 * time.Millisecond))
			}
		})
	}
	all.Wait()
	t.Logf("held %d times by Vaults and %d times by us, never by two at a time", vaults.Load(), ours.Load())
}

// TestVault: the high availability of the real Vault and our client exclude each other, on one object.
func TestVault(t *testing.T) {
	backend, client := start(t)
	lock, err := vaultLock(backend)
	if err != nil {
		t.Fatal(err)
	}
	mu := client.Mutex("lock", nil)

	// Vault comes while we hold the lock for longer than its 15 s.
	lease, err := mu.TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var leading atomic.Bool
	got := make(chan error, 1)
	go func() {
		_, err := lock.Lock(nil)
		leading.Store(true)
		got <- err
	}()
	time.Sleep(18 * time.Second)
	if leading.Load() || !lease.Valid() {
		t.Fatalf("a Vault leads: %v, our lease is valid: %v", leading.Load(), lease.Valid())
	}
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the Vault does not get the lock that we have released")
	}

	// It leads: we are refused, see who it is, and get the lock when it steps down.
	_, err = mu.TryLock(t.Context())
	var held *holdfast.HeldError
	if !errors.As(err, &held) || len(held.Holders) != 1 || held.Holders[0].Owner != "http://vault:8200" ||
		!held.Holders[0].Foreign {
		t.Fatalf("a Vault leads, and we are told %v", err)
	}
	time.Sleep(7 * time.Second) // it renews
	if _, err := mu.TryLock(t.Context()); !errors.Is(err, holdfast.ErrHeld) {
		t.Fatalf("a Vault leads, and we are told %v", err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lease, err = mu.Lock(ctx)
	if err != nil {
		t.Fatalf("the Vault has stepped down: %v", err)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
}
