package kubernetes_test

import (
	"bufio"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// elector is a process that takes part in an election of client-go: see tools/elector.
type elector struct {
	*exec.Cmd
	lines *bufio.Scanner
}

// startElector starts a process that leads so many times, or for rounds 0 until it is killed.
func startElector(t *testing.T, c *kubernetestest.Cluster, lease, identity string, seconds, rounds int, dir string) *elector {
	t.Helper()
	return startElectorAt(t, c.Address(), c.CAFile(), lease, identity, seconds, rounds, dir)
}

// startElectorAt is startElector with the address of a server and its certificate.
func startElectorAt(t *testing.T, server, ca, lease, identity string, seconds, rounds int, dir string) *elector {
	t.Helper()
	program, err := kubernetestest.Elector()
	if err != nil {
		t.Fatal(err)
	}
	e := &elector{Cmd: exec.Command(program, server, ca, kubernetestest.AllowAll, kubernetestest.Namespace,
		lease, identity, fmt.Sprint(seconds), fmt.Sprint(rounds), dir)}
	out, err := e.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.lines = bufio.NewScanner(out)
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = e.Process.Kill()
		_ = e.Wait()
	})
	return e
}

// await reads lines until one of them is want.
func (e *elector) await(t *testing.T, want string) {
	t.Helper()
	for e.lines.Scan() {
		switch e.lines.Text() {
		case want:
			return
		case "overlap":
			t.Error("two lead at one time")
		}
	}
	t.Fatalf("the elector has ended before %q", want)
}

func openElection(t *testing.T, c server) driver.Store {
	t.Helper()
	return mustOpen(t, c, kubernetestest.AllowAll, &kubernetes.Options{Layout: kubernetes.LayoutLeaderElection})
}

// TestElections: the leader election of client-go and this layout exclude each other on one lease, while all of them
// take turns.
func TestElections(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	dir := filepath.Join(t.TempDir(), "leading")
	rounds := 4
	if *prove {
		rounds = 200
	}
	var all sync.WaitGroup
	for n := range 2 {
		e := startElector(t, c, "turns", fmt.Sprint("elector ", n), 15, rounds, dir)
		all.Go(func() { e.await(t, "done") })
	}
	for range 2 {
		store := openElection(t, c)
		all.Go(func() {
			for range rounds {
				g, err := store.Acquire(t.Context(), storetest.Waiting(storetest.Mutex("turns", 15*time.Second)))
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Errorf("a lock while another leads: %v", err)
				}
				time.Sleep(20 * time.Millisecond)
				if err := os.Remove(dir); err != nil {
					t.Errorf("a lock while another leads: %v", err)
				}
				if err := store.Release(t.Context(), g.Claim, ""); err != nil {
					t.Error(err)
				}
				time.Sleep(30 * time.Millisecond)
			}
		})
	}
	all.Wait()
}

// TestDeadElector: a leader of client-go that was killed is shown as a foreign holder without a token, and excludes
// this layout until its lease has not changed for its duration.
func TestDeadElector(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	store := openElection(t, c)
	storetest.Release(t, store, storetest.Acquire(t, store, storetest.Mutex("dead", time.Minute)).Claim) // leaves a record
	const seconds = 3
	e := startElector(t, c, "dead", "somebody", seconds, 0, filepath.Join(t.TempDir(), "leading"))
	e.await(t, "leading")
	l, err := store.Inspect(t.Context(), "dead")
	if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || l.Holders[0].Owner != "somebody" || l.Token != 0 ||
		l.Holders[0].Token != 0 || l.Holders[0].TTL != seconds*time.Second {
		t.Fatalf("%+v, %v", l, err)
	}
	var held *driver.HeldError
	if _, err := store.Acquire(t.Context(), storetest.Mutex("dead", time.Minute)); !errors.As(err, &held) ||
		len(held.Holders) != 1 || !held.Holders[0].Foreign {
		t.Errorf("acquiring: %v", err)
	}
	if err := store.Break(t.Context(), "dead", l.Holders[0].Ref, driver.Break{Mode: driver.BreakGraceful}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a graceful break: %v", err)
	}
	if err := e.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	g := storetest.Acquire(t, store, storetest.Waiting(storetest.Mutex("dead", time.Minute)))
	// Its last renewal may have been a retry period (0.1 s) and a request earlier.
	if after := time.Since(killed); after < (seconds-1)*time.Second {
		t.Errorf("granted %v after the kill", after)
	}
	storetest.Release(t, store, g.Claim)
}

// TestDeadHolderAndElector: client-go takes the lease of a holder of ours that has died, when its TTL has passed.
func TestDeadHolderAndElector(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	store := openElection(t, c)
	const ttl = 3 * time.Second
	storetest.Acquire(t, store, storetest.Mutex("left", ttl)) // and is not renewed
	began := time.Now()
	e := startElector(t, c, "left", "next", 3, 1, filepath.Join(t.TempDir(), "leading"))
	e.await(t, "leading")
	if after := time.Since(began); after < ttl-time.Second {
		t.Errorf("it leads %v after the grant", after)
	}
	e.await(t, "done")
}

// TestForcedBreakOfElector: a forced break ends the lease of a leader of client-go, which does not notice, and takes it
// back if nobody else has taken it.
func TestForcedBreakOfElector(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	e := startElector(t, c, "broken", "somebody", 6, 0, filepath.Join(t.TempDir(), "leading"))
	e.await(t, "leading")
	store := openElection(t, c)
	l, err := store.Inspect(t.Context(), "broken")
	if err != nil || len(l.Holders) != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	// Its renewal may come between the read and the write of a break, which then begins again.
	if err := store.Break(t.Context(), "broken", l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "the elector takes it back", func() bool {
		l, err := store.Inspect(t.Context(), "broken")
		return err == nil && len(l.Holders) == 1 && l.Holders[0].Foreign
	})
}

// TestElectorOnOwnLayout: a program of client-go that elects its leader by the lease of a lock in Holdfast's own layout
// never leads, whether somebody holds the lock or not; and the layout of leader election refuses that lease.
func TestElectorOnOwnLayout(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	store := mustOpen(t, c, kubernetestest.AllowAll, &kubernetes.Options{Prefix: "own-"})
	g := storetest.Acquire(t, store, storetest.Mutex("a", time.Hour))
	target, err := url.Parse(c.Address())
	if err != nil {
		t.Fatal(err)
	}
	web, stop := c.Client(kubernetestest.AllowAll, nil, nil)
	t.Cleanup(stop)
	var looks, writes atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = web.Transport
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if proxy.ServeHTTP(w, r); r.Method == http.MethodGet {
			looks.Add(1)
		} else {
			writes.Add(1)
		}
	}))
	t.Cleanup(front.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	startElectorAt(t, front.URL, ca, "own-a", "test", 3, 0, filepath.Join(t.TempDir(), "leading"))
	look := func() {
		from := looks.Load()
		storetest.Eventually(t, "it looks several times", func() bool { return looks.Load() > from+4 })
	}
	look()
	if err := storetest.Renew(t, store, g).Err; err != nil {
		t.Error(err)
	}
	if _, err := openElection(t, c).Acquire(t.Context(), storetest.Mutex("own-a", time.Minute)); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("acquiring in the layout of leader election: %v", err)
	}
	storetest.Release(t, store, g.Claim)
	look()
	if writes.Load() > 0 {
		t.Error("the elector has taken the lease")
	}
}

// TestRenewTimes: each write of a holder has a renewTime in another second, because client-go compares whole seconds,
// and takes the lease of a holder that seems not to renew.
func TestRenewTimes(t *testing.T) {
	t.Parallel()
	m := startModel(t)
	store := openElection(t, m)
	g := storetest.Acquire(t, store, storetest.Mutex("a", 2*time.Second))
	last := ""
	for range 5 {
		spec := mustSend(t, m, http.MethodGet, "a", nil)["spec"].(object)
		now := spec["renewTime"].(string)[:len("2006-01-02T15:04:05")]
		if now <= last {
			t.Errorf("the renewTime is %s after %s", now, last)
		}
		last = now
		if err := storetest.Renew(t, store, g).Err; err != nil {
			t.Fatal(err)
		}
	}
}

// TestSharedLease: what others have added to a lease stays there, and its transitions go on.
func TestSharedLease(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	mustSend(t, c, http.MethodPost, "", object{"metadata": object{"name": "kept", "labels": object{"team": "a"},
		"annotations": object{"note": "b"}, "finalizers": []any{"example.com/f"}},
		"spec": object{"leaseTransitions": 7}})
	store := openElection(t, c)
	for range 2 {
		g := storetest.Acquire(t, store, storetest.Mutex("kept", time.Minute))
		storetest.Release(t, store, g.Claim)
	}
	l := mustSend(t, c, http.MethodGet, "kept", nil)
	meta, spec := l["metadata"].(object), l["spec"].(object)
	if meta["labels"].(object)["team"] != "a" || meta["annotations"].(object)["note"] != "b" ||
		len(meta["finalizers"].([]any)) != 1 || spec["leaseTransitions"] != float64(9) || spec["holderIdentity"] != "" {
		t.Errorf("%v", l)
	}
}

// TestElectionRefusals: what the layout cannot do is refused.
func TestElectionRefusals(t *testing.T) {
	t.Parallel()
	m := startModel(t)
	store := openElection(t, m)
	fair := storetest.Mutex("a", time.Minute)
	fair.Fair = true
	readers := storetest.Mutex("a", time.Minute)
	readers.Kind, readers.Limit = driver.KindRW, driver.RWLimit
	for what, c := range map[string]struct {
		claim driver.Claim
		is    error
	}{
		"a fair claim":                     {fair, driver.ErrUnsupported},
		"a read lock":                      {readers, driver.ErrUnsupported},
		"a name that no object can have":   {storetest.Mutex("A b", time.Minute), driver.ErrInvalid},
		"a name with an end of its own":    {storetest.Mutex("a-", time.Minute), driver.ErrInvalid},
		"a name that is longer than 253 B": {storetest.Mutex(strings.Repeat("a", 254), time.Minute), driver.ErrInvalid},
	} {
		if _, err := store.Acquire(t.Context(), c.claim); !errors.Is(err, c.is) {
			t.Errorf("%s: %v", what, err)
		}
	}
	mustSend(t, m, http.MethodPost, "", object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": object{"name": "chosen"}, "spec": object{"holderIdentity": "x", "strategy": "OldestEmulationVersion"}})
	if _, err := store.Acquire(t.Context(), storetest.Mutex("chosen", time.Minute)); !errors.Is(err, driver.ErrUnsupported) ||
		!strings.Contains(err.Error(), "coordinated leader election") {
		t.Errorf("a lease whose holder is chosen: %v", err)
	}
}
