package serve

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

// rightsRow is a request, and what its route must ask for on the name jobs/x or jobs/k.
type rightsRow struct {
	route string
	needs right
	path  string // with bob's own {hold}, {run} and {handle}
	body  string
}

// rightsTable has each route at least once. What ends a lock comes last.
var rightsTable = []rightsRow{
	{"GET /v1/locks/{name}", rightSee, "/v1/locks/jobs%2Fx", ""},
	{"GET /v1/locks/{name}", rightSee, "/v1/locks/-?name=jobs%2Fx", ""},
	{"GET /v1/locks/{name}/watch", rightSee, "/v1/locks/jobs%2Fx/watch", ""},
	{"POST /v1/locks/{name}/explain", rightSee, "/v1/locks/jobs%2Fx/explain", ""},
	{"GET /v1/elections/{name}/leader", rightSee, "/v1/elections/jobs%2Fx/leader", ""},
	{"GET /v1/elections/{name}/observe", rightSee, "/v1/elections/jobs%2Fx/observe", ""},
	{"GET /v1/ledgers/{ledger}/keys/{key}", rightSee, "/v1/ledgers/jobs/keys/k", ""},
	{"GET /v1/ledgers/{ledger}/keys/{key}", rightSee, "/v1/ledgers/jobs/keys/-?key=k", ""},

	{"POST /v1/locks/{name}/hold", rightHold, "/v1/locks/jobs%2Fx/hold", `{"wait_ms": 0}`},
	{"POST /v1/locks/{name}/hold", rightHold, "/v1/locks/jobs%2Fx/hold", `{"wait_ms": 0, "kind": "rw"}`},
	{"POST /v1/locks/{name}/acquire", rightHold, "/v1/locks/jobs%2Fx/acquire", `{"wait_ms": 0, "ttl_ms": 9000}`},
	{"POST /v1/locks/{name}/try", rightHold, "/v1/locks/jobs%2Fx/try", `{"ttl_ms": 9000}`},
	{"POST /v1/elections/{name}/campaign", rightHold, "/v1/elections/jobs%2Fx/campaign", `{"wait_ms": 0}`},
	{"POST /v1/ledgers/{ledger}/keys/{key}/begin", rightHold, "/v1/ledgers/jobs/keys/k/begin", ""},
	{"POST /v1/ledgers/{ledger}/keys/{key}/begin", rightHold, "/v1/ledgers/jobs/keys/k/begin", `{"fingerprint": "b"}`},
	{"POST /v1/locks/{name}/request-release", rightHold, "/v1/locks/jobs%2Fx/request-release", ""},
	{"POST /v1/holds/{hold}/check", rightHold, "/v1/holds/{hold}/check", ""},
	{"POST /v1/holds/{hold}/release", rightHold, "/v1/holds/{hold}/release", ""},
	{"POST /v1/holds/{hold}/detach", rightHold, "/v1/holds/{hold}/detach", ""},
	{"POST /v1/handles/{handle}/renew", rightHold, "/v1/handles/{handle}/renew", ""},
	{"POST /v1/handles/{handle}/release", rightHold, "/v1/handles/{handle}/release", ""},
	{"POST /v1/runs/{run}/beat", rightHold, "/v1/runs/{run}/beat", ""},
	{"POST /v1/runs/{run}/fail", rightHold, "/v1/runs/{run}/fail", ""},
	{"POST /v1/runs/{run}/succeed", rightHold, "/v1/runs/{run2}/succeed", ""},

	{"GET /v1/locks", rightNone, "/v1/locks", ""},
	{"GET /v1/ledgers/{ledger}/keys", rightNone, "/v1/ledgers/jobs/keys", ""},
	{"GET /v1/store", rightNone, "/v1/store", ""},
	{"GET /healthz", rightNone, "/healthz", ""},
	{"GET /readyz", rightNone, "/readyz", ""},
	{"GET /v1/doctor", rightSeeAll, "/v1/doctor", ""},
	{"GET /metrics", rightSeeAll, "/metrics", ""},

	{"POST /v1/ledgers/{ledger}/keys/{key}/retry", rightBreak, "/v1/ledgers/jobs/keys/k/retry", ""},
	{"POST /v1/ledgers/{ledger}/keys/{key}/forget", rightBreak, "/v1/ledgers/jobs/keys/k/forget", ""},
	{"POST /v1/locks/{name}/break", rightBreak, "/v1/locks/jobs%2Fx/break", `{"ref": "none"}`},
	{"POST /v1/locks/{name}/break", rightBreak, "/v1/locks/jobs%2Fx/break", ""},
}

// TestEachRouteAsksForItsRight: each route asks for one right on what the request names, and answers those who have it.
// Without the right see, no answer says who holds a lock or runs a key, under which token, or with which note.
func TestEachRouteAsksForItsRight(t *testing.T) {
	t.Parallel()
	known := map[string]right{}
	for _, row := range rightsTable {
		known[row.route] = row.needs
	}
	for _, r := range (&Server{}).routes() {
		if known[r.method+" "+r.path] != r.needs || r.needs == 0 {
			t.Errorf("%s %s asks for the right %d, and rightsTable has %d", r.method, r.path, r.needs,
				known[r.method+" "+r.path])
		}
	}
	for _, rights := range []string{"none", "see", "hold", "break", "see,hold", "see,hold,break"} {
		t.Run(rights, func(t *testing.T) {
			t.Parallel()
			testRights(t, rights)
		})
	}
}

const (
	tokenOfAlice = "token:a-token-of-alice-0 alice see,hold,break *\n"
	tokenOfBob   = "token:a-token-of-bob-00 bob "
)

func mustParseAccess(t *testing.T, text string) *Access {
	t.Helper()
	a, err := parseAccess(strings.NewReader(text), "tokens")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// as is the server for somebody's requests.
func (s *testServer) as(name string) *testServer {
	own := *s
	own.header = http.Header{"Authorization": {map[string]string{"alice": "Bearer a-token-of-alice-0",
		"bob": "Bearer a-token-of-bob-00"}[name]}}
	return &own
}

func testRights(t *testing.T, rights string) {
	s := startServer(t, func(c *Config) {
		c.Access = mustParseAccess(t, tokenOfAlice+tokenOfBob+"see,hold,break jobs/")
	})
	alice, bob := s.as("alice"), s.as("bob")
	hold := bob.hold("jobs/own", "")
	own := []string{"{hold}", text(hold.next(eventAcquired), "hold"),
		"{handle}", text(bob.want(http.MethodPost, "/v1/locks/jobs%2Fhandle/try", `{"ttl_ms": 60000}`), "handle"),
		"{run}", text(bob.want(http.MethodPost, "/v1/ledgers/jobs/keys/own/begin", ""), "run"),
		"{run2}", text(bob.want(http.MethodPost, "/v1/ledgers/jobs/keys/own2/begin", ""), "run")}
	held := alice.hold("jobs/x", `{"owner": "SECRET-OWNER", "note": "SECRET-NOTE"}`).next(eventAcquired)
	run := alice.want(http.MethodPost, "/v1/ledgers/jobs/keys/k/begin",
		`{"owner": "SECRET-WORKER", "note": "SECRET-NOTE", "fingerprint": "SECRET-PRINT"}`)
	secrets := []string{"SECRET", text(held, "ref"), text(run, "id"),
		strconv.FormatInt(number(s, held, "token"), 10), strconv.FormatInt(number(s, run, "token"), 10)}

	has := map[right]bool{rightNone: true, rightSee: strings.Contains(rights, "see"),
		rightHold: strings.Contains(rights, "hold"), rightBreak: strings.Contains(rights, "break")}
	if rights == "none" {
		s.SetAccess(mustParseAccess(t, tokenOfAlice+tokenOfBob+"see,hold,break other/"))
	} else {
		s.SetAccess(mustParseAccess(t, tokenOfAlice+tokenOfBob+rights+" jobs/"))
	}
	for _, row := range rightsTable {
		method, _, _ := strings.Cut(row.route, " ")
		response := bob.send(t.Context(), method, strings.NewReplacer(own...).Replace(row.path), row.body)
		answer, err := bufio.NewReader(response.Body).ReadString('\n') // a stream goes on
		response.Body.Close()
		if err != nil {
			t.Fatalf("%s: %v: %q", row.path, err, answer)
		}
		refused := response.StatusCode == http.StatusForbidden
		if refused == has[row.needs] {
			t.Errorf("%s %s: %d %s", method, row.path, response.StatusCode, answer)
		}
		for _, secret := range secrets {
			if !has[rightSee] && strings.Contains(answer, secret) {
				t.Errorf("%s %s tells %q: %s", method, row.path, secret, answer)
			}
		}
		if has[rightSee] && row.needs == rightSee && !strings.Contains(answer, "SECRET") &&
			!strings.Contains(answer, `"keys"`) {
			t.Errorf("%s %s does not show who it is: %s", method, row.path, answer)
		}
	}
}

// TestWaitWithoutSee: who may hold a lock and not see it learns its own place in the queue, and not who holds the lock.
func TestWaitWithoutSee(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(c *Config) { c.Access = mustParseAccess(t, tokenOfAlice+tokenOfBob+"hold *") })
	a := s.as("alice").hold("x", `{"owner": "SECRET-OWNER", "note": "SECRET-NOTE"}`)
	a.next(eventAcquired)
	b := s.as("bob").hold("x", `{"fair": true}`)
	for line := b.next(eventWaiting); ; line = b.next(eventWaiting) {
		if strings.Contains(fmt.Sprint(line), "SECRET") || line["holders"] != nil {
			t.Errorf("%v", line)
		}
		if line["waiters"] != nil {
			break
		}
	}
	a.close()
	b.next(eventAcquired)
}

// TestHoldSeveralRevoked: who holds several locks needs the right on each: at first, as long as they are held, and to end
// them.
func TestHoldSeveralRevoked(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(c *Config) {
		c.Access = mustParseAccess(t, tokenOfBob+"see,hold a\n"+tokenOfBob+"see,hold b")
	})
	bob := s.as("bob")
	if p := bob.refuse(codeForbidden, http.MethodPost, "/v1/locks/a/hold", `{"also": ["b", "c"]}`); p["lock"] != "c" {
		t.Errorf("%v", p)
	}
	held := bob.hold("a", `{"also": ["b"], "ttl_ms": 600000}`)
	hold := "/v1/holds/" + text(held.next(eventAcquired), "hold")
	bob.want(http.MethodPost, hold+"/check", "")
	s.SetAccess(mustParseAccess(t, tokenOfBob+"see,hold a"))
	if lost := held.next(eventLost); lost["cause"] != "revoked" || lost["lock"] != "b" {
		t.Errorf("%v", lost)
	}
	if s.isFree("a") || s.isFree("b") {
		t.Error("others can hold a lock before the client has closed its connection")
	}
	bob.refuse(codeForbidden, http.MethodPost, hold+"/check", "")
	held.close()
	s.lock("a")
	s.lock("b")
}

// TestRevoked: when the file of --tokens takes a right away, what was begun with it ends. A holder is told that its
// lock is lost, and nobody else gets the lock before it has stopped. Who keeps the right notices nothing.
func TestRevoked(t *testing.T) {
	t.Parallel()
	both := tokenOfAlice + tokenOfBob + "see,hold *"
	s := startServer(t, func(c *Config) { c.Access = mustParseAccess(t, both) })
	alice, bob := s.as("alice"), s.as("bob")
	kept := alice.hold("kept", `{"heartbeat_ms": 100}`)
	kept.next(eventAcquired)
	held := bob.hold("held", `{"ttl_ms": 600000, "heartbeat_ms": 100}`)
	got := held.next(eventAcquired)
	holder := s.lock("busy")
	waits := bob.hold("busy", `{"fair": true}`)
	watcher := bob.open(http.MethodGet, "/v1/locks/busy/watch", "")
	watcher.next(eventLock)
	observer := bob.open(http.MethodGet, "/v1/elections/busy/observe", "")
	observer.next(eventLeader)
	run := bob.want(http.MethodPost, "/v1/ledgers/l/keys/k/begin", `{"ttl_ms": 600000}`)
	refused := make(chan string, 2)
	for path, body := range map[string]string{
		"/v1/locks/busy/acquire":     `{"ttl_ms": 600000, "fair": true}`,
		"/v1/ledgers/l/keys/k/begin": `{"ttl_ms": 600000, "wait_ms": 600000}`,
	} {
		go func() {
			response := bob.send(t.Context(), http.MethodPost, path, body)
			defer response.Body.Close()
			refused <- fmt.Sprint(path, " ", response.StatusCode)
		}()
	}
	s.awaitWaiters("busy", 2)
	s.await("7 streams", func() bool { return s.streams.open.Load() == 7 })

	s.SetAccess(mustParseAccess(t, both)) // nothing changes for anybody
	held.next(eventHeartbeat, eventRenewed)
	bob.want(http.MethodPost, "/v1/holds/"+text(got, "hold")+"/check", "")
	bob.want(http.MethodPost, "/v1/runs/"+text(run, "run")+"/beat", "")

	s.SetAccess(mustParseAccess(t, tokenOfAlice))
	if line := held.next(eventLost); line["cause"] != "revoked" {
		t.Errorf("%v", line)
	}
	for _, st := range []*stream{waits, watcher, observer} {
		line := st.next(eventFailed, eventLock)
		for line["event"] == string(eventLock) { // from before
			line = st.next(eventFailed, eventLock)
		}
		if line["code"] != string(codeForbidden) {
			t.Errorf("%v", line)
		}
	}
	for range 2 {
		if got := <-refused; !strings.HasSuffix(got, " 403") {
			t.Error(got)
		}
	}
	if s.isFree("held") {
		t.Error("the lock is free although its holder has not stopped")
	}
	held.close()
	s.await("a free lock", func() bool { return s.isFree("held") })
	if err := holder.Release(); err != nil {
		t.Error(err)
	}
	s.await("a free lock of which nobody has a handle", func() bool { return s.isFree("busy") })
	bob.refuse(codeUnauthorized, http.MethodPost, "/v1/runs/"+text(run, "run")+"/beat", "")
	kept.next(eventHeartbeat, eventRenewed)
}

// TestDescribeRights: a caller's rights in words are those that count on this server.
func TestDescribeRights(t *testing.T) {
	t.Parallel()
	some := &caller{grants: []grantedRights{{"billing/", operator.Rights{See: true, Hold: true}},
		{"ops/", operator.Rights{See: true, Break: true}}, {"x/", operator.Rights{Break: true}}}}
	for _, c := range []struct {
		caller     *caller
		allowBreak bool
		want       string
	}{
		{&caller{}, true, ""},
		{&caller{everything: true}, true, "see, hold, break all names"},
		{&caller{everything: true}, false, "see, hold all names"},
		{some, true, "see, hold names that begin with billing/; see, break names that begin with ops/; " +
			"break names that begin with x/"},
		{some, false, "see, hold names that begin with billing/; see names that begin with ops/"},
	} {
		if got := strings.Join(c.caller.describeRights(c.allowBreak), "; "); got != c.want {
			t.Errorf("%+v may %q, not %q", c.caller, got, c.want)
		}
	}
}
