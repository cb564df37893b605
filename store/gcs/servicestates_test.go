package gcs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

// TestThrottled: while the service refuses all writes, the holder is warned, tries at growing intervals, and loses
// its lock at its deadline, and not before. If the service recovers in time, it keeps the lock.
func TestThrottled(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		for _, recovers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d, recovers: %v", status, recovers), func(t *testing.T) {
				t.Parallel()
				s := startServer(t)
				var refusing atomic.Bool
				var refused atomic.Int64
				s.Decide = func(r gcstest.Request) gcstest.Fate {
					if refusing.Load() && r.Kind == gcstest.Insert {
						refused.Add(1)
						return gcstest.Fate{RefuseStatus: status}
					}
					return gcstest.Fate{}
				}
				store, _ := mustOpen(t, s, quickOptions())
				var warned, lost atomic.Int64
				ttl := 4 * time.Second
				if recovers {
					ttl = 8 * time.Second
				}
				client, err := holdfast.New(store, &holdfast.Options{TTL: ttl, OnEvent: func(e holdfast.Event) {
					switch e.Kind {
					case holdfast.EventRenewalFailing:
						warned.Add(1)
					case holdfast.EventLost:
						lost.Add(1)
					}
				}})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				var machine pace.Pace
				defer machine.Watch()()
				began := time.Now()
				lease, err := client.Mutex("m", nil).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				refusing.Store(true)
				if recovers {
					for warned.Load() == 0 && lease.Valid() {
						time.Sleep(10 * time.Millisecond)
					}
					refusing.Store(false)
					for len(s.Writes("locks/m")) < 2 && lease.Valid() { // the second is the renewal
						time.Sleep(10 * time.Millisecond)
					}
					if !lease.Valid() || warned.Load() == 0 {
						t.Errorf("valid: %v, warned %d times", lease.Valid(), warned.Load())
					}
				} else {
					<-lease.Context().Done()
					took := time.Since(began)
					if took < ttl-driver.Margin(ttl) || took > 6*time.Second+machine.Lost(began) ||
						!errors.Is(context.Cause(lease.Context()), holdfast.ErrLost) || warned.Load() == 0 {
						t.Errorf("ended after %v: %v, warned %d times", took, context.Cause(lease.Context()),
							warned.Load())
					}
				}
				if n := refused.Load(); n > 40 {
					t.Errorf("%d refused requests", n)
				}
				refusing.Store(false)
			})
		}
	}
}

// TestOperator: the holder learns what an operator has done to its lock's object, and removes no object but its
// own.
func TestOperator(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s)
	for _, layout := range layouts {
		object := func(name string) *storage.ObjectHandle {
			return client.Bucket(bucket).Object(string(layout) + "/" + name)
		}
		store, _ := mustOpen(t, s, quickLayoutOptions(layout))
		other, _ := mustOpen(t, s, quickLayoutOptions(layout))
		hold := func(name string) driver.Grant {
			t.Helper()
			g := acquire(t, store, mutexClaim(name, time.Minute))
			return g
		}

		g := hold("deleted")
		if err := object("deleted").Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := renew(t, store, g).Err; !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: the object was deleted, and a renewal says %v", layout, err)
		}
		if layout == gcs.LayoutRecord { // its token is gone, too
			time.Sleep(store.Info().TokenGap)
		}
		next, err := other.Acquire(t.Context(), mutexClaim("deleted", time.Minute))
		if err != nil || next.Token <= g.Token {
			t.Errorf("%s: token %d after %d, %v", layout, next.Token, g.Token, err)
		}
		if err := store.Release(t.Context(), g.Claim, ""); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: a release says %v", layout, err)
		}
		if err := renew(t, other, next).Err; err != nil {
			t.Errorf("%s: the next holder: %v", layout, err)
		}
		if err := other.Release(t.Context(), next.Claim, ""); err != nil {
			t.Error(err)
		}

		// Replaced by something else: damage in our own layout, a foreign lock in the others.
		g = hold("replaced")
		w := object("replaced").NewWriter(t.Context())
		w.DisableAutoChecksum = true
		fmt.Fprint(w, "1")
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want := driver.ErrLost
		if layout == gcs.LayoutRecord {
			want = driver.ErrCorrupt
		}
		if err := renew(t, store, g).Err; !errors.Is(err, want) {
			t.Errorf("%s: the object was replaced, and a renewal says %v", layout, err)
		}
		if err := store.Release(t.Context(), g.Claim, ""); !errors.Is(err, want) {
			t.Errorf("%s: the object was replaced, and a release says %v", layout, err)
		}
		if _, err := object("replaced").Attrs(t.Context()); err != nil {
			t.Errorf("%s: the operator's object: %v", layout, err)
		}
		if err := object("replaced").Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignMetadata: metadata that other programs put on the object of a held lock are kept, and do not disturb
// the holder.
func TestForeignMetadata(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := newClient(t, s)
	for _, layout := range layouts {
		store, _ := mustOpen(t, s, quickLayoutOptions(layout))
		other, _ := mustOpen(t, s, quickLayoutOptions(layout))
		object := client.Bucket(bucket).Object(string(layout) + "/m")
		g := acquire(t, store, mutexClaim("m", time.Minute))
		attrs, err := object.Attrs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		meta := maps.Clone(attrs.Metadata)
		if meta == nil {
			meta = map[string]string{}
		}
		meta["OwnerTeam"], meta["cost-centre"] = "Ops", "é 7"
		if _, err := object.Update(t.Context(), storage.ObjectAttrsToUpdate{Metadata: meta}); err != nil {
			t.Fatal(err)
		}
		kept := func(when string) {
			t.Helper()
			attrs, err := object.Attrs(t.Context())
			if err != nil || attrs.Metadata["OwnerTeam"] != "Ops" || attrs.Metadata["cost-centre"] != "é 7" {
				t.Errorf("%s: after %s: %v, %v", layout, when, attrs.Metadata, err)
			}
		}
		for range 2 {
			if err := renew(t, store, g).Err; err != nil {
				t.Errorf("%s: renewing: %v", layout, err)
			}
			kept("a renewal")
		}
		if err := other.Break(t.Context(), g.Name, g.Ref, driver.Break{Mode: driver.BreakRequestRelease}); err != nil {
			t.Error(err)
		}
		kept("another's write")
		if err := store.Release(t.Context(), g.Claim, ""); err != nil {
			t.Errorf("%s: releasing: %v", layout, err)
		}
		if layout == gcs.LayoutRecord {
			kept("the release")
		}
	}
}

// TestDenied: the error names the permission that is missing, or the bucket that does not exist, at once.
func TestDenied(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client, _ := newLink(t)
	try := func(what string, err error, words ...string) {
		t.Helper()
		if !errors.Is(err, driver.ErrDenied) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error does not name %s: %v", what, w, err)
			}
		}
	}
	_, err := gcs.New(t.Context(), client, "missing", at(s, quickOptions()))
	try("opening a missing bucket", err, "there is no bucket missing")
	s.Deny(gcstest.Read)
	_, err = gcs.New(t.Context(), client, bucket, at(s, quickOptions()))
	try("opening", err, "storage.objects.get", bucket)
	s.Deny()

	for _, layout := range layouts {
		store, _ := mustOpen(t, s, quickLayoutOptions(layout))
		g := acquire(t, store, mutexClaim("m", time.Minute))
		s.Deny(gcstest.Insert)
		try("renewing", renew(t, store, g).Err, "storage.objects.create")
		c := mutexClaim("other", time.Minute)
		c.Wait = true
		_, err = store.Acquire(t.Context(), c)
		try("waiting", err, "storage.objects.create")
		s.Deny(gcstest.Insert, gcstest.Delete)
		try("releasing", store.Release(t.Context(), g.Claim, ""), "storage.objects.delete")
		s.Deny(gcstest.Read)
		_, err = store.Inspect(t.Context(), "m")
		try("looking", err, "storage.objects.get")
		s.Deny(gcstest.List)
		for _, err := range store.List(t.Context(), "") {
			try("listing", err, "storage.objects.list")
		}
		s.Deny()
		if err := store.Release(t.Context(), g.Claim, ""); err != nil {
			t.Error(err)
		}
	}
	store, _ := mustOpen(t, s, quickOptions())
	g := acquire(t, store, mutexClaim("m", time.Minute))
	s.DropBucket(bucket)
	try("renewing where the bucket has gone", renew(t, store, g).Err, "there is no bucket "+bucket)
}

// TestRetentionPolicy promises that an error because of a retention policy or a hold names that, and not a missing
// permission.
func TestRetentionPolicy(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"retentionPolicyNotMet", "objectUnderActiveHold"} {
		s := startServer(t)
		var keeps atomic.Bool
		s.Decide = func(r gcstest.Request) gcstest.Fate {
			if keeps.Load() && r.Kind != gcstest.Read {
				return gcstest.Fate{RefuseStatus: http.StatusForbidden, Reason: reason}
			}
			return gcstest.Fate{}
		}
		store, _ := mustOpen(t, s, quickOptions())
		g := acquire(t, store, mutexClaim("m", time.Minute))
		keeps.Store(true)
		for what, err := range map[string]error{"renewing": renew(t, store, g).Err,
			"releasing": store.Release(t.Context(), g.Claim, "")} {
			if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "retention") ||
				strings.Contains(err.Error(), "storage.objects") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

// TestURL: a URL opens a store. Errors about a URL do not show its secrets.
func TestURL(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	via := "endpoint=" + s.URL + "&anonymous=true"
	for url, want := range map[string]string{
		"gcs://bucket/a/b?" + via:                 "gcs://bucket/a/b",
		"gcs://bucket?" + via:                     "gcs://bucket/",
		"gcs://bucket/x?write-interval=0s&" + via: "gcs://bucket/x",
		"gcs://bucket/y?layout=gcslock&foreign-age=24h&write-interval=10ms&" + via: "gcs://bucket/y",
		"gcs://bucket/z?layout=vault&" + via:                                       "gcs://bucket/z",
	} {
		store, err := driver.Open(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := store.Info().Store; got != want {
			t.Errorf("%s is %s", url, got)
		}
		g, err := store.Acquire(t.Context(), mutexClaim("m", store.Info().MinTTL))
		if err := errors.Join(err, store.Release(t.Context(), g.Claim, "")); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
	key := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(key, []byte(`{"type": "service_account", "private_key": "hush"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]error{
		"gcs://":                                   driver.ErrInvalid,
		"gcs://bucket:80/x":                        driver.ErrInvalid,
		"gcs://user:hush@bucket/x":                 driver.ErrInvalid,
		"gcs://bucket?endpoint=nowhere":            driver.ErrInvalid,
		"gcs://bucket?layout=other&" + via:         driver.ErrInvalid,
		"gcs://bucket?foreign-age=1h&" + via:       driver.ErrInvalid,
		"gcs://bucket/%0A?" + via:                  driver.ErrInvalid,
		"gcs://bucket?unknown=1":                   driver.ErrInvalid,
		"gcs://missing?" + via:                     driver.ErrDenied,
		"gcs://bucket?credentials=" + key + "-not": driver.ErrDenied,
		"gcs://bucket?credentials=" + key:          driver.ErrDenied,
	} {
		_, err := driver.Open(t.Context(), url)
		if !errors.Is(err, want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestTooManyHolders: the ninth holder is refused, and learns why.
func TestTooManyHolders(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store, _ := mustOpen(t, s, quickOptions())
	var wg sync.WaitGroup
	var full atomic.Int64
	for range 12 {
		wg.Go(func() {
			c := mutexClaim("s", time.Minute)
			c.Kind, c.Limit, c.Wait = driver.KindSemaphore, 12, true
			if _, err := store.Acquire(t.Context(), c); errors.Is(err, driver.ErrQueueFull) {
				full.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := full.Load(); n != 4 {
		t.Errorf("of 12 holders %d were refused, with a limit of 8", n)
	}
}
