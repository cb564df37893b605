package consul

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

// openKeys opens a store with one key per lock for one test.
func openKeys(t testing.TB, c *consultest.Cluster, o *Options) *keyStore {
	t.Helper()
	s, err := New(t.Context(), c.Config(c.Members[0]), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*keyStore)
}

// expectForeign fails unless a claim that does not wait is refused because a foreign client holds the lock.
func expectForeign(t *testing.T, what string, s driver.Store, name string) {
	t.Helper()
	var held *driver.HeldError
	if _, err := s.Acquire(t.Context(), mutexClaim(name, time.Minute)); !errors.As(err, &held) ||
		len(held.Holders) != 1 || !held.Holders[0].Foreign {
		t.Errorf("%s: %v", what, err)
	}
}

// TestKeyConformance: with one key per lock, too, the store keeps every promise that it makes. The cases about odd
// names are left out: the names that these layouts refuse are in TestKeyNames.
func TestKeyConformance(t *testing.T) {
	c := rig.Shared(t)
	o := freshPrefix()
	o.Layout = LayoutLock
	storetest.Conform(t, drivertest.Harness{Slack: suiteSlack,
		Open: func(ctx context.Context) (driver.Store, error) { return New(ctx, c.Config(c.Members[0]), o) },
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
			return New(ctx, lossyConfig(c, fate), o)
		}}, drivertest.Options{Parallel: 16, Limit: caseLimit, LostReplies: 2, Refusals: 2, Effort: 0.3,
		Match: func(c drivertest.Case) bool { return !strings.HasPrefix(c.Name, "names") }})
}

// TestKeyInterop: the Lock of Consul's Go client excludes us, and is excluded by us.
func TestKeyInterop(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	admin := newAdmin(t, c)
	sessiontest.Interop(t, openKeys(t, c, &Options{Layout: LayoutKey}), driver.KindMutex,
		func(lock, file string) func() (int, error) {
			theirs, err := admin.LockOpts(&api.LockOptions{Key: lock, SessionTTL: "10s", LockDelay: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			return func() (int, error) {
				for added := range *sessiontest.Rounds {
					if _, err := theirs.Lock(nil); err != nil {
						return added, err
					}
					if err := errors.Join(sessiontest.AddOne(file), theirs.Unlock()); err != nil {
						return added, err
					}
				}
				return *sessiontest.Rounds, nil
			}
		})
}

// TestConsulLock: consul lock and this store exclude each other on the same name. Each leaves the lock free for the
// other, and tokens rise although consul lock deletes the key.
func TestConsulLock(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	program, err := consultest.Tool()
	if err != nil {
		t.Fatal(err)
	}
	run := func(options, script string) *exec.Cmd {
		args := append([]string{"lock", "-http-addr=" + c.Members[0].Endpoint, "-pass-stdin", "-child-exit-code"},
			strings.Fields(options)...)
		return exec.CommandContext(t.Context(), program, append(args, t.Name(), script)...)
	}
	s := openKeys(t, c, &Options{Layout: LayoutLock})
	var last int64
	for range 3 {
		g := acquire(t, s, waiting(mutexClaim(t.Name(), time.Minute)))
		if g.Token <= last {
			t.Errorf("the token %d came after %d", g.Token, last)
		}
		last = g.Token
		if out, err := run("-timeout=300ms", "true").CombinedOutput(); err == nil {
			t.Errorf("we hold the lock, and consul lock gets it: %s", out)
		}
		release(t, s, g.Claim)

		theirs := run("", "echo held; read line")
		in, err1 := theirs.StdinPipe()
		out, err2 := theirs.StdoutPipe()
		if err := errors.Join(err1, err2, theirs.Start()); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "held" {
		}
		expectForeign(t, "consul lock holds it", s, t.Name())
		_ = in.Close() // read fails, and so does the script: that it ran until now is what counts
		_ = theirs.Wait()
	}
}

// TestLockDelay: after the session of a foreign holder was invalidated, its lock-delay bars the lock for us as well. A
// waiter gets the lock when the delay is over.
func TestLockDelay(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	admin, s := newAdmin(t, c), openKeys(t, c, &Options{Layout: LayoutKey})
	const delay = 2 * time.Second
	session, _, err := admin.Session().Create(&api.SessionEntry{TTL: "60s", LockDelay: delay}, nil)
	if err != nil {
		t.Fatal(err)
	}
	name := t.Name()
	theirs := &api.KVPair{Key: name, Session: session, Flags: lockFlags}
	if ok, _, err := admin.KV().Acquire(theirs, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	expectForeign(t, "held", s, name)
	before := time.Now()
	if _, err := admin.Session().Destroy(session, nil); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, s, waiting(mutexClaim(name, time.Minute)))
	if passed := time.Since(before); passed < delay {
		t.Errorf("the lock was granted %v after the session's end, within its lock-delay", passed)
	}
	release(t, s, g.Claim)

	long, _, err := admin.Session().Create(&api.SessionEntry{TTL: "60s", LockDelay: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs = &api.KVPair{Key: name + "/long", Session: long, Flags: lockFlags}
	if ok, _, err := admin.KV().Acquire(theirs, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := admin.Session().Destroy(long, nil); err != nil {
		t.Fatal(err)
	}
	_, err = s.Acquire(t.Context(), mutexClaim(theirs.Key, time.Minute))
	if !errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "lock-delay") {
		t.Errorf("a claim during a lock-delay: %v", err)
	}
}

// TestKeyForeign: a key that somebody else has locked in whatever way holds the lock; a key that is no lock is not
// overwritten; and a semaphore of Consul's clients is refused. A key that was there before is there after a release.
func TestKeyForeign(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	admin, s := newAdmin(t, c), openKeys(t, c, &Options{Layout: LayoutKey})
	session, _, err := admin.Session().Create(&api.SessionEntry{TTL: "60s", LockDelay: time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	name := t.Name()
	pair := &api.KVPair{Key: name, Session: session, Value: []byte("by hand")}
	if ok, _, err := admin.KV().Acquire(pair, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	expectForeign(t, "locked by hand, without flags", s, name)
	if ok, _, err := admin.KV().Release(pair, nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	g := acquire(t, s, mutexClaim(name, time.Minute))
	if ok, _, err := admin.KV().Acquire(pair, nil); ok || err != nil {
		t.Errorf("we hold the lock, and another session gets it: %v %v", ok, err)
	}
	release(t, s, g.Claim)
	if kv, _, err := admin.KV().Get(name, nil); err != nil || kv == nil || kv.Session != "" || kv.LockIndex < 2 {
		t.Errorf("after our release: %+v %v", kv, err)
	}
	data := &api.KVPair{Key: name + "/data", Value: []byte("42")}
	if _, err := admin.KV().Put(data, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), mutexClaim(data.Key, time.Minute)); !errors.Is(err, driver.ErrInvalid) ||
		!strings.Contains(err.Error(), "never a lock") {
		t.Errorf("a key with data: %v", err)
	}
	slots, err := admin.SemaphorePrefix(name+"/slots", 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slots.Acquire(nil); err != nil {
		t.Fatal(err)
	}
	commandLine := openKeys(t, c, &Options{Layout: LayoutLock})
	claim := mutexClaim(name+"/slots", time.Minute)
	if _, err := commandLine.Acquire(t.Context(), claim); !errors.Is(err, driver.ErrMismatch) {
		t.Errorf("a semaphore: %v", err)
	}
	l, err := commandLine.Inspect(t.Context(), claim.Name)
	if err != nil || len(l.Holders) != 1 || l.Holders[0].Owner != "consul lock -n" {
		t.Fatalf("a semaphore is shown as %+v, %v", l, err)
	}
	err = commandLine.Break(t.Context(), claim.Name, l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce})
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "delete its key") {
		t.Errorf("the break of a semaphore: %v", err)
	}
	if err := slots.Release(); err != nil {
		t.Fatal(err)
	}
}

// meanwhile calls a function once, when the reply to a transaction with a text has come and before its caller gets it.
type meanwhile struct {
	inner http.RoundTripper
	text  string
	do    atomic.Pointer[func()]
}

func (m *meanwhile) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return m.inner.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	reply, err := m.inner.RoundTrip(r)
	if bytes.Contains(body, []byte(m.text)) {
		if do := m.do.Swap(nil); do != nil {
			(*do)()
		}
	}
	return reply, err
}

// TestWithdrawChangedKey: a claim is withdrawn although another process asks for its release at the same time. Nobody
// would look for the claim again.
func TestWithdrawChangedKey(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o, config := freshPrefix(), c.Config(c.Members[0])
	o.Layout = LayoutLock
	hook := &meanwhile{inner: config.Transport, text: `"get-or-empty"`}
	config.HttpClient = &http.Client{Transport: hook}
	opened, err := New(t.Context(), config, o)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	s, other := opened.(*keyStore).nodes, openKeys(t, c, o)
	session, err := s.OpenSession(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	p := sequence.Payload{ID: "changed", Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: time.Minute}
	if l, err := s.Add(t.Context(), "m", session, 0, p, sequence.AddAlways); err != nil || len(l.Nodes) != 1 {
		t.Fatal(l, err)
	}
	ask := func() {
		l, err := other.Inspect(t.Context(), "m")
		if err == nil && len(l.Holders) == 1 {
			err = other.Break(t.Context(), "m", l.Holders[0].Ref, driver.Break{Mode: driver.BreakRequestRelease})
		}
		if err != nil {
			t.Error(l, err)
		}
	}
	hook.do.Store(&ask)
	if existed, err := s.Withdraw(t.Context(), "m", session, 0, p.ID); !existed || err != nil || hook.do.Load() != nil {
		t.Errorf("Withdraw returned %v, %v", existed, err)
	}
	if l, err := other.Inspect(t.Context(), "m"); err != nil || len(l.Holders) > 0 {
		t.Errorf("the lock is held: %+v %v", l, err)
	}
}

// TestOverwrittenKey: a claim whose key somebody has overwritten is renewed and shown, an operator can break it, and
// its release leaves nothing. The key stays locked when its value changes.
func TestOverwrittenKey(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o := freshPrefix()
	o.Layout = LayoutLock
	s, other, admin := openKeys(t, c, o), openKeys(t, c, o), newAdmin(t, c)
	g := acquire(t, s, mutexClaim("m", time.Hour))
	key := &api.KVPair{Key: s.nodes.keyOf("m"), Value: []byte("x")}
	if _, err := admin.KV().Put(key, nil); err != nil {
		t.Fatal(err)
	}
	if r := renew(t, s, g); r.Err != nil {
		t.Errorf("the renewal returned %v", r.Err)
	}
	l, err := other.Inspect(t.Context(), "m")
	if err != nil || len(l.Holders) != 1 || l.Holders[0].Token != g.Token || l.Holders[0].Owner != g.Owner {
		t.Errorf("the lock is %+v, %v", l, err)
	}
	for listed, err := range other.List(t.Context(), "") {
		if err != nil || listed.Name != "m" {
			t.Errorf("listed: %+v, %v", listed, err)
		}
	}
	if err := other.Break(t.Context(), "m", g.Ref, driver.Break{Mode: driver.BreakGraceful}); err != nil {
		t.Errorf("the break returned %v", err)
	}
	if r := renew(t, s, g); storetest.LossOf(r.Err) != driver.LossBroken {
		t.Errorf("after the break, the renewal returned %v", r.Err)
	}
	if _, err := admin.KV().Put(key, nil); err != nil {
		t.Fatal(err)
	}
	release(t, s, g.Claim)
	if keys, _, err := admin.KV().Keys(o.Prefix, "", nil); err != nil || len(keys) > 0 {
		t.Errorf("left: %q %v", keys, err)
	}
}

// TestOverwrittenWaiter: a waiting claim whose value somebody has overwritten ends, its caller is told why, and it does
// not stay in line.
func TestOverwrittenWaiter(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o, admin := freshPrefix(), newAdmin(t, c)
	holder, s := open(t, c.Config(c.Members[0]), o), open(t, c.Config(c.Members[0]), o)
	g := acquire(t, holder, mutexClaim("m", time.Hour))
	ended := make(chan error, 1)
	go func() { _, err := s.Acquire(t.Context(), waiting(mutexClaim("m", time.Hour))); ended <- err }()
	var ref string
	storetest.Eventually(t, "the claim waits", func() bool {
		l, err := s.Inspect(t.Context(), "m")
		if err == nil && len(l.Waiters) == 1 {
			ref = l.Waiters[0].Ref
		}
		return ref != ""
	})
	key, _, _ := strings.Cut(ref, "@")
	if _, err := admin.KV().Put(&api.KVPair{Key: s.nodes.lockDir("m") + key, Value: []byte("x")}, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if storetest.LossOf(err) != driver.LossBroken || !strings.Contains(err.Error(), "changed its node") {
			t.Errorf("Acquire returned %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the claim waits on")
	}
	release(t, holder, g.Claim)
	if l, err := holder.Inspect(t.Context(), "m"); err != nil || len(l.Holders)+len(l.Waiters) > 0 {
		t.Errorf("left: %+v %v", l, err)
	}
}

// TestDetachedKey: a detached claim that is released leaves no key, as any other that has made its key.
func TestDetachedKey(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o := freshPrefix()
	o.Layout = LayoutKey
	s, other, admin := openKeys(t, c, o), openKeys(t, c, o), newAdmin(t, c)
	g := acquire(t, s, mutexClaim("m", time.Minute))
	if err := s.Detach(t.Context(), g, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := other.Release(t.Context(), g.Claim, g.Ref); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{s.nodes.keyOf("m"), s.nodes.ticketKey("m")} {
		if kv, _, err := admin.KV().Get(key, nil); err != nil || kv != nil {
			t.Errorf("left: %+v %v", kv, err)
		}
	}
}

// TestKeysLikeErrors: a lock may have the name of an error of Consul, which quotes the key of what it has refused. A
// claim on it that comes second is told who holds it, and no lease of its client is lost.
func TestKeysLikeErrors(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	o, config := freshPrefix(), c.Config(c.Members[0])
	o.Layout = LayoutKey
	hook := &meanwhile{inner: config.Transport, text: `"get-or-empty"`}
	config.HttpClient = &http.Client{Transport: hook}
	s, err := New(t.Context(), config, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other := openKeys(t, c, o)
	g := acquire(t, s, mutexClaim("m", time.Minute))
	for _, name := range []string{"invalid session", "lock delay", "Permission denied", "unknown verb", `"invalid session"`} {
		first := mutexClaim(name, time.Minute)
		claimFirst := func() {
			if _, err := other.Acquire(t.Context(), first); err != nil {
				t.Errorf("%s: the first claim: %v", name, err)
			}
		}
		hook.do.Store(&claimFirst) // when the second has found the lock free
		var held *driver.HeldError
		if _, err := s.Acquire(t.Context(), mutexClaim(name, time.Minute)); !errors.As(err, &held) ||
			len(held.Holders) != 1 || held.Holders[0].Token == 0 || held.Holders[0].Foreign || hook.do.Load() != nil {
			t.Errorf("%s: the second claim: %v", name, err)
		}
		release(t, other, first)
	}
	if r := renew(t, s, g); r.Err != nil {
		t.Errorf("another lease of the client: %v", r.Err)
	}
}

// TestKeyOneSession: of two claims of one client, which share a session, one is granted. A key that only we have used
// leaves nothing.
func TestKeyOneSession(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	s := openKeys(t, c, &Options{Layout: LayoutKey, Prefix: freshPrefix().Prefix})
	g := acquire(t, s, mutexClaim("m", time.Minute))
	if _, err := s.Acquire(t.Context(), mutexClaim("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("another claim of the same client: %v", err)
	}
	release(t, s, g.Claim)
	if keys, _, err := newAdmin(t, c).KV().Keys(s.nodes.opts.Prefix, "", nil); err != nil || len(keys) > 0 {
		t.Errorf("left: %q %v", keys, err)
	}
}
