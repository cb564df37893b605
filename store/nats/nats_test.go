package nats

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
)

var (
	mustOpen       = storetest.Open
	mutexClaim     = storetest.Mutex
	acquire        = storetest.Acquire
	renew          = storetest.Renew
	release        = storetest.Release
	expectFindings = storetest.ExpectFindings
)

// TestURL: each option of the URL has its effect. Errors about a URL do not show its secrets.
func TestURL(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := parseURL(t, "nats://u@h,i:7/b?prefix=a.b&create=true&replicas=3&sync=always&clock-skew=2s&timeout=4s&domain=d&"+
		"tls=true&tls-name=n&password-file="+file)
	o, c := s.opts, s.config
	if s.bucket != "b" || s.domain != "d" || o.Prefix != "a.b" || !o.Create || o.Replicas != 3 || !o.SyncAlways ||
		o.ClockSkew != 2*time.Second || o.Timeout != 4*time.Second {
		t.Errorf("%+v", s)
	}
	if strings.Join(c.Servers, " ") != "nats://h:4222 nats://i:7" || !c.Secure || c.TLSConfig.ServerName != "n" {
		t.Errorf("%+v", c)
	}
	if user, password := c.UserInfo(); user != "u" || password != "s3cret" {
		t.Errorf("%s, %s", user, password)
	}
	if c := parseURL(t, "nats://u:p%40ss@h/b").config; c.Password != "p@ss" || c.Secure || c.MaxReconnect >= 0 {
		t.Errorf("%+v", c)
	}
	if c := parseURL(t, "nats://h/b?token-file="+file).config; c.TokenHandler() != "s3cret" {
		t.Errorf("%+v", c)
	}
	if one, two := parseURL(t, "nats://h:4222,i:7/b"), parseURL(t, "nats://i:7,h:4222/b"); one.hosts != two.hosts {
		t.Errorf("%s and %s are two places", one.hosts, two.hosts)
	}
	for _, raw := range []string{
		"nats://u:s3cret@h/b?nope=1", "nats://u:s3cret@h/b?create=perhaps", "nats://u:s3cret@h/b?timeout=1",
		"nats://u:s3cret@h/b?timeout=1ms", "nats://u:s3cret@h", "nats://u:s3cret@h/", "nats://u:s3cret@/b",
		"nats://u:s3cret@h/a/b", "nats://u:s3cret@h/a.b", "nats://u:s3cret@h/b?prefix=a.", "nats://u:s3cret@h/b?prefix=a*",
		"nats://u:s3cret@h/b?prefix=" + strings.Repeat("p", maxPrefix+1), "nats://u:s3cret@h/b?replicas=9",
		"nats://u:s3cret@h/b?sync=2m", "nats://u:s3cret@h/b?clock-skew=0s", "nats://h/b?password-file=" + file,
		"nats://u@h/b?password-file=/does/not/exist", "nats://u:s3cret@h/b?creds=/does/not/exist",
		"nats://u:s3cret@h/b?tls-ca=/does/not/exist", "nats://u:s3cret@h/b?tls-cert=/a",
	} {
		if _, err := driver.Open(t.Context(), raw); !errors.Is(err, driver.ErrInvalid) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	storetest.OpenWithoutServer(t, "nats://u:s3cret@127.0.0.1:1/b")
}

// TestOpeningASilentServer: opening does not wait forever for a server that accepts connections and never answers.
func TestOpeningASilentServer(t *testing.T) {
	t.Parallel()
	storetest.OpenSilentServer(t, "nats://u:s3cret@HOST/b?timeout=100ms")
}

// TestKeyNames: the key of a name is a valid key of one token, can be read back, and is no other name's.
func TestKeyNames(t *testing.T) {
	t.Parallel()
	keys := map[string]string{}
	names := []string{"a", "A", "a.b", "a/b", "a_b", "a-b", "a=b", "=", "=3D", "a=2Eb", ".", "..", "*", ">", "$", " ", "\n",
		"\x01", "\xc3\xa9", "e\u0301", "日本", "a b", "a\tb", strings.Repeat("x", 512), strings.Repeat("\xff", 512)}
	for b := 1; b < 256; b++ {
		names = append(names, string([]byte{byte(b)}), "x"+string([]byte{byte(b)}))
	}
	for _, name := range names {
		key := encodeName(name)
		if other, taken := keys[key]; taken && other != name {
			t.Errorf("%q and %q have the same key %s", name, other, key)
		}
		keys[key] = name
		if back, ok := decodeName(key); !ok || back != name {
			t.Errorf("%q becomes %s, and that %q", name, key, back)
		}
		if strings.Trim(key, "-/_=abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" {
			t.Errorf("%q becomes %s", name, key)
		}
	}
	for _, token := range []string{"", "=", "=4", "=41", "=2e", "a.b", "=ZZ", "=runs"} {
		if name, ok := decodeName(token); ok {
			t.Errorf("%s is taken for the key of %q", token, name)
		}
	}
	long := &table{bucket: "b", keyPrefix: strings.Repeat("p", maxPrefix)}
	if len(long.key(strings.Repeat("\xff", 512))) > 2048 {
		t.Error("a key is too long for the protocol")
	}
}

// TestRequestsPerOperation: a take of a free lock, a renewal and a release are one request each, by the connection's
// own count.
func TestRequestsPerOperation(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	store, err := New(t.Context(), js, bucket, &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	expect := func(what string, want uint64, do func()) {
		t.Helper()
		before := js.Conn().Stats().OutMsgs
		do()
		if got := js.Conn().Stats().OutMsgs - before; got != want {
			t.Errorf("%s took %d requests, want %d", what, got, want)
		}
	}
	var g driver.Grant
	expect("the first take", 1, func() { g = acquire(t, store, mutexClaim("m", time.Minute)) })
	expect("a renewal", 1, func() {
		if err := renew(t, store, g).Err; err != nil {
			t.Fatal(err)
		}
	})
	expect("a release", 1, func() { release(t, store, g.Claim) })
	next := mutexClaim("m", time.Minute)
	next.ID = "next"
	expect("the next take", 1, func() { acquire(t, store, next) })
}

// TestWatch: a waiter is woken by a change, and not by time: it polls after a second at the earliest, and here it has
// been told of all changes before it could poll once.
func TestWatch(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	watcher, writer := openTable(t, js, bucket, Options{Create: true}), openTable(t, js, bucket, Options{})
	row := record.Row{Name: "m"}
	known := ""
	for i := range 20 {
		told := make(chan error, 1)
		go func(version string) { told <- storetest.WaitForChange(t.Context(), watcher, "m", version) }(known)
		if i%2 == 0 {
			storetest.Eventually(t, "the watch exists", func() bool {
				watcher.mu.Lock()
				defer watcher.mu.Unlock()
				return watcher.watches[watched{name: "m"}] != nil
			})
		}
		row.Data = []byte{byte(i)}
		var err error
		if row, err = writer.Swap(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		if err := <-told; err != nil {
			t.Fatal(err)
		}
		known = row.Version
	}
	told := make(chan error, 1)
	go func() { told <- storetest.WaitForChange(t.Context(), watcher, "m", known) }()
	if err := writer.Delete(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err != nil {
		t.Errorf("a watch of a removed key: %v", err)
	}
	info, err := watcher.stream.Info(t.Context())
	if err != nil || info.State.Consumers != 1 {
		t.Errorf("%d watches of one key, %v", info.State.Consumers, err)
	}
}

// TestRemovedKeys: a key that was removed is absent, can be created again in spite of its marker, and an earlier
// version of it is never accepted. The marker has a TTL.
func TestRemovedKeys(t *testing.T) {
	t.Parallel()
	js := connect(t, sharedServer(t))
	own, plain := freshBucket(), freshBucket()
	if _, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: plain}); err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{own, plain} {
		table := openTable(t, js, bucket, Options{Create: true})
		first, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")})
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if err := table.Delete(t.Context(), first); err != nil {
			t.Errorf("to delete a key that is gone: %v", err)
		}
		if row, err := table.Load(t.Context(), "m"); err != nil || row.Version != "" {
			t.Errorf("a removed key: %+v %v", row, err)
		}
		for row, err := range table.List(t.Context(), "", "") {
			t.Errorf("a list without keys: %+v %v", row, err)
		}
		first.Data = []byte("2")
		if _, err := table.Swap(t.Context(), first); !errors.Is(err, record.ErrConflict) {
			t.Errorf("an earlier version is accepted: %v", err)
		}
		marker, err := table.stream.GetLastMsgForSubject(t.Context(), table.subject(table.key("m")))
		if err != nil {
			t.Fatal(err)
		}
		if ttl := marker.Header.Get("Nats-TTL"); (ttl != "") != (bucket == own) {
			t.Errorf("bucket %s: the marker has the TTL %q", bucket, ttl)
		}
		if _, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("3")}); err != nil {
			t.Errorf("to create a removed key: %v", err)
		}
	}
}

// TestOldReads: a read that shows less than this client has seen is an error after which the engine asks again. If it
// lasts, the bucket was restored from a backup, and is believed.
func TestOldReads(t *testing.T) {
	t.Parallel()
	clock, passed := movableClock()
	table := openTable(t, connect(t, sharedServer(t)), freshBucket(), Options{Create: true, Clock: clock})
	if _, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	later := entry{version: version{revision: 1 << 60}}
	table.noteWritten("m", later)
	for range 2 {
		if _, err := table.Load(t.Context(), "m"); err == nil || driverutil.IsFinal(err) ||
			errors.Is(err, record.ErrConflict) {
			t.Errorf("an old read: %v", err)
		}
	}
	table.noteWritten("gone", later)
	if _, err := table.Load(t.Context(), "gone"); err == nil {
		t.Error("a key that exists is absent, and nobody knows why")
	}
	passed.Add(int64(maxStale + time.Second))
	if _, err := table.Load(t.Context(), "m"); err != nil {
		t.Errorf("a bucket that stays old: %v", err)
	}
	for i := range 2 * maxSeen {
		table.noteWritten(strings.Repeat("n", 1+i%500)+string(rune('a'+i%26))+strings.Repeat("m", i/500), later)
	}
	if n := len(table.seen); n > maxSeen {
		t.Errorf("%d names are remembered", n)
	}
}

// TestMarkerGone: a key whose marker was seen is absent when the marker has expired, which is no old read. A key that
// was there cannot be absent before its marker has expired.
func TestMarkerGone(t *testing.T) {
	t.Parallel()
	table := openTable(t, connect(t, sharedServer(t)), freshBucket(), Options{Create: true})
	expire := func() { // as the server does later
		if err := table.stream.Purge(t.Context(), jetstream.WithPurgeSubject(table.subject(table.key("m")))); err != nil {
			t.Fatal(err)
		}
	}
	row, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Delete(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Load(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	expire()
	if row, err := table.Load(t.Context(), "m"); err != nil || row.Version != "" {
		t.Errorf("a key whose marker has expired: %+v %v", row, err)
	}
	if _, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("2")}); err != nil {
		t.Fatal(err)
	}
	expire()
	if row, err := table.Load(t.Context(), "m"); err == nil {
		t.Errorf("a key that was there a moment ago is absent: %+v", row)
	}
}

// TestReadsDuringWrites: a read that was sent before a write of the same client, and answered after it, is no old one.
func TestReadsDuringWrites(t *testing.T) {
	t.Parallel()
	table := openTable(t, connect(t, sharedServer(t)), freshBucket(), Options{Create: true})
	row, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	before := table.seen["m"]
	read := entry{version: before.version}
	if _, err := table.Swap(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := table.checkFresh("m", read, before); err != nil {
		t.Errorf("a read during a write: %v", err)
	}
	if err := table.checkFresh("m", read, table.seen["m"]); err == nil {
		t.Error("a read after a write shows what was before it")
	}
}

// TestRefusedBuckets: what makes locks impossible is reported when the store is opened, with what to do.
func TestRefusedBuckets(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	js := connect(t, s)
	for what, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		says   string
	}{
		"a TTL": {func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "TTL"},
		"it drops old keys": {func(c *jetstream.StreamConfig) {
			c.Discard, c.MaxBytes = jetstream.DiscardOld, 1<<20
		}, "discard"},
		"tiny values":                {func(c *jetstream.StreamConfig) { c.MaxMsgSize = minMessage - 1 }, "16384"},
		"keys that stay as they are": {func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true }, "replace"},
		"no acknowledgments":         {func(c *jetstream.StreamConfig) { c.NoAck = true }, "acknowledges"},
		"no bucket":                  {func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = -1 }, "not a key-value bucket"},
		"a copy": {func(c *jetstream.StreamConfig) {
			c.Sources = []*jetstream.StreamSource{{Name: "other"}}
		}, "original"},
		"a mirror": {func(c *jetstream.StreamConfig) {
			c.Mirror, c.Subjects, c.Discard = &jetstream.StreamSource{Name: "other"}, nil, jetstream.DiscardOld
		}, "original"},
		"keys that are read go": {func(c *jetstream.StreamConfig) {
			c.Retention = jetstream.InterestPolicy
		}, "read"},
	} {
		bucket := freshBucket()
		config := jetstream.StreamConfig{Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"},
			MaxMsgsPerSubject: 1, AllowRollup: true, Discard: jetstream.DiscardNew}
		c.change(&config)
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(what, err)
		}
		if _, err := New(t.Context(), js, bucket, nil); !errors.Is(err, driver.ErrUnsupported) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	tiny := startServers(t, natstest.Options{Config: "max_payload: 16383"})
	if _, err := New(t.Context(), connect(t, tiny), "b", &Options{Create: true}); !errors.Is(err, driver.ErrUnsupported) ||
		!strings.Contains(err.Error(), "max_payload") {
		t.Errorf("tiny messages: %v", err)
	}
	if _, err := New(t.Context(), js, "absent", nil); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "create=true") {
		t.Errorf("no such bucket: %v", err)
	}
	if _, err := New(t.Context(), js, freshBucket(), &Options{Create: true, Replicas: 3}); !errors.Is(err,
		driver.ErrInvalid) || !strings.Contains(err.Error(), "cluster") {
		t.Errorf("replicas without a cluster: %v", err)
	}
	if _, err := New(t.Context(), nil, "b", nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a nil client: %v", err)
	}
	if err := CreateBucket(t.Context(), js, "a.b", nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a bad name: %v", err)
	}
}

// TestChangedSettings: when somebody gives an open bucket settings that make locks impossible, the store refuses claims
// within half a minute, until the settings are right again.
func TestChangedSettings(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	clock, passed := movableClock()
	store := openStore(t, js, bucket, &Options{Create: true, Clock: clock})
	stream, err := js.Stream(t.Context(), "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	sound := stream.CachedInfo().Config
	bad := sound
	bad.MaxAge = time.Hour
	if _, err := js.UpdateStream(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	passed.Store(int64(31 * time.Second))
	for range 2 {
		if _, err := store.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("a claim in a bucket that removes keys: %v", err)
		}
	}
	if _, err := js.UpdateStream(t.Context(), sound); err != nil {
		t.Fatal(err)
	}
	acquire(t, store, mutexClaim("m", time.Minute))
}

// TestOldServers: a bucket that is kept by a server older than NATS 2.11 is refused, whenever its state is read. Those
// before 2.11 tell no API level, but may keep what a newer one has stored.
func TestOldServers(t *testing.T) {
	t.Parallel()
	table := openTable(t, connect(t, sharedServer(t)), freshBucket(), Options{Create: true})
	for _, metadata := range []map[string]string{nil, {}, {"_nats.req.level": "1"}, {"_nats.level": "0"}} {
		state := *table.stream.CachedInfo()
		state.Config.Metadata = metadata
		if err := table.noteState(&state, table.currentEpoch()); !errors.Is(err, driver.ErrUnsupported) ||
			!strings.Contains(err.Error(), "2.11") {
			t.Errorf("a server that says %v: %v", metadata, err)
		}
	}
}

// TestBucketGone: when the bucket was removed, claims end with an error that says so, but not at once: after a restart
// of a cluster, its leader may not know all buckets yet.
func TestBucketGone(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	clock, passed := movableClock()
	table := openTable(t, js, bucket, Options{Create: true, Clock: clock})
	load := func() error {
		_, err := table.Load(t.Context(), "m")
		return err
	}
	if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	if err := load(); err == nil || driverutil.IsFinal(err) {
		t.Errorf("a bucket that is not found once: %v", err)
	}
	if err := CreateBucket(t.Context(), js, bucket, nil); err != nil {
		t.Fatal(err)
	}
	passed.Add(int64(maxMissing + time.Second))
	if err := load(); err != nil {
		t.Errorf("a bucket that is there again: %v", err)
	}
	if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	if err := load(); err == nil || driverutil.IsFinal(err) {
		t.Errorf("a bucket that is not found once more: %v", err)
	}
	passed.Add(int64(maxMissing + time.Second))
	if _, err := record.New(table).Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), bucket) {
		t.Errorf("a claim in a bucket that is gone: %v", err)
	}
}

// movableClock returns a clock that is ahead by what has passed.
func movableClock() (driver.Clock, *atomic.Int64) {
	var passed atomic.Int64
	clock := driver.SystemClock
	clock.Monotonic = func() time.Duration { return driver.SystemClock.Monotonic() + time.Duration(passed.Load()) }
	clock.Boottime = func() time.Duration { return driver.SystemClock.Boottime() + time.Duration(passed.Load()) }
	return clock, &passed
}

// checkForgottenHolder has A hold two locks, which forget lets the bucket forget. B, on the store that forget returns,
// acquires them. A's renewal and release must not change anything for B, and C must not get a lock.
func checkForgottenHolder(t *testing.T, a driver.Store, forget func() driver.Store) {
	t.Helper()
	claim := func(name, id string) driver.Claim {
		c := mutexClaim(name, time.Hour) // long enough for a release without a read
		c.ID = id
		return c
	}
	renewed, released := acquire(t, a, claim("m", "A")), acquire(t, a, claim("n", "A2"))
	b := forget()
	held := acquire(t, b, claim("m", "B"))
	acquire(t, b, claim("n", "B2"))
	// Old reads are refused for a while, so the error may also be that the outcome is not known.
	if err := renew(t, a, renewed).Err; err == nil {
		t.Error("A has renewed a claim that is gone")
	}
	if err := a.Release(t.Context(), released.Claim, ""); err == nil {
		t.Error("A has released a claim that is gone")
	}
	for _, name := range []string{"m", "n"} {
		if _, err := b.Acquire(t.Context(), claim(name, "C")); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("C asks for a lock that B holds: %v", err)
		}
	}
	if err := renew(t, b, held).Err; err != nil {
		t.Errorf("B cannot renew: %v", err)
	}
}

// openStore opens a store on a connection of a test.
func openStore(t *testing.T, js jetstream.JetStream, bucket string, o *Options) driver.Store {
	t.Helper()
	store, err := New(t.Context(), js, bucket, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// TestBucketMadeAgain: if a bucket that this store has made is removed and made again while a lock is held, its holder
// neither renews nor releases the claim that another client has made since.
func TestBucketMadeAgain(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	checkForgottenHolder(t, openStore(t, js, bucket, &Options{Create: true}), func() driver.Store {
		if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
		return openStore(t, js, bucket, &Options{Create: true})
	})
}

// TestOtherBucketMadeAgain: the same is true of a bucket of another maker, whose revisions begin with 1 each time, for
// a holder that has lost its connection since, or has read the state of the bucket.
func TestOtherBucketMadeAgain(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	for what, notice := range map[string]func(js jetstream.JetStream, passed *atomic.Int64){
		"the connection": func(js jetstream.JetStream, _ *atomic.Int64) {
			if err := js.Conn().ForceReconnect(); err != nil {
				t.Fatal(err)
			}
			storetest.Eventually(t, "the connection is made again", func() bool {
				return js.Conn().Stats().Reconnects > 0 && js.Conn().IsConnected()
			})
		},
		"the state": func(_ jetstream.JetStream, passed *atomic.Int64) {
			passed.Store(int64(31 * time.Second)) // the clock, and with it the state, is read again
		},
	} {
		t.Run(what, func(t *testing.T) {
			js, own, bucket := connect(t, s), connect(t, s), freshBucket()
			config := jetstream.KeyValueConfig{Bucket: bucket}
			if _, err := js.CreateKeyValue(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			clock, passed := movableClock()
			checkForgottenHolder(t, openStore(t, own, bucket, &Options{Clock: clock}), func() driver.Store {
				if err := js.DeleteKeyValue(t.Context(), bucket); err != nil {
					t.Fatal(err)
				}
				if _, err := js.CreateKeyValue(t.Context(), config); err != nil {
					t.Fatal(err)
				}
				notice(own, passed)
				return openStore(t, js, bucket, nil)
			})
		})
	}
}

// TestPowerCut: if a server comes back without its last writes, a holder whose claim was among them neither renews nor
// releases the claim that another client has made since.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{})
	m := s.Members[0]
	restart := func() {
		if err := s.Restart(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	a := mustOpen(t, s.URL("locks")+"?create=true")
	isConnected := func() bool {
		_, err := a.Inspect(t.Context(), "other")
		return err == nil
	}
	m.Kill()
	before := t.TempDir()
	if err := os.CopyFS(before, os.DirFS(m.Dir)); err != nil {
		t.Fatal(err)
	}
	restart()
	storetest.Eventually(t, "A is connected", isConnected)
	checkForgottenHolder(t, a, func() driver.Store {
		m.Kill()
		if err := errors.Join(os.RemoveAll(m.Dir), os.CopyFS(m.Dir, os.DirFS(before))); err != nil {
			t.Fatal(err)
		}
		restart()
		storetest.Eventually(t, "A is connected again", isConnected)
		return mustOpen(t, s.URL("locks"))
	})
}

// TestFewerRevisions: when a bucket has fewer revisions than before, or another one is there, what was read before is
// replaced only after it was read again. A write with an old version is not sent.
func TestFewerRevisions(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*jetstream.StreamInfo){
		"fewer revisions": func(s *jetstream.StreamInfo) { s.State.LastSeq-- },
		"another bucket":  func(s *jetstream.StreamInfo) { s.Created = s.Created.Add(time.Second) },
	} {
		table := openTable(t, connect(t, sharedServer(t)), freshBucket(), Options{Create: true})
		row, err := table.Load(t.Context(), "m")
		if err != nil {
			t.Fatal(what, err)
		}
		row.Data = []byte(what)
		if row, err = table.Swap(t.Context(), row); err != nil {
			t.Fatal(what, err)
		}
		stream, err := table.readState(t.Context())
		if err != nil {
			t.Fatal(what, err)
		}
		state := *stream.CachedInfo()
		note := func() {
			if err := table.noteState(&state, table.currentEpoch()); err != nil {
				t.Fatal(what, err)
			}
		}
		note()
		if _, ok := table.mayReplace("m", mustParse(t, row.Version)); !ok {
			t.Errorf("%s: a version is refused because the state was read", what)
		}
		change(&state)
		note()
		before := table.conn().Stats().OutMsgs
		if _, err := table.Swap(t.Context(), row); !errors.Is(err, record.ErrConflict) {
			t.Errorf("%s: an old version is accepted: %v", what, err)
		}
		if sent := table.conn().Stats().OutMsgs - before; sent > 0 {
			t.Errorf("%s: %d requests were sent", what, sent)
		}
		if _, err := table.Load(t.Context(), "m"); err != nil {
			t.Fatal(what, err)
		}
		if row, err = table.Swap(t.Context(), row); err != nil {
			t.Errorf("%s: a version that was read again is refused: %v", what, err)
		}
		other := mustParse(t, row.Version)
		other.sum++
		if _, ok := table.mayReplace("m", other); ok {
			t.Errorf("%s: the same revision of other data counts", what)
		}
	}
}

func mustParse(t *testing.T, text string) version {
	t.Helper()
	v, err := parseVersion(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestFullBucket: claims in a bucket that is full are refused with what to do.
func TestFullBucket(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	config := jetstream.KeyValueConfig{Bucket: bucket, MaxBytes: 4 << 10}
	if _, err := js.CreateKeyValue(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	store, err := New(t.Context(), js, bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	expectFindings(t, "a bucket with limits", store, "nats-sync", "nats-replicas", "nats-limits", "nats-direct",
		"nats-markers", "nats-revisions")
	var refused error
	for i := 0; i < 64 && refused == nil; i++ {
		_, refused = store.Acquire(t.Context(), mutexClaim(strings.Repeat("n", i+1), time.Minute))
	}
	if !errors.Is(refused, driver.ErrDenied) || !strings.Contains(refused.Error(), "raise its limits") {
		t.Errorf("a full bucket: %v", refused)
	}
}

// TestAccountLimit: claims above a limit of the account are refused with what to do. So are those on a server without
// room, but in a cluster another server may have some.
func TestAccountLimit(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{User: "a", Password: "pw", Config: `
		accounts { A: { jetstream: { max_file: 20000, max_mem: 20000 }, users: [ { user: a, password: pw } ] } }`})
	table := openTable(t, connect(t, s), "b", Options{Create: true})
	var refused error
	for i := 0; i < 64 && refused == nil; i++ {
		_, refused = table.Swap(t.Context(), record.Row{Name: strings.Repeat("n", i+1), Data: make([]byte, 3000)})
	}
	if !errors.Is(refused, driver.ErrDenied) || !strings.Contains(refused.Error(), "account") {
		t.Errorf("a write above the account's limit: %v", refused)
	}
	noRoom := &jetstream.APIError{ErrorCode: codeNoResources, Description: "insufficient resources"}
	if err := table.explainRefusal(noRoom); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a server without room: %v", err)
	}
	table.settings.inCluster = true
	if err := table.explainRefusal(noRoom); driverutil.IsFinal(err) {
		t.Errorf("a server of a cluster without room: %v", err)
	}
}

// TestSmallValues: where the bucket accepts small values only, a lock can be held, records stay below that size, and a
// claim that does not fit is refused before it is sent.
func TestSmallValues(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	config := jetstream.KeyValueConfig{Bucket: bucket, MaxValueSize: minMessage}
	if _, err := js.CreateKeyValue(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	store, err := New(t.Context(), js, bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	c := mutexClaim("m", time.Minute)
	c.Kind, c.Limit, c.Weight = driver.KindSemaphore, 256, 1
	var refused error
	for n := 0; n < 256 && refused == nil; n++ {
		c.ID, c.Meta = strings.Repeat("c", n+1), strings.Repeat("m", store.Info().MaxMeta)
		_, refused = store.Acquire(t.Context(), c)
	}
	if !errors.Is(refused, driver.ErrQueueFull) || len(c.ID) < 5 {
		t.Errorf("claim %d on a record that is full: %v", len(c.ID), refused)
	}
}

// TestUsers: a wrong password and a missing permission are final errors that say what is missing. The permissions that
// the documentation asks for are enough.
func TestUsers(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{User: "root", Password: "pw", Config: `
		authorization { users: [
			{ user: root, password: pw }
			{ user: reader, password: pw, permissions: { publish: ["$JS.API.>"], subscribe: ["_INBOX.>"] } }
			{ user: least, password: pw, permissions: { subscribe: ["_INBOX.>"], publish: ["$KV.locks.>",
				"$JS.API.STREAM.INFO.KV_locks", "$JS.API.STREAM.MSG.GET.KV_locks", "$JS.API.CONSUMER.CREATE.KV_locks.>",
				"$JS.API.CONSUMER.DELETE.KV_locks.>", "$JS.FC.KV_locks.>" ] } }
		] }`})
	as := func(user string) string { return strings.Replace(s.URL("locks"), "nats://", "nats://"+user+"@", 1) }
	root := mustOpen(t, as("root:pw")+"?create=true")
	release(t, root, acquire(t, root, mutexClaim("m", time.Minute)).Claim)
	if _, err := driver.Open(t.Context(), as("root:hunter2")); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "password") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a wrong password: %v", err)
	}
	reader := mustOpen(t, as("reader:pw")+"?timeout=500ms")
	if _, err := reader.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "$KV.locks.>") {
		t.Errorf("no permission to write: %v", err)
	}
	js, _ := connectGated(t, s, nats.UserInfo("least", "pw"))
	least := openTable(t, js, "locks", Options{})
	row, err := least.Swap(t.Context(), record.Row{Name: "n", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() { told <- storetest.WaitForChange(t.Context(), least, "n", row.Version) }()
	storetest.Eventually(t, "the watch exists", func() bool {
		info, err := least.stream.Info(t.Context())
		return err == nil && info.State.Consumers == 1
	})
	if row, err = least.Swap(t.Context(), row); err != nil {
		t.Error(err)
	}
	if err := <-told; err != nil {
		t.Errorf("to wait with the fewest permissions: %v", err)
	}
	for _, err := range least.List(t.Context(), "", "") {
		if err != nil {
			t.Errorf("to list with the fewest permissions: %v", err)
		}
	}
	if err := errors.Join(least.Delete(t.Context(), row), least.Close(), least.lastViolation()); err != nil {
		t.Errorf("the fewest permissions: %v", err)
	}
}

// isUnknown reports whether an error says that it is not known whether a write was made.
func isUnknown(err error) bool {
	return err != nil && !driverutil.IsFinal(err) && !errors.Is(err, record.ErrConflict) &&
		!errors.Is(err, record.ErrUnsent)
}

// TestLateReplyAfterViolation: a write without a reply has an unknown outcome, although the connection remembers that
// something else was not permitted.
func TestLateReplyAfterViolation(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{User: "root", Password: "pw", Config: `
		authorization { users: [
			{ user: root, password: pw }
			{ user: other, password: pw, permissions: { publish: ["$KV.>", "$JS.API.STREAM.>"], subscribe: ["_INBOX.>"] } }
		] }`})
	if err := CreateBucket(t.Context(), connect(t, s), "b", nil); err != nil {
		t.Fatal(err)
	}
	js, gates := connectGated(t, s, nats.UserInfo("other", "pw"))
	table := openTable(t, js, "b", Options{})
	if err := js.Conn().Publish("secret", nil); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "a violation is reported", func() bool { return table.lastViolation() != nil })
	table.opts.Timeout = 200 * time.Millisecond // only from here on: a server that runs may take longer
	gates.read.Lock()
	defer gates.read.Unlock()
	if _, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")}); !isUnknown(err) {
		t.Errorf("a write without a reply: %v", err)
	}
}

// TestViolations: a request was denied if a violation of its own subject was reported since it was sent. Replies were
// denied if the store is only being opened.
func TestViolations(t *testing.T) {
	t.Parallel()
	violation := func(text string) error {
		return fmt.Errorf("%w: Permissions Violation for %s", nats.ErrPermissionViolation, text)
	}
	js := connect(t, sharedServer(t))
	opening, open := &table{js: js, bucket: "b"}, openTable(t, js, freshBucket(), Options{Create: true})
	before := violation(`Publish to "$KV.b.locks.m"`)
	for _, c := range []struct {
		what  string
		table *table
		now   error
		found bool
	}{
		{"none", open, nil, false},
		{"of this subject", open, violation(`Publish to "$KV.b.locks.m"`), true},
		{"the one from before", open, before, false},
		{"of another key", open, violation(`Publish to "$KV.b.locks.m2"`), false},
		{"of another bucket", open, violation(`Publish to "$KV.bb.locks.m"`), false},
		{"of replies", opening, violation(`Subscription to "_INBOX.x.*"`), true},
		{"of another inbox", open, violation(`Subscription to "_INBOX.x.*"`), false},
		{"without a subject", open, violation("something"), false},
	} {
		if got := c.table.newViolation(c.now, before, "$KV.b.locks.m"); (got != "") != c.found {
			t.Errorf("a violation %s: %q", c.what, got)
		}
	}
}

// TestDomain: the option domain leads to the bucket of that JetStream domain.
func TestDomain(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{Domain: "hub"})
	store := mustOpen(t, s.URL("locks")+"?create=true&domain=hub")
	g := acquire(t, store, mutexClaim("m", time.Minute))
	if err := renew(t, store, g).Err; err != nil {
		t.Error(err)
	}
	release(t, store, g.Claim)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if other, err := driver.Open(ctx, s.URL("locks")+"?domain=other"); err == nil {
		t.Error("another domain has the bucket, too")
		_ = other.Close()
	}
}

// TestTLS: the connection is encrypted, and the server's certificate is checked.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, both := storetest.WriteCertificate(t, filepath.Join(t.TempDir(), "server"))
	s := startServers(t, natstest.Options{Secure: true,
		Config: `tls { cert_file: "` + cert + `", key_file: "` + both + `" }`})
	url := s.URL("locks") + "?create=true"
	store := mustOpen(t, url+"&tls-ca="+cert)
	release(t, store, acquire(t, store, mutexClaim("m", time.Minute)).Claim)
	for what, more := range map[string]string{"no TLS": "", "an unknown authority": "&tls=true",
		"another name": "&tls-name=other&tls-ca=" + cert} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if store, err := driver.Open(ctx, url+more); err == nil {
			t.Errorf("%s is accepted", what)
			_ = store.Close()
		}
		cancel()
	}
}

// TestExamine: each setting of the bucket and the connection that makes locks less safe is found, and nothing else.
func TestExamine(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{})
	js := connect(t, s)
	store := mustOpen(t, s.URL("sound")+"?create=true&sync=always")
	acquire(t, store, mutexClaim("held", time.Minute))
	expectFindings(t, "one server that syncs", store, "nats-replicas")
	if i := store.Info(); i.Tier != driver.TierFenceSafe || !i.Survives.PowerCut || !i.Survives.Restart ||
		i.TokenRegression != "" {
		t.Errorf("a server that syncs promises %+v", i)
	}
	lazy := mustOpen(t, s.URL("sound"))
	expectFindings(t, "a server that may not sync", lazy, "nats-replicas", "nats-sync")
	if i := lazy.Info(); i.Tier != driver.TierSettings || i.Survives.PowerCut || i.TokenRegression == "" {
		t.Errorf("a server that may not sync promises %+v", i)
	}
	for _, c := range []struct {
		found  string
		change func(*jetstream.StreamConfig)
	}{
		{"nats-revisions", func(c *jetstream.StreamConfig) { c.FirstSeq = 0 }},
		{"nats-history", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }},
		{"nats-limits", func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 }},
		{"nats-direct", func(c *jetstream.StreamConfig) { c.AllowDirect = true }},
		{"nats-markers", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }},
		{"nats-memory", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
		{"nats-async", func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }},
	} {
		bucket := freshBucket()
		config := jetstream.StreamConfig{Name: "KV_" + bucket, Subjects: []string{"$KV." + bucket + ".>"},
			MaxMsgsPerSubject: 1, AllowRollup: true, AllowMsgTTL: true, Discard: jetstream.DiscardNew, FirstSeq: 1 << 51}
		c.change(&config)
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(c.found, err)
		}
		found := mustOpen(t, s.URL(bucket)+"?sync=always")
		expectFindings(t, c.found, found, "nats-replicas", c.found)
		if i := found.Info(); (i.Tier == driver.TierAdvisory) != (c.found == "nats-memory" || c.found == "nats-async") {
			t.Errorf("%s promises %+v", c.found, i)
		}
	}
	far := parseURL(t, "nats://db.example/sound?sync=always")
	far.config.CustomDialer = dialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Members[0].Endpoint)
	})
	far.config.SkipHostLookup = true
	remote, err := far.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	expectFindings(t, "a server on another machine", remote, "nats-replicas", "nats-plain")
	conn, err := nats.Connect("nats://" + s.Members[0].Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ownJS, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	own, err := New(t.Context(), ownJS, "sound", &Options{SyncAlways: true})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	expectFindings(t, "a connection with the settings of nats.go", own, "nats-replicas", "nats-blocked", "nats-buffer",
		"nats-reconnects")
}

// TestReplicas: a bucket survives the failure of a server from three replicas on. An even number is found.
func TestReplicas(t *testing.T) {
	t.Parallel()
	table := openTable(t, connect(t, sharedServer(t)), freshBucket(), Options{Create: true, SyncAlways: true})
	for replicas := 1; replicas <= maxReplicas; replicas++ {
		state := *table.stream.CachedInfo()
		state.Config.Replicas = replicas
		if err := table.noteState(&state, table.currentEpoch()); err != nil {
			t.Fatal(err)
		}
		if got := table.Info().Survives.Failover; got != (replicas >= 3) {
			t.Errorf("%d replicas survive a failure: %v", replicas, got)
		}
		even := slices.ContainsFunc(table.examineState(&state), func(f driver.Finding) bool { return f.Code == "nats-even" })
		if even != (replicas%2 == 0) {
			t.Errorf("%d replicas: an even number is found: %v", replicas, even)
		}
	}
}

// TestClosedConnection: after the user's connection was closed, claims end at once with an error that says so. Closing
// the store leaves the connection open.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	js, bucket := connect(t, sharedServer(t)), freshBucket()
	first, err := New(t.Context(), js, bucket, &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil || js.Conn().IsClosed() {
		t.Errorf("Close: %v, connection closed %v", err, js.Conn().IsClosed())
	}
	second, err := New(t.Context(), js, bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	js.Conn().Close()
	if _, err := second.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "closed") {
		t.Errorf("a closed connection: %v", err)
	}
}

// TestRestart: what was acknowledged before the server was killed is there when it comes back: the holder renews,
// others are refused, and tokens rise. The connection is made again by itself.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{})
	store := mustOpen(t, s.URL("locks")+"?create=true")
	g := acquire(t, store, mutexClaim("held", time.Hour))
	free := acquire(t, store, mutexClaim("free", time.Minute))
	release(t, store, free.Claim)
	s.Members[0].Kill()
	if _, err := store.Inspect(t.Context(), "held"); err == nil || driverutil.IsFinal(err) {
		t.Errorf("while the server is down: %v", err)
	}
	if err := s.Restart(t.Context(), s.Members[0]); err != nil {
		t.Fatal(err)
	}
	other := mustOpen(t, s.URL("locks"))
	rival := mutexClaim("held", time.Minute)
	rival.ID = "rival"
	if _, err := other.Acquire(t.Context(), rival); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a rival after the restart: %v", err)
	}
	rival.Name = "free"
	if again := acquire(t, other, rival); again.Token <= free.Token {
		t.Errorf("token %d after %d", again.Token, free.Token)
	}
	storetest.Eventually(t, "the connection is made again", func() bool { return renew(t, store, g).Err == nil })
}

// TestStoppedServer: while the server is stopped a call ends in time, and its outcome is not taken for a refusal. When
// the server goes on, the store does, too.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{})
	table := openTable(t, connect(t, s), "b", Options{Create: true})
	row, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	table.opts.Timeout = 300 * time.Millisecond // only from here on: a server that runs may take longer
	s.Members[0].Stop()
	for err == nil { // a server that was told to stop goes on for a moment
		row.Data = append(row.Data, '2')
		var next record.Row
		if next, err = table.Swap(t.Context(), row); err == nil {
			row = next
		}
	}
	s.Members[0].Continue()
	if !isUnknown(err) {
		t.Errorf("a write without a reply: %v", err)
	}
	storetest.Eventually(t, "the late write is seen", func() bool {
		now, err := table.Load(t.Context(), "m")
		return err == nil && string(now.Data) == string(row.Data)
	})
}

// TestNothingIsSentLate: a write that was refused because there was no connection is not sent when there is one again,
// although the user's connection keeps what is written meanwhile.
func TestNothingIsSentLate(t *testing.T) {
	t.Parallel()
	s := startServers(t, natstest.Options{})
	js, _ := connectGated(t, s, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	table := openTable(t, js, "b", Options{Create: true})
	table.opts.Timeout = 300 * time.Millisecond // only from here on: a server that runs may take longer
	s.Members[0].Kill()
	storetest.Eventually(t, "the connection is lost", func() bool { return js.Conn().Status() != nats.CONNECTED })
	if _, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")}); !errors.Is(err, record.ErrUnsent) ||
		driverutil.IsFinal(err) {
		t.Errorf("a write without a connection: %v", err)
	}
	if err := s.Restart(t.Context(), s.Members[0]); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the key is read", func() bool {
		row, err := table.Load(t.Context(), "m")
		if err == nil && row.Version != "" {
			t.Fatal("the write was sent late")
		}
		return err == nil
	})
}

// gatedConn is a connection that can be held up in either direction: while a test has locked a gate, nothing is
// written, or nothing of what has arrived is read.
type gatedConn struct {
	net.Conn
	*gates
}

type gates struct{ write, read sync.RWMutex }

func (c gatedConn) Write(b []byte) (int, error) {
	c.write.RLock()
	defer c.write.RUnlock()
	return c.Conn.Write(b)
}

func (c gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.RLock()
	defer c.read.RUnlock()
	return n, err
}

// Dial implements nats.CustomDialer.
func (g *gates) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return gatedConn{conn, g}, err
}

// connectGated connects to a server through gates.
func connectGated(t *testing.T, s *natstest.Cluster, options ...nats.Option) (jetstream.JetStream, *gates) {
	t.Helper()
	g := &gates{}
	conn, err := nats.Connect("nats://"+s.Members[0].Endpoint, append(options, nats.SetCustomDialer(g))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js, g
}

// TestBlockedConnection: while a write to the socket blocks the connection, calls end with their contexts and in their
// time, and the outcome of a write is not taken for a refusal.
func TestBlockedConnection(t *testing.T) {
	t.Parallel()
	js, gates := connectGated(t, sharedServer(t))
	table := openTable(t, js, freshBucket(), Options{Create: true})
	table.opts.Timeout = 200 * time.Millisecond // only from here on: a server that runs may take longer
	gates.write.Lock()
	defer gates.write.Unlock()
	call := func(ctx context.Context, what string, request func(context.Context) error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- request(ctx) }()
		select {
		case err := <-ended:
			if !isUnknown(err) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s waits for the connection", what)
		}
	}
	call(t.Context(), "a write", func(ctx context.Context) error {
		_, err := table.Swap(ctx, record.Row{Name: "m", Data: []byte("1")})
		return err
	})
	table.opts.Timeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	call(ctx, "a read whose context has ended", func(ctx context.Context) error {
		_, err := table.Load(ctx, "m")
		return err
	})
}

// TestClosedDuringWrite: when the connection is closed before the reply to a write has come, it is not known whether
// the write was made.
func TestClosedDuringWrite(t *testing.T) {
	t.Parallel()
	s, bucket := sharedServer(t), freshBucket()
	js, gates := connectGated(t, s)
	table, other := openTable(t, js, bucket, Options{Create: true}), openTable(t, connect(t, s), bucket, Options{})
	gates.read.Lock()
	defer gates.read.Unlock()
	ended := make(chan error, 1)
	go func() {
		_, err := table.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")})
		ended <- err
	}()
	storetest.Eventually(t, "the write is made", func() bool {
		row, err := other.Load(t.Context(), "m")
		return err == nil && row.Version != ""
	})
	js.Conn().Close()
	if err := <-ended; !isUnknown(err) {
		t.Errorf("a write that was made when the connection was closed: %v", err)
	}
}

// newCluster starts three servers, with a store of a bucket that all of them keep.
func newCluster(t *testing.T) (*natstest.Cluster, string) {
	t.Helper()
	s := startServers(t, natstest.Options{Members: 3})
	return s, s.URL("locks") + "?create=true&replicas=3"
}

// clusterCases are the cases of the suite for which it matters how many servers there are. With -prove all run.
var clusterCases = regexp.MustCompile(`^(mutex-|fair-|mixed-|rw-contended|token-|release-grants|killed-|cut|renew-batch|` +
	`acquire-again|holder-stops|dead-waiter$|list$|break-force)`)

var prove = flag.Bool("prove", false, "run all cases of the suite on three servers, too")

// TestClusterConformance: the store keeps its promises on a bucket with three replicas.
func TestClusterConformance(t *testing.T) {
	t.Parallel()
	_, url := newCluster(t)
	h := newHarness(t, url)
	h.Slack = 3 * time.Second // the clocks of the servers count as a second apart
	storetest.Conform(t, h, drivertest.Options{Effort: 0.2, Match: func(c drivertest.Case) bool {
		return *prove || clusterCases.MatchString(c.Name)
	}})
}

// TestLeaderKilled: when the server that leads the bucket is killed, another one takes over with all that was
// acknowledged: the holder renews, a rival is refused, and tokens rise. The server that comes back catches up.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	s, url := newCluster(t)
	store := mustOpen(t, url)
	g := acquire(t, store, mutexClaim("held", time.Hour))
	free := acquire(t, store, mutexClaim("free", time.Minute))
	release(t, store, free.Claim)
	isWhole := func() bool {
		found, err := store.Examine(t.Context()) // an error if a server that comes back is slow
		return err == nil && len(found) == 1 && found[0].Code == "nats-sync"
	}
	storetest.Eventually(t, "nothing more is found in a whole cluster", isWhole)
	leader, err := s.Leader(t.Context(), "locks")
	if err != nil {
		t.Fatal(err)
	}
	leader.Kill()
	storetest.Eventually(t, "another server leads", func() bool { return renew(t, store, g).Err == nil })
	rival := mutexClaim("held", time.Minute)
	rival.ID = "rival"
	if _, err := store.Acquire(t.Context(), rival); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a rival after the leader was killed: %v", err)
	}
	rival.Name = "free"
	if again := acquire(t, store, rival); again.Token <= free.Token {
		t.Errorf("token %d after %d", again.Token, free.Token)
	}
	expectFindings(t, "a cluster without one of its servers", store, "nats-sync", "nats-behind")
	if err := s.Restart(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the server has caught up", isWhole)
}

// TestLeaderStopped: when the server that leads the bucket is stopped, another one takes over. The old leader, when it
// goes on, grants nothing that the new one has granted to others.
func TestLeaderStopped(t *testing.T) {
	t.Parallel()
	s, url := newCluster(t)
	mustOpen(t, url)
	leader, err := s.Leader(t.Context(), "locks")
	if err != nil {
		t.Fatal(err)
	}
	var others []*servertest.Server
	for _, m := range s.Members {
		if m != leader {
			others = append(others, m)
		}
	}
	old := openTable(t, connect(t, s, leader), "locks", Options{})
	row, err := old.Swap(t.Context(), record.Row{Name: "m", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	fresh := openTable(t, connect(t, s, others...), "locks", Options{})
	if o, f := old.Info().Store, fresh.Info().Store; o != f {
		t.Errorf("the bucket is %s by one server, and %s by another one", o, f)
	}
	if old.skew() == 0 {
		t.Error("the clock of one leader is trusted for all")
	}
	for _, table := range []*table{old, fresh} {
		table.opts.Timeout = 500 * time.Millisecond // only from here on: a leader that runs may take longer
	}
	leader.Stop()
	defer leader.Continue()
	next := row
	next.Data = []byte("2")
	storetest.Eventually(t, "another server leads", func() bool {
		now, err := fresh.Swap(t.Context(), next)
		if errors.Is(err, record.ErrConflict) { // an attempt without a reply was done
			now, err = fresh.Load(t.Context(), "m")
		}
		if err == nil && string(now.Data) == "2" {
			next = now
			return true
		}
		return false
	})
	leader.Continue()
	row.Data = []byte("3")
	storetest.Eventually(t, "the old leader refuses", func() bool {
		_, err := old.Swap(t.Context(), row)
		if err == nil {
			t.Fatal("the old leader has accepted a write over one that it does not know")
		}
		return errors.Is(err, record.ErrConflict)
	})
	storetest.Eventually(t, "the clients agree", func() bool {
		now, err := old.Load(t.Context(), "m")
		return err == nil && string(now.Data) == "2" && now.Version == next.Version
	})
}

// TestClockOfClusters: in a cluster a claim is removed later, by as much as another leader's clock may be ahead, also
// if the bucket has one replica, which can move.
func TestClockOfClusters(t *testing.T) {
	t.Parallel()
	table := openTable(t, connect(t, sharedServer(t)), freshBucket(), Options{Create: true, ClockSkew: time.Minute})
	early, late, _ := table.Clock().Bounds()
	if late-early > time.Minute.Microseconds() {
		t.Errorf("a single server: %d to %d", early, late)
	}
	state := *table.stream.CachedInfo()
	state.Cluster = &jetstream.ClusterInfo{Name: "c"}
	if err := table.noteState(&state, table.currentEpoch()); err != nil || state.Config.Replicas != 1 {
		t.Fatal(err, state.Config.Replicas)
	}
	early, late, _ = table.Clock().Bounds()
	if now := table.TokenFloor(); late-early < time.Minute.Microseconds() || late < now {
		t.Errorf("%d to %d, now %d", early, late, now)
	}
}

// TestNotices: a client is notified of the changes that concern it, and of no others.
func TestNotices(t *testing.T) {
	t.Parallel()
	bucket := freshBucket()
	one := openTable(t, connect(t, sharedServer(t)), bucket, Options{Create: true})
	two := openTable(t, connect(t, sharedServer(t)), bucket, Options{})
	storetest.CheckNotices(t, one, two, func(version string) {
		t.Helper()
		shown, err := parseVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		storetest.Eventually(t, "the watch shows "+version, func() bool {
			two.mu.Lock()
			defer two.mu.Unlock()
			w := two.watches[watched{"m", true}]
			return w != nil && w.revision == shown.revision
		})
	})
	storetest.CheckNoticedRow(t, one, two, record.Outside, []byte("\x00\xff"), true)
	storetest.CheckNoticedRow(t, one, two, record.InQueue, []byte("\x00\xff"), false)
}

// TestNoticedRowEpoch: a row that a notice has brought counts as read, and a watch of an earlier epoch brings none: the
// servers may have lost what it shows, and give its revision to another write.
func TestNoticedRowEpoch(t *testing.T) {
	t.Parallel()
	bucket := freshBucket()
	one := openTable(t, connect(t, sharedServer(t)), bucket, Options{Create: true})
	two := openTable(t, connect(t, sharedServer(t)), bucket, Options{})
	row := record.Row{Name: "m", Data: []byte("{}")}
	swap := func() (before string) {
		t.Helper()
		before = row.Version
		now, err := one.Swap(t.Context(), row)
		if err != nil {
			t.Fatal(err)
		}
		row.Version = now.Version
		return before
	}
	wait := func(known string) record.Row {
		t.Helper()
		brought, err := two.Watch("m").Wait(t.Context(), known, record.Outside)
		if err != nil {
			t.Fatal(err)
		}
		return brought
	}
	swap()
	read, lost, err := two.loadEntry(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	swap()
	if brought := wait(read.Version); brought.Version != row.Version {
		t.Fatalf("the notice brings %q, want %q", brought.Version, row.Version)
	}
	two.mu.Lock()
	seen := two.seen["m"]
	two.epoch.number++ // the connection was lost
	lost.epoch = two.epoch.number
	two.mu.Unlock()
	if two.checkFresh("m", lost, seen) == nil {
		t.Error("a read that shows less than the notice is believed")
	}
	if brought := wait(read.Version); brought.Version != "" {
		t.Error("the watch brings what it has shown in the epoch before")
	}
	v, err := parseVersion(row.Version)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := two.mayReplace("m", v); ok {
		t.Error("what a notice has brought in the epoch before may be replaced")
	}
}

// TestMissedNotice: a client whose watch has not shown a message that another one has replaced is notified: that
// message may have concerned it.
func TestMissedNotice(t *testing.T) {
	table := &table{session: record.NewSession()}
	w := &keyWatch{changed: make(chan struct{})}
	for _, c := range []struct {
		revision, replaces uint64
		sessions           string
		noticed            bool
	}{
		{revision: 7, replaces: 3, noticed: true}, // the first one that is shown
		{revision: 9, replaces: 7},
		{revision: 12, replaces: 9, sessions: table.session, noticed: true},
		{revision: 20, replaces: 12},
		{revision: 31, replaces: 25, noticed: true},
		{revision: 32, replaces: 31},
	} {
		m := nats.NewMsg("key")
		m.Sub, m.Reply = &nats.Subscription{}, fmt.Sprintf("$JS.ACK.bucket.consumer.1.%d.1.1.0", c.revision)
		m.Header.Set(notifyHeader, c.sessions)
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, fmt.Sprint(c.replaces))
		table.showMessage(w, m)
		if w.revision != c.revision || (w.notice == c.revision) != c.noticed {
			t.Errorf("%+v: it shows %d, and the last notice is %d", c, w.revision, w.notice)
		}
	}
}

// TestSmallMessages: with the smallest messages that are accepted, runs of a ledger begin and end, whatever those
// before have left. Only the largest result is smaller.
func TestSmallMessages(t *testing.T) {
	small := startServers(t, natstest.Options{Config: "max_payload: 16384"})
	s, err := New(t.Context(), connect(t, small), freshBucket(), &Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l := storetest.OpenLedger(t, s)
	most := l.Info().MaxRunResult
	if most < 1<<10 || most > 4<<10 {
		t.Errorf("the largest result has %d bytes", most)
	}
	for i := range 12 {
		g := storetest.Acquire(t, l, storetest.NewRun("k"))
		o := driver.RunOutcome{State: driver.RunFailed, Error: strings.Repeat("<br>&", driver.MaxRunError/5)}
		if i == 11 {
			o = driver.RunOutcome{State: driver.RunSucceeded, Result: make([]byte, most)}
		}
		if err := l.FinishRun(t.Context(), g, o); err != nil {
			t.Errorf("run %d: %v", i+1, err)
		}
	}
	if h, err := l.ReadRuns(t.Context(), "k", 0); err != nil || len(h.Runs) != 12 || len(h.Runs[11].Result) != most {
		t.Errorf("there are %d runs, %v", len(h.Runs), err)
	}
}
