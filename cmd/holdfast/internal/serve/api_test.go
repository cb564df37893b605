package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestHandleOfSeveralLocks: several locks without a connection are acquired, renewed and released together, and each
// needs the right to hold it.
func TestHandleOfSeveralLocks(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	other := s.want(http.MethodPost, "/v1/locks/c/try", `{"ttl_ms": 60000}`)
	const three = `{"ttl_ms": 60000, "also": ["c", "a"]}`
	if p := s.refuse(codeHeld, http.MethodPost, "/v1/locks/b/try", three); p["lock"] != "c" {
		t.Errorf("%v", p)
	}
	if !s.isFree("a") || !s.isFree("b") {
		t.Error("a lock is held, though not all are")
	}
	s.want(http.MethodPost, "/v1/handles/"+text(other, "handle")+"/release", "")
	got := s.want(http.MethodPost, "/v1/locks/b/acquire", three)
	var also []string
	for _, l := range got["also"].([]any) {
		also = append(also, l.(map[string]any)["lock"].(string))
	}
	if text(got, "lock") != "b" || strings.Join(also, " ") != "a c" {
		t.Errorf("%v", got)
	}
	handle := "/v1/handles/" + text(got, "handle")
	for _, name := range []string{"a", "b", "c"} {
		s.refuse(codeHeld, http.MethodPost, "/v1/locks/"+name+"/try", `{"ttl_ms": 60000}`)
	}
	if r := s.want(http.MethodPost, handle+"/renew", ""); number(s, r, "token") != number(s, got, "token") {
		t.Errorf("%v", r)
	}
	s.want(http.MethodPost, handle+"/release", "")
	for _, name := range []string{"a", "b", "c"} {
		if !s.isFree(name) {
			t.Errorf("%s is held", name)
		}
	}
	s.refuse(codeLost, http.MethodPost, handle+"/renew", "")

	// What is lost ends the handle, and the release frees the rest.
	got = s.want(http.MethodPost, "/v1/locks/b/try", three)
	handle = "/v1/handles/" + text(got, "handle")
	s.want(http.MethodPost, "/v1/locks/c/break", "")
	if p := s.refuse(codeLost, http.MethodPost, handle+"/renew", ""); p["cause"] != "broken" || p["lock"] != "c" {
		t.Errorf("%v", p)
	}
	if s.isFree("a") || s.isFree("b") {
		t.Error("the client may still be working under the other locks")
	}
	s.refuse(codeLost, http.MethodPost, handle+"/release", "")
	for _, name := range []string{"a", "b", "c"} {
		if !s.isFree(name) {
			t.Errorf("%s is held", name)
		}
	}
	many := `"0"` + strings.Repeat(`, "x"`, maxAlso)
	for _, also := range []string{`"b"`, `"a", "a"`, `""`, many} {
		s.refuse(codeInvalid, http.MethodPost, "/v1/locks/b/try", `{"ttl_ms": 60000, "also": [`+also+`]}`)
	}
}

// TestHandleFitsInAPath: what is granted can be released, however long the names are; and what could not be is refused
// before anything is granted.
func TestHandleFitsInAPath(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.header.Set("Authorization", "Bearer "+strings.Repeat("x", 4<<10)) // there is room for the headers of a request
	for _, letter := range []string{"x", "<", `"`} {
		name := func(i int) string { return strings.Repeat(letter, 510) + fmt.Sprintf("%02d", i) }
		var also []string
		for i := range maxAlso {
			also = append(also, name(i))
		}
		body, err := json.Marshal(map[string]any{"ttl_ms": 60000, "also": also})
		if err != nil {
			t.Fatal(err)
		}
		path := "/v1/locks/-/try?name=" + url.QueryEscape(name(maxAlso))
		if letter == "x" {
			handle := text(s.want(http.MethodPost, path, string(body)), "handle")
			s.want(http.MethodPost, "/v1/handles/"+handle+"/release", "")
			continue
		}
		s.refuse(codeInvalid, http.MethodPost, path, string(body))
		if !s.isFree(name(0)) || !s.isFree(name(maxAlso)) {
			t.Errorf("%q: something was granted", letter)
		}
		handle := text(s.want(http.MethodPost, path, `{"ttl_ms": 60000}`), "handle")
		s.want(http.MethodPost, "/v1/handles/"+handle+"/release", "")
	}
}

// TestWrongTypes: the problem of a field with a wrong type names the field, and what it must be, with an example.
func TestWrongTypes(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	for body, want := range map[string]string{
		`{"ttl_ms": "5s"}`:              "ttl_ms must be a whole number of milliseconds, such as 5000, not a string",
		`{"ttl_ms": 1.5}`:               "ttl_ms must be a whole number of milliseconds, such as 5000, not number 1.5",
		`{"ttl_ms": 5000, "also": "x"}`: `also must be a list of strings, such as ["db", "cache"], not a string`,
		`{"ttl_ms": 5000, "also": [1]}`: `also must be a list of strings, such as ["db", "cache"], not a number`,
		`{"fair": 1}`:                   "fair must be true or false, not a number",
		`{"kind": ["rw"]}`:              `kind must be a string, such as "nightly", not a list`,
		`{"limit": true}`:               "limit must be a whole number, such as 5, not true or false",
		`[]`:                            `the body must be an object, such as {"ttl_ms": 5000}, not a list`,
	} {
		if p := s.refuse(codeInvalid, http.MethodPost, "/v1/locks/a/try", body); p["detail"] != want {
			t.Errorf("%s: %v, want %s", body, p["detail"], want)
		}
	}
}

// TestReleasedTwice: a handle that was released is as one that was lost, since its lock has left nothing in the store.
// Nobody's lock is freed by that, also not a later one of the same name.
func TestReleasedTwice(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	handle := "/v1/handles/" + text(s.want(http.MethodPost, "/v1/locks/a/try", `{"ttl_ms": 60000}`), "handle")
	s.want(http.MethodPost, handle+"/release", "")
	s.refuse(codeLost, http.MethodPost, handle+"/release", "")
	s.want(http.MethodPost, "/v1/locks/a/try", `{"ttl_ms": 60000}`)
	s.refuse(codeLost, http.MethodPost, handle+"/release", "")
	if s.isFree("a") {
		t.Error("a handle has released the lock of another one")
	}
}

// TestHandles: a lock without a connection is renewed and released by its handle, at any server of the store. What is
// promised of it is what the store has, also to a caller that has written another TTL into its handle.
func TestHandles(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	got := s.want(http.MethodPost, "/v1/locks/a/try", `{"ttl_ms": 60000}`)
	handle := "/v1/handles/" + text(got, "handle")
	p := s.refuse(codeHeld, http.MethodPost, "/v1/locks/a/try", `{"ttl_ms": 60000}`)
	if holders, _ := p["holders"].([]any); len(holders) != 1 {
		t.Errorf("%v", p)
	}
	s.refuse(codeTimeout, http.MethodPost, "/v1/locks/a/acquire", `{"ttl_ms": 60000, "wait_ms": 20}`)
	if r := s.want(http.MethodPost, handle+"/renew", ""); number(s, r, "token") != number(s, got, "token") ||
		number(s, r, "remaining_ms") >= 60000 {
		t.Errorf("%v", r)
	}
	changed, err := decodeHandle(text(got, "handle"))
	if err != nil {
		t.Fatal(err)
	}
	changed.TTL = s.client.Info().MaxTTL
	if r := s.want(http.MethodPost, "/v1/handles/"+encodeHandle(changed.Handle)+"/renew", ""); number(s, r, "ttl_ms") != 60000 ||
		number(s, r, "remaining_ms") >= 60000 {
		t.Errorf("%v", r)
	}
	changed.TTL *= 2
	s.refuse(codeInvalid, http.MethodPost, "/v1/handles/"+encodeHandle(changed.Handle)+"/renew", "")
	s.want(http.MethodPost, handle+"/release", "")
	s.refuse(codeLost, http.MethodPost, handle+"/renew", "")
	next := s.want(http.MethodPost, "/v1/locks/a/acquire", `{"ttl_ms": 60000, "wait_ms": 60000}`)
	if number(s, next, "token") <= number(s, got, "token") {
		t.Errorf("%v is not later than %v", next, got)
	}
	// An operator breaks it: the next renewal says so, and frees the lock.
	s.want(http.MethodPost, "/v1/locks/a/break", "")
	if s.isFree("a") {
		t.Error("the lock is free before its holder knows")
	}
	if p := s.refuse(codeLost, http.MethodPost, "/v1/handles/"+text(next, "handle")+"/renew", ""); p["cause"] != "broken" {
		t.Errorf("%v", p)
	}
	s.lock("a")
	s.refuse(codeInvalid, http.MethodPost, "/v1/locks/a/try", "")
	s.refuse(codeInvalid, http.MethodPost, "/v1/locks/a/try", `{"ttl_ms": 60000, "wait_ms": 1}`)
	for _, handle := range []string{"x", "e30", "bnVsbA"} {
		s.refuse(codeInvalid, http.MethodPost, "/v1/handles/"+handle+"/renew", "")
	}
}

// TestClientGoesWithoutItsHandle: a client that goes away while it waits for a handle leaves no lock that is held.
func TestClientGoesWithoutItsHandle(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	holder := s.lock("a")
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/locks/a/acquire",
			strings.NewReader(`{"ttl_ms": 86400000, "fair": true}`))
		r.Header.Set("Content-Type", "application/json")
		if answer, err := http.DefaultTransport.RoundTrip(r); err == nil {
			answer.Body.Close()
		}
	}()
	s.awaitWaiters("a", 1)
	cancel()
	<-gone
	s.awaitWaiters("a", 0)
	if err := holder.Release(); err != nil {
		t.Fatal(err)
	}
	s.lock("a")
}

// TestOperators: locks are listed, shown, watched, explained, asked for and broken, with the audit log.
func TestOperators(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	s := startServer(t, func(c *Config) { c.Audit = openAudit(t, path) })
	a := s.hold("a/1", `{"owner": "alice", "ttl_ms": 9000}`)
	got := a.next(eventAcquired)
	s.hold("b", "").next(eventAcquired)
	if list := s.want(http.MethodGet, "/v1/locks?prefix=a/", ""); len(list["locks"].([]any)) != 1 {
		t.Errorf("%v", list)
	}
	list := s.want(http.MethodGet, "/v1/locks?limit=1", "")
	if len(list["locks"].([]any)) != 1 || list["truncated"] != true {
		t.Errorf("%v", list)
	}
	if lock := s.want(http.MethodGet, "/v1/locks/a%2F1", ""); number(s, lock, "token") != number(s, got, "token") {
		t.Errorf("%v", lock)
	}
	plan := s.want(http.MethodPost, "/v1/locks/a%2F1/explain", `{"ttl_ms": 9000}`)
	if number(s, plan, "renew_every_ms") != 3000 {
		t.Errorf("%v", plan)
	}
	s.want(http.MethodGet, "/v1/store", "")
	s.want(http.MethodGet, "/v1/doctor", "")
	s.want(http.MethodGet, "/healthz", "")
	s.want(http.MethodGet, "/readyz", "")
	watcher := s.open(http.MethodGet, "/v1/locks/a%2F1/watch?heartbeat_ms=100", "")
	watcher.next(eventLock)
	watcher.next(eventHeartbeat)
	change := s.want(http.MethodPost, "/v1/locks/a%2F1/break", `{"force": true, "reason": "INC-7 is stuck"}`)
	if change["mode"] != "force" {
		t.Errorf("%v", change)
	}
	for {
		if line := watcher.next(eventLock); len(line["holders"].([]any)) == 0 {
			break
		}
	}
	if line := a.next(eventLost); line["cause"] != "broken" {
		t.Errorf("%v", line)
	}
	s.refuse(codeNotFound, http.MethodPost, "/v1/locks/free/break", "")
	s.refuse(codeNotFound, http.MethodPost, "/v1/locks/b/break", `{"ref": "x"}`)
	s.refuse(codeNotFound, http.MethodPost, "/v1/locks/free/request-release", "")
	s.refuse(codeInvalid, http.MethodGet, "/v1/locks?limit=0", "")
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"outcome":"started"`) ||
		!strings.Contains(lines[1], `"outcome":"done"`) || !strings.Contains(lines[0], `"owner":"alice"`) || !strings.Contains(lines[0], "INC-7") {
		t.Errorf("%q", lines)
	}
}

// TestBreakNeedsPermission: without --allow-break nothing is broken.
func TestBreakNeedsPermission(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(c *Config) { c.AllowBreak = false })
	holder := s.lock("a")
	s.refuse(codeBreakNotAllowed, http.MethodPost, "/v1/locks/a/break", `{"force": true}`)
	s.refuse(codeBreakNotAllowed, http.MethodPost, "/v1/ledgers/l/keys/k/forget", "")
	s.refuse(codeBreakNotAllowed, http.MethodPost, "/v1/ledgers/l/keys/k/retry", "")
	if err := holder.Release(); err != nil {
		t.Error(err)
	}
}

// TestFullAuditLog: nothing is broken that cannot be written to the audit log.
func TestFullAuditLog(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Log("this system has no /dev/full")
		return
	}
	s := startServer(t, func(c *Config) { c.Audit = openAudit(t, "/dev/full") })
	holder := s.lock("a")
	s.refuse(codeAuditFailed, http.MethodPost, "/v1/locks/a/break", `{"force": true}`)
	s.refuse(codeAuditFailed, http.MethodPost, "/v1/locks/a/request-release", "")
	s.refuse(codeAuditFailed, http.MethodPost, "/v1/ledgers/l/keys/k/forget", "")
	if err := holder.Release(); err != nil {
		t.Error(err)
	}
}

// TestRefusedAttempts: who has not the right to break a lock or to change a key, and tries to, is in the audit log,
// each caller only so often.
func TestRefusedAttempts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	s := startServer(t, func(c *Config) {
		c.Audit = openAudit(t, path)
		c.Access = mustParseAccess(t, tokenOfAlice+tokenOfBob+"see *")
	})
	s.refusals = newRateLimits(0.001)
	bob := s.as("bob")
	for range 3 {
		bob.refuse(codeForbidden, http.MethodPost, "/v1/locks/a%2Fb/break", `{"force": true}`)
	}
	s.refusals = newRateLimits(0.001)
	bob.refuse(codeForbidden, http.MethodPost, "/v1/ledgers/l/keys/-/forget?key=k", "")
	s.refuse(codeUnauthorized, http.MethodPost, "/v1/locks/a/break", "")
	bob.refuse(codeForbidden, http.MethodPost, "/v1/locks/a/hold", "")
	want := []string{
		`{"action":"break","by":"bob","code":"forbidden","from":"127.0.0.1","lock":"a/b","outcome":"refused"}`,
		`{"action":"forget","by":"bob","code":"forbidden","from":"127.0.0.1","key":"k","ledger":"l","outcome":"refused"}`,
	}
	if log, err := os.ReadFile(path); err != nil || string(log) != strings.Join(want, "\n")+"\n" {
		t.Errorf("%s %v", log, err)
	}
}

// goneStore calls gone when a claim is to be broken, and then does it if it still may.
type goneStore struct {
	driver.Store
	gone func()
}

func (s *goneStore) Break(ctx context.Context, name, ref string, b driver.Break) error {
	s.gone()
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.Store.Break(ctx, name, ref, b)
}

// TestAuditOfAClientThatGoes: a client that goes while its break is carried out changes neither that nor its record.
func TestAuditOfAClientThatGoes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	client, err := holdfast.New(&goneStore{Store: memory.New(nil).Open(), gone: cancel}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Mutex("a", nil).TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit")
	s := New(Config{Client: client, AllowBreak: true, Audit: openAudit(t, path)})
	r := httptest.NewRequest(http.MethodPost, "/v1/locks/a/break", strings.NewReader(`{"force": true}`)).WithContext(ctx)
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	s.handler.ServeHTTP(httptest.NewRecorder(), r)
	if log, err := os.ReadFile(path); err != nil || !strings.Contains(string(log), `"outcome":"done"`) {
		t.Errorf("%s %v", log, err)
	}
}

// TestLedger: a key is run until a run has succeeded, and never again.
func TestLedger(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	const key = "/v1/ledgers/l/keys/-"
	begin := func(body string) map[string]any { return s.want(http.MethodPost, key+"/begin?key=a%2Fb", body) }
	first := begin(`{"ttl_ms": 60000, "owner": "w1"}`)
	run := "/v1/runs/" + text(first, "run")
	p := s.refuse(codeInProgress, http.MethodPost, key+"/begin?key=a%2Fb", "")
	if text(p["run"].(map[string]any), "owner") != "w1" {
		t.Errorf("%v", p)
	}
	s.want(http.MethodPost, run+"/beat", "")
	s.want(http.MethodPost, run+"/fail", `{"error": "no paper"}`)
	s.refuse(codeNotFound, http.MethodPost, run+"/beat", "")
	second := begin("")
	if number(s, second, "attempt") != 2 || number(s, second, "token") <= number(s, first, "token") {
		t.Errorf("%v after %v", second, first)
	}
	run = "/v1/runs/" + text(second, "run")
	long := strings.Repeat("x", holdfast.MaxRunResult+1)
	s.refuse(codeInvalid, http.MethodPost, run+"/succeed", `{"result": "`+long+`"}`)
	s.refuse(codeInvalid, http.MethodPost, run+"/succeed", `{"result": "a", "result_base64": "YQ=="}`)
	s.refuse(codeInvalid, http.MethodPost, run+"/succeed", `{"result_base64": "%"}`)
	s.want(http.MethodPost, run+"/beat", "")
	s.want(http.MethodPost, run+"/succeed", `{"result": "42"}`)
	s.refuse(codeSucceeded, http.MethodPost, key+"/begin?key=a%2Fb", "")
	h := s.want(http.MethodGet, key+"?key=a%2Fb", "")
	runs := h["runs"].([]any)
	if len(runs) != 2 || text(runs[0].(map[string]any), "error") != "no paper" ||
		text(runs[1].(map[string]any), "result") != "42" {
		t.Errorf("%v", h)
	}
	list := s.want(http.MethodGet, "/v1/ledgers/l/keys?state=succeeded&state=failed", "")
	if len(list["runs"].([]any)) != 1 {
		t.Errorf("%v", list)
	}
	s.refuse(codeInvalid, http.MethodGet, "/v1/ledgers/l/keys?state=x", "")
	s.refuse(codeSucceeded, http.MethodPost, key+"/retry?key=a%2Fb", "")
	s.want(http.MethodPost, key+"/forget?key=a%2Fb", "")
	run = "/v1/runs/" + text(begin(""), "run")
	s.want(http.MethodPost, run+"/fail", "")
	s.want(http.MethodPost, key+"/retry?key=a%2Fb", "")
	s.refuse(codeInvalid, http.MethodPost, "/v1/ledgers/a%2Fb/keys/k/begin", "")
}

// TestRunWithoutBeats: a run whose worker is silent for its TTL ends, and the next worker gets the key.
func TestRunWithoutBeats(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	first := s.want(http.MethodPost, "/v1/ledgers/l/keys/k/begin", `{"ttl_ms": 3000}`)
	if number(s, first, "remaining_ms") >= 3000 {
		t.Errorf("%v", first)
	}
	next := s.want(http.MethodPost, "/v1/ledgers/l/keys/k/begin", `{"wait_ms": 60000}`)
	if number(s, next, "attempt") != 2 {
		t.Errorf("%v", next)
	}
	// The server may still be ending the first run when the store has given the key to the next one.
	path := "/v1/runs/" + text(first, "run") + "/succeed"
	for {
		if _, answer := s.call(http.MethodPost, path, ""); answer["code"] != string(codeReleased) {
			break
		}
	}
	s.refuse(codeNotFound, http.MethodPost, path, "")
}

// TestNamesInPaths: a name may have any characters, also those of paths, and no name leads out of the API.
func TestNamesInPaths(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	names := []string{"a/b", "../../etc/passwd", "..", ".", "-", "/", "//", " ", "%2F", "a?b#c", "ä\n\x01\"<>", "hold",
		strings.Repeat("x", 512)}
	for _, name := range names {
		path := "/v1/locks/-/try?name=" + url.QueryEscape(name)
		if got := s.want(http.MethodPost, path, `{"ttl_ms": 60000}`); got["lock"] != name {
			t.Errorf("%q: %v", name, got)
		}
		if name == "." || name == ".." || name == "/" { // which clients or the server's library resolve in a path
			continue
		}
		lock := s.want(http.MethodGet, "/v1/locks/"+url.PathEscape(name), "")
		if lock["lock"] != name || len(lock["holders"].([]any)) != 1 {
			t.Errorf("%q: %v", name, lock)
		}
	}
	var listed []string
	for _, lock := range s.want(http.MethodGet, "/v1/locks", "")["locks"].([]any) {
		listed = append(listed, text(lock.(map[string]any), "lock"))
	}
	slices.Sort(names)
	if !slices.Equal(listed, names) {
		t.Errorf("%q", listed)
	}
	for _, name := range []string{"%00", "%FF", strings.Repeat("x", 513)} {
		s.refuse(codeInvalid, http.MethodPost, "/v1/locks/"+name+"/hold", "")
		s.refuse(codeInvalid, http.MethodGet, "/v1/locks/"+name+"/watch", "")
	}
	s.refuse(codeNotFound, http.MethodGet, "/v1/files", "")
	s.refuse(codeMethodNotAllowed, http.MethodGet, "/v1/locks/a/hold", "")
}

// TestForeignPages: a web page of another origin can neither use the server nor give its own name the server's address.
func TestForeignPages(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(c *Config) { c.Hosts = []string{"locks.example.org"} })
	host := strings.TrimPrefix(s.url, "http://")
	for _, c := range []struct {
		header [2]string
		want   code
	}{
		{[2]string{"Host", "evil.example.org"}, codeHostRefused},
		{[2]string{"Host", "evil.example.org:7420"}, codeHostRefused},
		{[2]string{"Host", "127.0.0.1.evil.example.org"}, codeHostRefused},
		{[2]string{"Host", "localhost.evil.example.org"}, codeHostRefused},
		{[2]string{"Host", "locks.example.org"}, ""},
		{[2]string{"Host", "LOCALHOST:80"}, ""},
		{[2]string{"Host", "[::1]:80"}, ""},
		{[2]string{"Origin", "http://evil.example.org"}, codeOriginRefused},
		{[2]string{"Origin", "null"}, codeOriginRefused},
		{[2]string{"Origin", "https://" + host}, codeOriginRefused},
		{[2]string{"Origin", "http://localhost:1"}, codeOriginRefused},
		{[2]string{"Origin", "http://" + host}, ""},
		{[2]string{"Sec-Fetch-Site", "cross-site"}, codeOriginRefused},
		{[2]string{"Sec-Fetch-Site", "same-site"}, codeOriginRefused},
		{[2]string{"Sec-Fetch-Site", "same-origin"}, ""},
		{[2]string{"Sec-Fetch-Site", "none"}, ""},
	} {
		s.header = http.Header{}
		s.header.Set(c.header[0], c.header[1])
		if c.want == "" {
			s.want(http.MethodPost, "/v1/locks/-/explain?name=a", "")
			continue
		}
		s.refuse(c.want, http.MethodPost, "/v1/locks/a/hold", "")
		s.refuse(c.want, http.MethodGet, "/v1/locks", "")
	}
	// Behind a proxy that ends TLS, the browser knows that the page is of this server.
	s.header = http.Header{"Origin": {"https://" + host}, "Sec-Fetch-Site": {"same-origin"}}
	s.want(http.MethodPost, "/v1/locks/-/explain?name=a", "")
	s.header.Set("Sec-Fetch-Site", "same-site")
	s.refuse(codeOriginRefused, http.MethodPost, "/v1/locks/-/explain?name=a", "")
	// A link to the page may be anywhere. Nothing of it is loaded into a foreign page.
	for _, c := range []struct {
		site, mode, dest string
		want             int
	}{
		{"cross-site", "navigate", "document", http.StatusOK},
		{"cross-site", "navigate", "iframe", http.StatusForbidden},
		{"cross-site", "no-cors", "image", http.StatusForbidden},
		{"same-site", "no-cors", "script", http.StatusForbidden},
		{"cross-site", "", "", http.StatusForbidden},
		{"same-origin", "cors", "empty", http.StatusOK},
		{"none", "navigate", "document", http.StatusOK},
	} {
		s.header = http.Header{"Sec-Fetch-Site": {c.site}, "Sec-Fetch-Mode": {c.mode}, "Sec-Fetch-Dest": {c.dest}}
		answer := s.send(t.Context(), http.MethodGet, "/", "")
		answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%+v: %d", c, answer.StatusCode)
		}
	}
	// A form of a foreign page has no JSON.
	s.header = http.Header{}
	r, err := http.Post(s.url+"/v1/locks/a/hold", "text/plain", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("%d", r.StatusCode)
	}
}

// TestTokenInURL: a secret in a URL is refused, even a right one.
func TestTokenInURL(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	for _, query := range []string{"token=x", "access_token=x", "API_KEY=x", "Authorization=x"} {
		s.refuse(codeTokenInURL, http.MethodGet, "/v1/locks?"+query, "")
		s.refuse(codeTokenInURL, http.MethodPost, "/v1/locks/a/hold?"+query, "")
	}
	s.refuse(codeInvalid, http.MethodGet, "/v1/locks?%zz", "")
}

const testTokens = `
# hash of "a token of the billing"
sha256:47c1dfb7d5b0c5f5c7e4c1f1d9a7ee0dd4ac92be6d9a0a0bc12c1d9ae0c3a8f0 unused see "with space"
token:a-token-of-the-billing billing see,hold billing/
token:a-token-of-the-billing billing see *
token:a-token-of-another another see,hold billing/
token:a-token-of-operators ops see,hold,break *
`

// TestRightsByPrefix: each caller may do what the file of --tokens says, by prefix, and no more.
func TestRightsByPrefix(t *testing.T) {
	t.Parallel()
	access, err := parseAccess(strings.NewReader(testTokens), "tokens")
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, func(c *Config) { c.Access = access })
	s.refuse(codeUnauthorized, http.MethodGet, "/v1/locks", "")
	s.header.Set("Authorization", "Bearer wrong")
	s.refuse(codeUnauthorized, http.MethodGet, "/v1/locks", "")
	s.want(http.MethodGet, "/healthz", "")
	s.want(http.MethodGet, "/readyz", "")

	s.header.Set("Authorization", "Bearer a-token-of-the-billing")
	mine := s.hold("billing/1", "")
	got := mine.next(eventAcquired)
	if !strings.HasPrefix(text(got, "owner"), "billing ") {
		t.Errorf("%v", got)
	}
	s.refuse(codeForbidden, http.MethodPost, "/v1/locks/other/hold", "")
	s.refuse(codeForbidden, http.MethodPost, "/v1/locks/other/try", `{"ttl_ms": 1000}`)
	s.refuse(codeForbidden, http.MethodPost, "/v1/elections/other/campaign", "")
	s.refuse(codeForbidden, http.MethodPost, "/v1/ledgers/other/keys/k/begin", "")
	s.refuse(codeForbidden, http.MethodPost, "/v1/locks/billing%2F1/break", "")
	s.refuse(codeForbidden, http.MethodPost, "/v1/locks/other/request-release", "")
	s.refuse(codeForbidden, http.MethodPost, "/v1/ledgers/billing/keys/k/forget", "")
	s.want(http.MethodGet, "/v1/locks/other", "")
	s.want(http.MethodGet, "/v1/doctor", "")
	run := s.want(http.MethodPost, "/v1/ledgers/billing/keys/k/begin", "")

	s.header.Set("Authorization", "Bearer a-token-of-another")
	s.forgeHandle("billing/1")

	s.header.Set("Authorization", "Bearer a-token-of-operators")
	s.refuse(codeNotFound, http.MethodPost, "/v1/holds/"+text(got, "hold")+"/release", "") // another's
	s.refuse(codeNotFound, http.MethodPost, "/v1/runs/"+text(run, "run")+"/succeed", "")
	s.want(http.MethodPost, "/v1/locks/billing%2F1/break", `{"force": true, "ref": "`+text(got, "ref")+`"}`)
	mine.next(eventLost)

	// A browser sends a token as a password.
	r, err := http.NewRequest(http.MethodGet, s.url+"/v1/locks", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth("anybody", "a-token-of-operators")
	if answer, err := http.DefaultClient.Do(r); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%v %v", answer, err)
	} else {
		answer.Body.Close()
	}
	// Another file replaces the rights of the next requests.
	if access, err = parseAccess(strings.NewReader("token:a-token-of-operators ops see x/"), "tokens"); err != nil {
		t.Fatal(err)
	}
	s.SetAccess(access)
	s.refuse(codeForbidden, http.MethodGet, "/v1/locks/a", "")
	s.refuse(codeForbidden, http.MethodGet, "/v1/doctor", "")
	s.refuse(codeForbidden, http.MethodGet, "/metrics", "")
	if list := s.want(http.MethodGet, "/v1/locks", ""); len(list["locks"].([]any)) != 0 {
		t.Errorf("%v", list)
	}
}

// TestRightsOnSeveralLocks: who asks for several locks needs the right on each, and so does who has their handle.
func TestRightsOnSeveralLocks(t *testing.T) {
	t.Parallel()
	access, err := parseAccess(strings.NewReader(testTokens), "tokens")
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, func(c *Config) { c.Access = access })
	s.header.Set("Authorization", "Bearer a-token-of-the-billing")
	p := s.refuse(codeForbidden, http.MethodPost, "/v1/locks/billing%2F1/try", `{"ttl_ms": 60000, "also": ["billing/2", "other"]}`)
	if p["lock"] != "other" {
		t.Errorf("%v", p)
	}
	s.want(http.MethodPost, "/v1/locks/billing%2F1/try", `{"ttl_ms": 60000, "also": ["billing/2"]}`)
	s.header.Set("Authorization", "Bearer a-token-of-operators")
	got := s.want(http.MethodPost, "/v1/locks/billing%2F3/try", `{"ttl_ms": 60000, "also": ["other"]}`)
	s.header.Set("Authorization", "Bearer a-token-of-the-billing")
	s.refuse(codeForbidden, http.MethodPost, "/v1/handles/"+text(got, "handle")+"/renew", "")
	s.refuse(codeForbidden, http.MethodPost, "/v1/handles/"+text(got, "handle")+"/release", "")
	// Who may not see one of the locks does not learn who holds it.
	s.header.Set("Authorization", "Bearer a-token-of-another")
	p = s.refuse(codeHeld, http.MethodPost, "/v1/locks/billing%2F4/try", `{"ttl_ms": 60000, "also": ["billing/3"]}`)
	if p["holders"] == nil {
		t.Errorf("%v", p)
	}
}

// forgeHandle makes a handle of what a caller learns of a lock that another one holds, and must get nowhere with it.
func (s *testServer) forgeHandle(name string) {
	s.Helper()
	try := "/v1/locks/" + url.PathEscape(name) + "/try"
	holder := s.refuse(codeHeld, http.MethodPost, try, `{"ttl_ms": 60000}`)["holders"].([]any)[0].(map[string]any)
	forged := "/v1/handles/" + encodeHandle(holdfast.Handle{Name: name, Kind: holdfast.KindMutex, Limit: 1, Weight: 1,
		TTL: time.Minute, ID: text(holder, "ref"), Ref: text(holder, "ref"), Token: number(s, holder, "token")})
	s.refuse(codeLost, http.MethodPost, forged+"/renew", "")
	s.refuse(codeLost, http.MethodPost, forged+"/release", "")
	s.refuse(codeHeld, http.MethodPost, try, `{"ttl_ms": 60000}`)
}

// TestTokensFile: each wrong line of the file of --tokens is named with its number, and no error shows a credential.
func TestTokensFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                   "has no line",
		"x":                                  "fewer than four fields",
		"token:secret-secret-secret n see":   "fewer than four fields",
		"\nsecret n see *":                   "line 2: the credential must begin with",
		"secret:x n see *":                   "the credential must begin with",
		"token:secret n see *":               "fewer than 16 characters",
		"sha256:secret n see *":              "64 hexadecimal digits",
		"cert:a n look *":                    `"look" is no right`,
		"cert:a n see, hold *":               `"" is no right`,
		"cert:a n see a b":                   "behind the prefix",
		`cert:a n see "a`:                    "quoted wrongly",
		"cert:a n see a\ncert:a m see b":     "line 2: the same credential",
		"cert:" + strings.Repeat("x", 70000): "too long",
	} {
		_, err := parseAccess(strings.NewReader(text), "tokens")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.40q: want %q: %v", text, want, err)
		}
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("cert:a a see *"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAccess(path, nil); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAccess(path, nil); err == nil || !strings.Contains(err.Error(), "chmod o=") {
		t.Errorf("a file that everybody can read: %v", err)
	}
}

// TestLimits: streams, sizes and rates have limits, and a request beyond one of them is refused with a code.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(c *Config) { c.MaxStreams = 2 })
	first := s.hold("a", "")
	first.next(eventAcquired)
	s.hold("b", "").next(eventAcquired)
	s.refuse(codeTooManyStreams, http.MethodPost, "/v1/locks/c/hold", "")
	s.refuse(codeTooManyStreams, http.MethodGet, "/v1/locks/c/watch", "")
	first.close()
	s.await("room", func() bool { return s.streams.open.Load() < 2 })
	s.hold("c", "").next(eventAcquired)
	s.refuse(codeTooLarge, http.MethodPost, "/v1/locks/d/hold", `{"note": "`+strings.Repeat("x", maxBody)+`"}`)

	slow := startServer(t, func(c *Config) { c.Rate = 0.001 })
	slow.want(http.MethodGet, "/v1/locks/a", "")
	if p := slow.refuse(codeRateLimited, http.MethodGet, "/v1/locks/a", ""); number(slow, p, "retry_after_ms") == 0 {
		t.Errorf("%v", p)
	}
	slow.want(http.MethodGet, "/healthz", "")
}

// TestMetrics: the metrics of the server and of the library are in Prometheus's text format.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	s.hold("a", "").next(eventAcquired)
	s.refuse(codeNotFound, http.MethodGet, "/v1/x", "")
	answer := s.send(context.Background(), http.MethodGet, "/metrics", "")
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"holdfast_serve_streams 1\n", `holdfast_serve_problems_total{code="not-found"} 1` + "\n",
		"# TYPE holdfast_serve_holds_ended_total counter\n"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%q is not in\n%s", want, body)
		}
	}
}

// FuzzRequests: no request makes the server panic, answer with something that is not JSON, or call its own mistake one.
// Run it longer with: go test -fuzz FuzzRequests
func FuzzRequests(f *testing.F) {
	for _, r := range (&Server{}).routes() {
		f.Add(r.method, r.path, `{"ttl_ms": 1000}`, "Authorization", "Bearer x")
	}
	f.Add(http.MethodPost, "/v1/locks/%2e%2e%2fa/hold?name=x&token=", `{"kind":"semaphore","limit":1e3}`, "Origin", "null")
	f.Add(http.MethodPost, "/v1/handles/eyJuYW1lIjoiYSIsImlkIjoiYiIsInR0bF9ucyI6MX0/release", ``, "Host", "localhost")
	f.Fuzz(func(t *testing.T, method, path, body, header, value string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || method == "" || strings.ContainsAny(method, " \x00\r\n") {
			return
		}
		s := fuzzServer(t)
		ctx, cancel := context.WithCancel(context.Background())
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body)).WithContext(ctx)
		r.Method, r.URL, r.Host = method, u, "localhost"
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(header, value)
		w := &endingRecorder{ResponseRecorder: httptest.NewRecorder(), end: cancel}
		defer cancel()
		func() {
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler {
					panic(p)
				}
			}()
			s.handler.ServeHTTP(w, r)
		}()
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %s: %s", method, path, w.Body)
		}
		if strings.Contains(w.Header().Get("Content-Type"), "json") {
			for in := json.NewDecoder(w.Body); ; {
				var v any
				if err := in.Decode(&v); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%s %s: %v", method, path, err)
				}
			}
		}
	})
}

// endingRecorder ends the request with the first line of a stream.
type endingRecorder struct {
	*httptest.ResponseRecorder
	end func()
}

func (w *endingRecorder) Flush() { w.end() }

func fuzzServer(t *testing.T) *Server {
	client := newMemoryClient(t)
	return New(Config{Client: client, Store: "memory:", AllowBreak: true, MaxStreams: 10})
}

// TestBeginUnanswered: a run that its client was never told of, because the answer could not be sent, leaves nothing
// in the history: it uses up no attempt, and no pause begins.
func TestBeginUnanswered(t *testing.T) {
	s := startServer(t, nil)
	body := `{"max_attempts": 1, "pause_ms": 3600000}`
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/v1/ledgers/l/keys/k/begin", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Host = "localhost"
		s.handler.ServeHTTP(&deadRecorder{httptest.NewRecorder()}, r)
		if runs, err := s.direct.Ledger("l", nil).History(t.Context(), "k"); err != nil || len(runs) != 0 {
			t.Fatalf("the history is %+v, %v", runs, err)
		}
	}
	if n := s.runs.count(); n != 0 {
		t.Errorf("%d runs are kept", n)
	}
	answer := s.send(t.Context(), http.MethodPost, "/v1/ledgers/l/keys/k/begin", body)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("a run after those that nobody was told of: %s", answer.Status)
	}
}

// TestBeginClientGone: a client that goes while its run begins is told nothing, and leaves no run, also if the answer
// could be sent.
func TestBeginClientGone(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	store := memory.New(nil)
	client, err := holdfast.New(departureStore{store.Open(), leave}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	direct, err := holdfast.New(store.Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	s := startServer(t, func(c *Config) { c.Client = client })
	r := httptest.NewRequest(http.MethodPost, "/v1/ledgers/l/keys/k/begin", strings.NewReader("{}")).WithContext(gone)
	r.Header.Set("Content-Type", "application/json")
	r.Host = "localhost"
	answer := httptest.NewRecorder()
	s.handler.ServeHTTP(answer, r)
	if gone.Err() == nil || answer.Code == http.StatusOK {
		t.Errorf("the answer is %d %s (%v)", answer.Code, answer.Body, gone.Err())
	}
	if runs, err := direct.Ledger("l", nil).History(t.Context(), "k"); err != nil || len(runs) != 0 {
		t.Errorf("the history is %+v, %v", runs, err)
	}
	if n := s.runs.count(); n != 0 {
		t.Errorf("%d runs are kept", n)
	}
}

// departureStore calls leave when a run has begun.
type departureStore struct {
	driver.Store
	leave func()
}

func (s departureStore) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return departureLedger{l, s.leave}, err
}

type departureLedger struct {
	driver.Ledger
	leave func()
}

func (l departureLedger) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	defer l.leave()
	return l.Ledger.Acquire(ctx, c)
}

// deadRecorder is the answer to a client that has gone.
type deadRecorder struct{ *httptest.ResponseRecorder }

func (deadRecorder) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// silentStore leaves the waits for one lock without an answer, but not the rest.
type silentStore struct{ driver.Store }

func (s silentStore) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if c.Name == "silent" {
		<-ctx.Done()
		return driver.Grant{}, &driver.SilentError{For: 4800 * time.Millisecond, Err: ctx.Err()}
	}
	return s.Store.Acquire(ctx, c)
}

// TestTimeoutTellsWhy: the answer to a wait whose time has passed says who holds the lock, or for how long the store
// has not answered.
func TestTimeoutTellsWhy(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(silentStore{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s := startServer(t, func(c *Config) { c.Client = client })
	s.want(http.MethodPost, "/v1/locks/busy/try", `{"ttl_ms": 60000, "owner": "boss"}`)
	busy := s.refuse(codeTimeout, http.MethodPost, "/v1/locks/busy/acquire", `{"ttl_ms": 60000, "wait_ms": 20}`)
	if holders, _ := busy["holders"].([]any); len(holders) != 1 || busy["silent_ms"] != nil ||
		!strings.Contains(fmt.Sprint(busy["detail"]), "held by boss") {
		t.Errorf("busy: %v", busy)
	}
	silent := s.refuse(codeTimeout, http.MethodPost, "/v1/locks/silent/acquire", `{"ttl_ms": 60000, "wait_ms": 20}`)
	if silent["holders"] != nil || silent["silent_ms"] != 4800.0 ||
		!strings.Contains(fmt.Sprint(silent["detail"]), "the store has not answered for 4.8s") {
		t.Errorf("silent: %v", silent)
	}
}
