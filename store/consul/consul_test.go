package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

var (
	mustOpen       = storetest.Open
	mutexClaim     = storetest.Mutex
	waiting        = storetest.Waiting
	acquire        = storetest.Acquire
	renew          = storetest.Renew
	release        = storetest.Release
	expectFindings = storetest.ExpectFindings
)

// TestNames: each name has keys of its own, which arrive as they were sent, and from which the name can be read.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, name := range []string{"a", "A", "a/b", "a//b", "/a", "a/", "/", "//", ".", "..", "a/../b", ".claims",
		"a/.claims", "%", "a/%/b", "%2F", "a b", "a+b", "a%2Bb", "ä/ö", "\x01", "a?b#c", "a\\b", ".holdfast/gates",
		strings.Repeat("ü", 256)} {
		key := encodeName(name)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have the key %q", name, other, key)
		}
		seen[key] = name
		if back, ok := decodeName(key); !ok || back != name {
			t.Errorf("%q has the key %q, which is %q", name, key, back)
		}
		for i := range len(name) {
			if start := encodePrefix(name[:i]); !strings.HasPrefix(key, start) {
				t.Errorf("the key %q of %q does not begin with %q", key, name, start)
			}
		}
	}
	c := rig.Shared(t)
	s, admin := open(t, c.Config(c.Members[0]), freshPrefix()), newAdmin(t, c)
	for key, name := range seen {
		g := acquire(t, s, mutexClaim(name, time.Minute))
		keys, _, err := admin.KV().Keys(s.nodes.opts.Prefix+key+claimFolder, "", nil)
		if err != nil || len(keys) != 1 {
			t.Errorf("%q: %q %v", name, keys, err)
		}
		release(t, s, g.Claim)
	}
	for _, text := range []string{"%zz", "a/%2e", "", "%/%20x%", "ab%41"} {
		if name, ok := decodeName(text); ok {
			t.Errorf("%q is taken for the key of %q", text, name)
		}
	}
}

// TestURL: each option of the URL has its effect. Errors about a URL do not show its secrets.
func TestURL(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	parse := func(raw string) (*api.Config, Options) {
		t.Helper()
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		c, o, err := readURL(u)
		if err != nil {
			t.Fatal(err)
		}
		return c, o
	}
	c, o := parse("consul://h:7?prefix=p/&node=n&dc=d&tls=true&tls-name=x&token-file=" + file)
	if c.Address != "h:7" || c.Scheme != "https" || c.Token != "s3cret" || c.Datacenter != "d" ||
		c.Transport.TLSClientConfig.ServerName != "x" || o.Prefix != "p/" || o.Node != "n" {
		t.Errorf("%+v %+v", c, o)
	}
	if c, _ := parse("consul://:s3cret@h"); c.Address != "h:8500" || c.Scheme != "http" || c.Token != "s3cret" {
		t.Errorf("%+v", c)
	}
	if s := mustOpen(t, "consul://:s3cret@h"); s.Info().Store != "consul://h:8500/holdfast/" {
		t.Error(s.Info().Store)
	}
	for _, raw := range []string{
		"consul://:s3cret@h?nope=1", "consul://s3cret@h", "consul://s3cret:x@h", "consul://:s3cret@h/path",
		"consul://:s3cret@h,i", "consul://:s3cret@h?prefix=/a", "consul://:s3cret@h?prefix=a//b",
		"consul://:s3cret@h?prefix=..", "consul://:s3cret@h?prefix=a%20b", "consul://:s3cret@h?tls=perhaps",
		"consul://:s3cret@h?tls-cert=/a", "consul://:s3cret@h?token-file=" + file, "consul://h?tls=false&tls-name=x",
		"consul://:s3cret@h?tls-ca=/does/not/exist", "consul://h?token-file=/does/not/exist",
	} {
		if _, err := driver.Open(t.Context(), raw); !errors.Is(err, driver.ErrInvalid) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := New(t.Context(), nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no settings: %v", err)
	}
	nobody := mustOpen(t, "consul://:s3cret@127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := nobody.(*store).nodes.List(ctx, "m", true); err == nil || driverutil.IsFinal(err) ||
		!errors.Is(err, record.ErrUnsent) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("nobody listens there: %v", err)
	}
}

// TestEnvironment: a URL without a host uses the environment variables of Consul's own tools, also for TLS.
func TestEnvironment(t *testing.T) {
	cert, both := storetest.WriteCertificate(t, filepath.Join(t.TempDir(), "server"))
	const token = "a-token-of-the-environment"
	c := start(t, consultest.Options{Token: token, Cert: cert, Key: both})
	t.Setenv(api.HTTPAddrEnvName, "https://"+c.Members[0].Endpoint)
	t.Setenv(api.HTTPTokenEnvName, token)
	t.Setenv(api.HTTPCAFile, cert)
	s := mustOpen(t, "consul://")
	release(t, s, acquire(t, s, mutexClaim("m", time.Minute)).Claim)
	expectFindings(t, "a server that is reached by TLS", s)
	if at := s.Info().Store; at != "consul://"+c.Members[0].Endpoint+"/holdfast/" {
		t.Error(at)
	}
}

// TestPlainEnvironment: by the environment, too, a connection to another machine without TLS is found, whatever word
// says that there is none.
func TestPlainEnvironment(t *testing.T) {
	for ssl, isPlain := range map[string]bool{"": true, "false": true, "0": true, "yes": true, "true": false, "1": false} {
		t.Setenv(api.HTTPAddrEnvName, "consul.example:8500")
		t.Setenv(api.HTTPSSLEnvName, ssl)
		if s := mustOpen(t, "consul://").(*store); s.nodes.isPlain != isPlain {
			t.Errorf("%s=%s: plain is %v", api.HTTPSSLEnvName, ssl, s.nodes.isPlain)
		}
	}
}

// TestTLS: the connection is encrypted if the URL says so, and the server's certificate is checked. What is wrong is
// said at once.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, both := storetest.WriteCertificate(t, filepath.Join(dir, "server"))
	other, _ := storetest.WriteCertificate(t, filepath.Join(dir, "other"))
	c := start(t, consultest.Options{Cert: cert, Key: both})
	s := mustOpen(t, c.URL()+"?tls-ca="+cert)
	release(t, s, acquire(t, s, mutexClaim("m", time.Minute)).Claim)
	for what, options := range map[string]string{"no TLS": "", "an unknown authority": "?tls-ca=" + other,
		"another name": "?tls-name=other&tls-ca=" + cert} {
		if _, err := mustOpen(t, c.URL()+options).Inspect(t.Context(), "m"); !errors.Is(err, driver.ErrDenied) ||
			!strings.Contains(err.Error(), "TLS") {
			t.Errorf("%s: %v", what, err)
		}
	}
	plain := rig.Shared(t).URL()
	if _, err := mustOpen(t, plain+"?tls=true").Inspect(t.Context(), "m"); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "leave the tls options out") {
		t.Errorf("a server without TLS: %v", err)
	}
}

// TestACL: a token with the rules that the documentation names suffices, and one with less is refused with what is
// missing. No error shows a token.
func TestACL(t *testing.T) {
	t.Parallel()
	c := start(t, consultest.Options{Token: "9d1a1ee2-0000-4000-8000-000000000001"})
	client := newAdmin(t, c)
	newToken := func(name, rules string) string {
		t.Helper()
		if _, _, err := client.ACL().PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
			t.Fatal(err)
		}
		token, _, err := client.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{Name: name}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return token.SecretID
	}
	at := func(token string) driver.Store {
		return mustOpen(t, strings.Replace(c.URL(), "//", "//:"+token+"@", 1))
	}
	const keys, session = `key_prefix "holdfast/" { policy = "write" } `, `session "holdfast" { policy = "write" } `
	const node = `node "holdfast" { policy = "write" }`
	for _, c := range []struct{ what, token string }{
		{"an unknown token", "9d1a1ee2-0000-4000-8000-0000000000ff"},
		{"no node", newToken("no-node", keys+session)},
		{"no sessions", newToken("no-sessions", keys+node)},
		{"no keys", newToken("no-keys", session+node)}, // the node is registered with this one
	} {
		_, err := at(c.token).Acquire(t.Context(), mutexClaim("m", time.Minute))
		if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "key_prefix") ||
			strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: %v", c.what, err)
		}
		if _, err := at(c.token).Inspect(t.Context(), "m"); c.what == "no keys" && !errors.Is(err, driver.ErrDenied) {
			t.Errorf("%s: to look at a lock: %v", c.what, err)
		}
	}
	enough := at(newToken("enough", keys+session+node))
	expectFindings(t, "a token for locks alone", enough, "consul-unseen")
	release(t, enough, acquire(t, enough, mutexClaim("m", time.Minute)).Claim)
	storetest.CheckFinish(t, storetest.OpenLedger(t, enough),
		acquire(t, storetest.OpenLedger(t, enough), storetest.NewRun("key")))
	jobs := mustOpen(t, strings.Replace(c.URL(), "//", "//:"+newToken("layout", `key_prefix "jobs/" { policy = "write" }
		key_prefix ".holdfast/" { policy = "write" } `+session)+"@", 1)+"?layout=lock")
	release(t, jobs, acquire(t, jobs, mutexClaim("jobs/nightly", time.Minute)).Claim)
	if _, err := jobs.Acquire(t.Context(), mutexClaim("other", time.Minute)); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), `key_prefix ".holdfast/"`) {
		t.Errorf("a lock for which the token has no rule: %v", err)
	}
	registered := at(newToken("registered", keys+session)) // the node exists
	release(t, registered, acquire(t, registered, mutexClaim("m", time.Minute)).Claim)
}

// TestMinTTL: where the servers grant no smaller TTL than is usual, a smaller one is raised to that.
func TestMinTTL(t *testing.T) {
	t.Parallel()
	c := start(t, consultest.Options{HCL: []string{`session_ttl_min = "10s"`}})
	s := open(t, c.Config(c.Members[0]), nil)
	g := acquire(t, s, mutexClaim("m", 2*time.Second))
	if p := s.Explain(g.Claim); g.GrantedTTL != 10*time.Second || p.TTL != 10*time.Second {
		t.Errorf("2 s were granted as %v, and Explain says %v", g.GrantedTTL, p.TTL)
	}
	release(t, s, g.Claim)
}

// TestSessionLife: a session ends by its TTL alone: it belongs to no agent's node, and to no health check. A session
// that somebody destroys ends the holder's lease, which learns of it without a renewal.
func TestSessionLife(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s, admin := open(t, c.Config(c.Members[0]), freshPrefix()), newAdmin(t, c)
	g := acquire(t, s, mutexClaim("m", time.Hour))
	l, err := s.Inspect(t.Context(), "m")
	if err != nil || len(l.Holders) != 1 {
		t.Fatal(l, err)
	}
	id, _, _ := strings.Cut(g.Ref, ".")
	entry, _, err := admin.Session().Info(id, nil)
	if err != nil || entry == nil {
		t.Fatalf("the session of %s: %v %v", g.Ref, entry, err)
	}
	if entry.Node != defaultNode || len(entry.NodeChecks)+len(entry.ServiceChecks)+len(entry.Checks) > 0 ||
		entry.Behavior != api.SessionBehaviorDelete || entry.LockDelay > time.Millisecond {
		t.Errorf("%+v", entry)
	}
	ended := make(chan driver.Ending, 1)
	go func() {
		if e, err := s.NextEnding(t.Context()); err == nil {
			ended <- e
		}
	}()
	if _, err := admin.Session().Destroy(id, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute): // a renewal would be due after 20 minutes
		t.Error("the holder has not learned that its session was destroyed")
	}
}

// TestFewConnections: a client with many waiters and many held locks keeps few connections, because all processes of a
// machine share those that its agent takes.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	const locks, watches, conns = 40, 32, 40
	c := rig.Shared(t)
	o, config := freshPrefix(), c.Config(c.Members[0])
	var opened connCounter
	config.Transport = &http.Transport{DialContext: opened.dial}
	s, other := open(t, config, o), open(t, c.Config(c.Members[0]), o)
	ctx, giveUp := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	for i := range locks {
		acquire(t, s, mutexClaim(fmt.Sprint("held", i), time.Hour))
		name := fmt.Sprint("awaited", i)
		acquire(t, other, mutexClaim(name, time.Hour))
		waiters.Go(func() {
			if _, err := s.Acquire(ctx, waiting(mutexClaim(name, time.Hour))); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	storetest.Eventually(t, "all wait", func() bool {
		count := 0
		for l, err := range s.List(t.Context(), "awaited") {
			if err != nil {
				t.Error(err)
			}
			count += len(l.Waiters)
		}
		return count == locks
	})
	storetest.Eventually(t, "all watches are there", func() bool {
		return countWatches(s) >= watches
	})
	time.Sleep(time.Second) // time enough for further ones
	if n := countWatches(s); n > watches {
		t.Errorf("the client has %d watches", n)
	}
	storetest.Eventually(t, "the connections of other requests are closed", func() bool { return opened.Load() <= conns })
	giveUp()
	waiters.Wait()
}

func countWatches(s *store) int {
	return s.nodes.waiterWatches.count(maxWaiterWatches) + s.nodes.holderWatches.count(maxHolderWatches)
}

// connCounter counts the open connections that it has made.
type connCounter struct{ atomic.Int64 }

func (c *connCounter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.Add(1)
	return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { c.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// TestKnownSessions: a client remembers no session but those of its claims, until these end. Others, such as those of
// the notes of breaks, it opens again and again.
func TestKnownSessions(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o := freshPrefix()
	s, other, admin := open(t, c.Config(c.Members[0]), o), open(t, c.Config(c.Members[0]), o), newAdmin(t, c)
	known := func() int {
		s.nodes.mu.Lock()
		defer s.nodes.mu.Unlock()
		return len(s.nodes.ownSessions)
	}
	ledger := storetest.OpenLedger(t, s)
	for i := range 3 {
		g := acquire(t, other, mutexClaim("m", time.Minute))
		if err := s.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
			t.Fatal(err)
		}
		storetest.CheckFinish(t, ledger, acquire(t, ledger, storetest.NewRun(fmt.Sprint("key", i))))
	}
	if n := known(); n > 0 {
		t.Errorf("without a claim, the client knows %d sessions", n)
	}
	g := acquire(t, s, mutexClaim("n", time.Hour))
	detached := acquire(t, s, mutexClaim("detached", time.Hour))
	if err := s.Detach(t.Context(), detached, time.Minute); err != nil {
		t.Fatal(err)
	}
	if n := known(); n != 1 {
		t.Errorf("with a claim, the client knows %d sessions", n)
	}
	id, _, _ := strings.Cut(g.Ref, ".")
	if _, err := admin.Session().Destroy(id, nil); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the session is forgotten", func() bool { return known() == 0 })
}

// heldReply holds the next reply to a renewal of a session back: the client's clock goes on by so much meanwhile.
type heldReply struct {
	inner http.RoundTripper
	by    atomic.Int64
	clock *atomic.Int64
}

func (h *heldReply) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := h.inner.RoundTrip(r)
	if strings.HasPrefix(r.URL.Path, "/v1/session/renew/") {
		h.clock.Add(h.by.Swap(0))
	}
	return reply, err
}

// TestLateRenewal: if a renewal is answered more than a TTL after the one before, the holder's lease is lost, and the
// client destroys the session and takes locks under another one. By then the leader may have begun to delete the
// session, and answers renewals until it has.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	const ttl = time.Hour // so that no renewal is sent but those of the test
	c := rig.Shared(t)
	config := c.Config(c.Members[0])
	var moved atomic.Int64
	held := &heldReply{inner: config.Transport, clock: &moved}
	config.HttpClient = &http.Client{Transport: held}
	o := freshPrefix()
	read := func() time.Duration { return driver.SystemClock.Monotonic() + time.Duration(moved.Load()) }
	o.Clock = driver.Clock{Monotonic: read, Boottime: read}
	s := open(t, config, o)
	g := acquire(t, s, mutexClaim("m", ttl))
	const between = ttl / 2 // of two renewals
	moved.Add(int64(between))
	held.by.Store(int64(ttl - between - time.Minute))
	if r := renew(t, s, g); r.Err != nil {
		t.Fatalf("a renewal that was answered in time: %v", r.Err)
	}
	moved.Add(int64(between))
	held.by.Store(int64(ttl))
	if r := renew(t, s, g); storetest.LossOf(r.Err) != driver.LossSessionExpired {
		t.Errorf("a renewal that was answered too late: %+v", r)
	}
	id, _, _ := strings.Cut(g.Ref, ".")
	admin := newAdmin(t, c)
	storetest.Eventually(t, "the session is destroyed", func() bool {
		entry, _, err := admin.Session().Info(id, nil)
		return err == nil && entry == nil
	})
	if again := acquire(t, s, mutexClaim("m", ttl)); strings.HasPrefix(again.Ref, id) {
		t.Errorf("the claim %s has the session from before", again.Ref)
	}
}

// TestExamine: each weak setting of the agent and of the store is found, and nothing else.
func TestExamine(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	member := c.Members[0]
	expectFindings(t, "a sound server", open(t, c.Config(member), nil))
	expectFindings(t, "the node of an agent", open(t, c.Config(member), &Options{Node: member.Name}), "consul-agent-node")
	far := c.Config(member)
	far.Address = "consul.example:8500"
	far.Transport.DialContext = openVia(member.Endpoint)
	expectFindings(t, "an agent on another machine", open(t, far, nil), "consul-plain")
	weak := start(t, consultest.Options{HCL: []string{`limits { http_max_conns_per_client = 20 }`}})
	expectFindings(t, "few connections", open(t, weak.Config(weak.Members[0]), nil), "consul-connections")
	two := start(t, consultest.Options{Members: 2})
	expectFindings(t, "two servers", open(t, two.Config(two.Members[1]), nil), "consul-servers")
	dev := start(t, consultest.Options{Dev: true})
	expectFindings(t, "development mode", open(t, dev.Config(dev.Members[0]), nil), "consul-dev")
}

// TestRequestsPerOperation: a claim that waits for its turn, or is sure that it may wait, takes a free lock with one
// request; a claim that does not wait needs a read before it. A renewal is a read and a keep-alive, and a release one
// request, even if this client has changed the claim.
func TestRequestsPerOperation(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	var sent atomic.Int64
	config := c.Config(c.Members[0])
	config.HttpClient = &http.Client{Transport: countingTransport{config.Transport, &sent}}
	s := open(t, config, freshPrefix())
	release(t, s, acquire(t, s, mutexClaim("warm", time.Hour)).Claim) // it opens the session
	expect := func(what string, most int64, do func()) {
		t.Helper()
		before := sent.Load()
		do()
		if n := sent.Load() - before; n > most {
			t.Errorf("%s took %d requests, not %d", what, n, most)
		}
	}
	var g driver.Grant
	expect("a claim that may wait", 1, func() { g = acquire(t, s, waiting(mutexClaim("m", time.Hour))) })
	expect("a renewal", 2, func() {
		if err := renew(t, s, g).Err; err != nil {
			t.Error(err)
		}
	})
	expect("a release", 1, func() { release(t, s, g.Claim) })
	g = acquire(t, s, mutexClaim("m", time.Hour))
	l, err := s.nodes.List(t.Context(), "m", true)
	if err != nil || len(l.Nodes) != 1 {
		t.Fatal(l, err)
	}
	changed := l.Nodes[0].Payload
	changed.Admitted = true
	if _, ok, err := s.nodes.Change(t.Context(), "m", l.Nodes[0], changed, sequence.Among{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	expect("a release of a claim that was changed", 1, func() { release(t, s, g.Claim) })
	expect("a claim that does not wait", 2, func() { g = acquire(t, s, mutexClaim("m", time.Hour)) })
	release(t, s, g.Claim)
}

// countingTransport counts the requests.
type countingTransport struct {
	inner http.RoundTripper
	sent  *atomic.Int64
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !r.URL.Query().Has("wait") { // else it is a watch
		c.sent.Add(1)
	}
	return c.inner.RoundTrip(r)
}

// openVia dials one address, whatever is asked for.
func openVia(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
}

// lateTransport keeps the next transaction that locks a key back: its caller gets an error, and deliver sends it.
type lateTransport struct {
	inner http.RoundTripper
	armed atomic.Bool
	late  *http.Request
}

func (l *lateTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/v1/txn" && l.armed.Load() {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"lock"`)) && l.armed.CompareAndSwap(true, false) {
			l.late = r.Clone(context.Background())
			return nil, errors.New("the connection was reset")
		}
	}
	return l.inner.RoundTrip(r)
}

// TestLateAdd: a request that adds a claim, and that arrives after the claim was withdrawn, has no effect.
func TestLateAdd(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	for _, layout := range []Layout{LayoutClaims, LayoutLock} {
		config := c.Config(c.Members[0])
		late := &lateTransport{inner: config.Transport}
		config.HttpClient = &http.Client{Transport: late}
		o := freshPrefix()
		o.Layout = layout
		opened, err := New(t.Context(), config, o)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		var s sequence.NodeStore
		switch opened := opened.(type) {
		case *store:
			s = opened.nodes
		case *keyStore:
			s = opened.nodes
		}
		session, err := s.OpenSession(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		p := sequence.Payload{ID: "late", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: time.Minute}
		late.armed.Store(true)
		if _, err := s.Add(t.Context(), "m", session, 0, p, sequence.AddAlways); err == nil {
			t.Fatalf("%s: the request was not kept back", layout)
		}
		if existed, err := s.Withdraw(t.Context(), "m", session, 0, p.ID); existed || err != nil {
			t.Fatal(layout, existed, err)
		}
		reply, err := late.inner.RoundTrip(late.late)
		if err != nil {
			t.Fatal(err)
		}
		_ = reply.Body.Close()
		if l, err := s.List(t.Context(), "m", true); err != nil || len(l.Nodes) > 0 {
			t.Errorf("%s: after its withdrawal, the claim is there: %+v %v", layout, l.Nodes, err)
		}
		if l, err := s.Add(t.Context(), "m", session, 1, p, sequence.AddAlways); err != nil || len(l.Nodes) != 1 {
			t.Errorf("%s: the next claim of the session: %+v %v", layout, l.Nodes, err)
		}
	}
}
