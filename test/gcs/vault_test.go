// Package gcs tests the store on Cloud Storage against other programs than its module should depend on.
package gcs

import (
	"context"
	"errors"
	"strings"
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

// TestVault: the high availability of Vault itself excludes us, and we exclude it, on one object.
func TestVault(t *testing.T) {
	s := gcstest.Start("bucket")
	defer s.Stop()
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(s.URL, "http://"))
	t.Setenv("GOOGLE_STORAGE_BUCKET", "")
	backend, err := vault.NewBackend(map[string]string{"bucket": "bucket", "ha_enabled": "true", "max_parallel": "0"}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	lock, err := backend.(physical.HABackend).LockWith("core/lock", "http://vault:8200")
	if err != nil {
		t.Fatal(err)
	}
	client, err := holdfast.Open(t.Context(), "gcs://bucket/core/?layout=vault&anonymous=true&endpoint="+s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
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
	if err := lease.Unlock(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(15 * time.Second):
		t.Fatal("the Vault does not get the lock that we have released")
	}

	// It leads: we are refused, see who it is, and get the lock when it steps down.
	_, err = mu.TryLock(t.Context())
	var held *holdfast.HeldError
	if !errors.As(err, &held) || len(held.Holders) != 1 || held.Holders[0].Owner != "http://vault:8200" || !held.Holders[0].Foreign {
		t.Fatalf("a Vault leads, and we are told %v", err)
	}
	time.Sleep(7 * time.Second) // it renews
	if _, err := mu.TryLock(t.Context()); !errors.Is(err, holdfast.ErrHeld) {
		t.Fatalf("a Vault leads, and we are told %v", err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lease, err = mu.Lock(ctx)
	if err != nil {
		t.Fatalf("the Vault has stepped down: %v", err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
}
