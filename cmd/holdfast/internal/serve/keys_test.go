package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

const tryLong = `{"ttl_ms": 600000}`

// withKey makes all further requests have a key.
func (s *testServer) withKey(key string) { s.header.Set(keyHeader, key) }

// holder is the only holder of a lock.
func (s *testServer) holder(name string) holdfast.ClaimInfo {
	s.Helper()
	lock, err := s.direct.Inspect(context.Background(), name)
	if err != nil || len(lock.Holders) != 1 || len(lock.Waiters) != 0 {
		s.Fatalf("%+v, %v", lock, err)
	}
	return lock.Holders[0]
}

// TestRetryAfterLostAnswer: a request whose answer was lost on its way is sent again with the same key, and gets the
// handle. Without the key, with another one, and at another server, the lock is held.
func TestRetryAfterLostAnswer(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"try", "acquire"} {
		s := startServer(t, nil)
		link, err := servertest.NewLink(strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(link.Close)
		s.withKey("4711")
		link.LoseReplies(1)
		r, err := http.NewRequest(http.MethodPost, "http://"+link.Addr+"/v1/locks/a/"+path, strings.NewReader(tryLong))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(keyHeader, "4711")
		r.GetBody = nil // so that the library of the client does not try again by itself
		if answer, err := (&http.Transport{}).RoundTrip(r); err == nil {
			answer.Body.Close()
			t.Fatalf("the answer was not lost: %s", answer.Status)
		}
		held := s.holder("a")
		got := s.want(http.MethodPost, "/v1/locks/a/"+path, tryLong)
		again := s.want(http.MethodPost, "/v1/locks/a/"+path, tryLong)
		if number(s, got, "token") != held.Token || text(got, "handle") != text(again, "handle") {
			t.Errorf("%v and %v for %+v", got, again, held)
		}
		if left := number(s, got, "remaining_ms"); left <= 0 || left >= 600000 {
			t.Errorf("%v", got)
		}
		if now := s.holder("a"); now.Token != held.Token {
			t.Errorf("%+v became %+v", held, now)
		}
		short := `{"ttl_ms": 600000, "wait_ms": 10}` // how long it waits is no option of the lock
		if path == "acquire" {
			if got := s.want(http.MethodPost, "/v1/locks/a/acquire", short); number(s, got, "token") != held.Token {
				t.Errorf("%v", got)
			}
		}
		s.withKey("4712")
		s.refuse(codeHeld, http.MethodPost, "/v1/locks/a/try", tryLong)
		s.header.Del(keyHeader)
		s.refuse(codeHeld, http.MethodPost, "/v1/locks/a/try", tryLong)
		other := startServer(t, func(c *Config) { c.Client = s.direct })
		other.withKey("4711")
		other.refuse(codeHeld, http.MethodPost, "/v1/locks/a/try", tryLong)
	}
}

// TestKeyIsNotForAll: a request that would take something a second time, and knows no keys, refuses one.
func TestKeyIsNotForAll(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.withKey("k")
	for _, path := range []string{"/v1/locks/a/hold", "/v1/elections/a/campaign", "/v1/ledgers/l/keys/a/begin"} {
		s.refuse(codeInvalid, http.MethodPost, path, "")
	}
	// Those that may be repeated do not mind it: some clients send it always.
	handle := text(s.want(http.MethodPost, "/v1/locks/a/try", tryLong), "handle")
	s.want(http.MethodPost, "/v1/handles/"+handle+"/renew", "")
	s.want(http.MethodPost, "/v1/handles/"+handle+"/release", "")
}

// TestKeyIsOneRequest: a key belongs to one caller, one lock, and one set of options. Each wrong one is an error that
// leaves the lock as it is.
func TestKeyIsOneRequest(t *testing.T) {
	t.Parallel()
	access, err := parseAccess(strings.NewReader("token:a-token-of-the-first first hold *\n"+
		"token:a-token-of-the-second second hold *\n"), "tokens")
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, func(c *Config) { c.Access = access })
	s.header.Set("Authorization", "Bearer a-token-of-the-first")
	s.withKey("k")
	got := s.want(http.MethodPost, "/v1/locks/a/try", tryLong)
	for _, other := range []string{`{"ttl_ms": 1000}`, `{"ttl_ms": 600000, "note": "x"}`, `{"ttl_ms": 600000, "fair": true}`,
		`{"ttl_ms": 600000, "kind": "rw"}`, `{"ttl_ms": 600000, "owner": "x"}`} {
		s.refuse(codeKeyReused, http.MethodPost, "/v1/locks/a/try", other)
	}
	s.refuse(codeKeyReused, http.MethodPost, "/v1/locks/a/acquire", tryLong)
	if other := s.want(http.MethodPost, "/v1/locks/b/try", tryLong); text(other, "handle") == text(got, "handle") {
		t.Errorf("%v", other)
	}
	s.header.Set("Authorization", "Bearer a-token-of-the-second")
	s.refuse(codeHeld, http.MethodPost, "/v1/locks/a/try", tryLong)
	s.header.Set("Authorization", "Bearer a-token-of-the-first")
	for _, key := range []string{"", strings.Repeat("x", maxKeyLength+1), "b\u00fccher"} {
		s.withKey(key)
		s.refuse(codeInvalid, http.MethodPost, "/v1/locks/c/try", tryLong)
	}
	s.header[keyHeader] = []string{"k", "l"}
	s.refuse(codeInvalid, http.MethodPost, "/v1/locks/c/try", tryLong)
	s.withKey(`"` + strings.Repeat("~", maxKeyLength-3) + ` "`)
	s.want(http.MethodPost, "/v1/locks/c/try", tryLong)
	first := s.want(http.MethodPost, "/v1/locks/s/try", `{"ttl_ms": 600000, "kind": "semaphore", "limit": 3, "weight": 2}`)
	again := s.want(http.MethodPost, "/v1/locks/s/try", `{"ttl_ms": 600000, "kind": "semaphore", "limit": 3, "weight": 2}`)
	if fmt.Sprint(first["permits"]) != "[0 1]" || fmt.Sprint(again["permits"]) != "[0 1]" {
		t.Errorf("%v, and again %v", first, again)
	}
}

// TestRetryOfEndedHandle: a key whose handle was released, or lost, takes the lock no second time.
func TestRetryOfEndedHandle(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.withKey("k")
	got := s.want(http.MethodPost, "/v1/locks/a/try", tryLong)
	s.want(http.MethodPost, "/v1/handles/"+text(got, "handle")+"/release", "")
	s.refuse(codeLost, http.MethodPost, "/v1/locks/a/try", tryLong)
	if !s.isFree("a") {
		t.Error("a late retry has taken the lock")
	}
	s.want(http.MethodPost, "/v1/locks/b/try", tryLong)
	if err := s.direct.Break(context.Background(), "b", "", holdfast.BreakForce, ""); err != nil {
		t.Fatal(err)
	}
	s.refuse(codeLost, http.MethodPost, "/v1/locks/b/try", tryLong)
	// The client that got the handle first may work under a lock that an operator breaks: a retry does not free it.
	s.want(http.MethodPost, "/v1/locks/c/try", tryLong)
	if err := s.direct.Break(context.Background(), "c", "", holdfast.BreakGraceful, ""); err != nil {
		t.Fatal(err)
	}
	if p := s.refuse(codeLost, http.MethodPost, "/v1/locks/c/try", tryLong); p["cause"] != "broken" {
		t.Errorf("%v", p)
	}
	if s.isFree("c") {
		t.Error("a retry has freed the lock under a holder")
	}
}

// serveAlone sends a request to the server without a connection. The answer goes to w.
func (s *testServer) serveAlone(ctx context.Context, w http.ResponseWriter, path, body string) {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)).WithContext(ctx)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(keyHeader, s.header.Get(keyHeader))
	r.Host = "localhost"
	s.handler.ServeHTTP(w, r)
}

// TestRetryWhileTheFirstWaits: a retry joins the claim of a request that still waits, so there is one claim, and it
// stays in its place when the first client goes. When all have gone it is withdrawn.
func TestRetryWhileTheFirstWaits(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.withKey("k")
	const body = `{"ttl_ms": 600000, "fair": true}`
	holder := s.lock("a")
	ctx, goAway := context.WithCancel(context.Background())
	first, second := make(chan struct{}), make(chan *httptest.ResponseRecorder, 1)
	go func() {
		defer close(first)
		s.serveAlone(ctx, httptest.NewRecorder(), "/v1/locks/a/acquire", body)
	}()
	s.awaitWaiters("a", 1)
	lock, err := s.direct.Inspect(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		answer := httptest.NewRecorder()
		s.serveAlone(context.Background(), answer, "/v1/locks/a/acquire", body)
		second <- answer
	}()
	s.await("2 requests", func() bool { return s.requestsWith("k") == 2 })
	goAway()
	<-first
	s.refuse(codeTimeout, http.MethodPost, "/v1/locks/a/acquire", `{"ttl_ms": 600000, "fair": true, "wait_ms": 1}`)
	if now, err := s.direct.Inspect(context.Background(), "a"); err != nil || len(now.Waiters) != 1 ||
		now.Waiters[0].Ref != lock.Waiters[0].Ref {
		t.Errorf("%+v became %+v, %v", lock, now, err)
	}
	if err := holder.Release(); err != nil {
		t.Fatal(err)
	}
	if answer := <-second; answer.Code != http.StatusOK || s.holder("a").Ref != lock.Waiters[0].Ref {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}

	// All have gone.
	holder = s.lock("b")
	ctx, goAway = context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.serveAlone(ctx, httptest.NewRecorder(), "/v1/locks/b/acquire", body)
	}()
	s.awaitWaiters("b", 1)
	goAway()
	<-gone
	s.awaitWaiters("b", 0)
	if err := holder.Release(); err != nil {
		t.Fatal(err)
	}
	s.want(http.MethodPost, "/v1/locks/b/acquire", body)
}

// requestsWith is how many requests wait with a key.
func (s *testServer) requestsWith(key string) (n int) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	for id, k := range s.keys.byID {
		if id.key == key {
			n += k.requests
		}
	}
	return n
}

// TestClientGoesWithItsKey: a lock that was granted stays held for the retry of a client that has gone, and of one that
// could not be answered.
func TestClientGoesWithItsKey(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.withKey("k")
	s.serveAlone(context.Background(), &deadRecorder{httptest.NewRecorder()}, "/v1/locks/a/try", tryLong)
	held := s.holder("a")
	if got := s.want(http.MethodPost, "/v1/locks/a/try", tryLong); number(s, got, "token") != held.Token {
		t.Errorf("%v for %+v", got, held)
	}
}

// TestShutdownWithKeys: requests that wait with a key end when the server does.
func TestShutdownWithKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.withKey("k")
	s.lock("a")
	answers := make(chan *httptest.ResponseRecorder, 2)
	for range 2 {
		go func() {
			answer := httptest.NewRecorder()
			s.serveAlone(context.Background(), answer, "/v1/locks/a/acquire", tryLong)
			answers <- answer
		}()
	}
	s.await("2 requests", func() bool { return s.requestsWith("k") == 2 })
	s.endLife()
	for range 2 {
		if answer := <-answers; !strings.Contains(answer.Body.String(), string(codeShuttingDown)) {
			t.Errorf("%d %s", answer.Code, answer.Body)
		}
	}
}

// TestKeyTable: a key is forgotten when the TTL of its handle has passed since it was granted or renewed; the oldest
// one of a caller when there are too many; and at once when nothing was granted. A request that comes while a claim
// is withdrawn does not wait for it.
func TestKeyTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var table keyTable
		table.init()
		never := func(context.Context, *keyedClaim) {}
		join := func(caller, key string) (*keyedClaim, bool) {
			k, waits, err := table.join(keyedID{caller, "a", key}, [sha256.Size]byte{}, never)
			if err != nil {
				t.Fatal(err)
			}
			return k, waits
		}
		k, waits := join("c", "k")
		if same, alsoWaits := join("c", "k"); !waits || !alsoWaits || same != k {
			t.Fatal("a second request did not join the first")
		}
		table.finish(k, lockHandle{Handle: holdfast.Handle{TTL: time.Minute}}, time.Now(), nil)
		time.Sleep(50 * time.Second)
		if same, waits := join("c", "k"); same != k || waits {
			t.Fatal("the handle is not known any more")
		}
		table.renewed(k, time.Minute, time.Now())
		time.Sleep(59 * time.Second)
		if same, _ := join("c", "k"); same != k {
			t.Fatal("the handle is not known after a renewal")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(table.byID) != 0 || len(table.byCaller) != 0 {
			t.Fatalf("%v, %v after the TTL", table.byID, table.byCaller)
		}

		k, _ = join("c", "k")
		if !table.leave(k, errWaitLimit) {
			t.Fatal("the only request is not the last")
		}
		if same, waits := join("c", "k"); same != k || waits {
			t.Fatal("a request waits for a claim that is withdrawn")
		}
		table.finish(k, lockHandle{}, time.Now(), errors.New("withdrawn"))
		if len(table.byID) != 0 {
			t.Fatal("a key of nothing is known")
		}

		other, _ := join("other", "0")
		oldest, _ := join("c", "0")
		for i := range keysPerCaller {
			join("c", fmt.Sprint(i+1))
		}
		if len(table.byID) != keysPerCaller+1 || table.byID[other.id] != other || table.byID[oldest.id] != nil {
			t.Fatalf("there are %d keys", len(table.byID))
		}
		table.finish(oldest, lockHandle{Handle: holdfast.Handle{TTL: time.Minute}}, time.Now(), nil) // its requests still get it
		again, _ := join("c", "0")
		time.Sleep(time.Minute)
		synctest.Wait()
		if table.byID[again.id] != again {
			t.Fatal("the end of a claim that was forgotten has removed another one")
		}
	})
}

// TestRetryOfWithdrawnClaim: a retry that comes while a claim is withdrawn makes one of its own when that has ended.
func TestRetryOfWithdrawnClaim(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	r := httptest.NewRequest(http.MethodPost, "/v1/locks/a/try", nil)
	c := claim{name: "a", kind: holdfast.KindMutex, limited: true, opts: holdfast.LockOptions{TTL: time.Minute}}
	id := keyedID{nameOfCaller(r), "a", "k"}
	k, _, err := s.keys.join(id, hashOptions(&c, acquireBody{}), func(context.Context, *keyedClaim) {})
	if err != nil {
		t.Fatal(err)
	}
	s.keys.leave(k, context.Canceled)
	done := make(chan error)
	go func() {
		_, _, err := s.takeByKey(context.Background(), r, "k", &c, acquireBody{})
		done <- err
	}()
	s.keys.finish(k, lockHandle{}, time.Now(), context.Canceled)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.holder("a")
}
