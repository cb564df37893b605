package stores_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/previous"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// Exit codes of the command.
const (
	exitOK          = 0
	exitUsage       = 64
	exitUnavailable = 69
	exitNotAcquired = 75
	exitSuperseded  = 81
	exitAttempts    = 77
)

// deadTTL is the TTL of what is killed: its successor waits for that long. What lives has the default TTL, so that it
// loses nothing on a busy machine.
const deadTTL = "3s"

// longest is how long anything waits that should come sooner.
const longest = "2m"

// version is the command of one version.
type version struct{ name, program string }

// buildVersions builds the version before and the present one.
var buildVersions = sync.OnceValues(func() (both [2]version, err error) {
	both = [2]version{{name: "old"}, {"new", filepath.Join(scratch, "holdfast")}}
	if both[0].program, err = previous.Build(); err != nil {
		return both, err
	}
	c := exec.Command("go", "build", "-ldflags=-s -w", "-o", both[1].program, "..")
	c.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does
	if out, err := c.CombinedOutput(); err != nil {
		return both, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return both, nil
})

// TestTwoVersions: programs of the version before and of this one exclude each other on every store, in either
// direction, also after one that died; they stand in one queue, share one semaphore, and change each other's claims
// by their handles; the tokens rise across both.
func TestTwoVersions(t *testing.T) {
	eachStore(t, func(t *testing.T, s *scene, old, new version) {
		for _, pair := range [][2]version{{old, new}, {new, old}} {
			t.Run(pair[0].name+"-"+pair[1].name, func(t *testing.T) {
				t.Parallel()
				s := s.in(t)
				successor := s.killHolder(pair[0], pair[1])
				s.checkMutex(pair[0], pair[1])
				if s.detaches {
					s.checkHandle(pair[0], pair[1])
				}
				successor()
			})
		}
		t.Run("together", func(t *testing.T) {
			t.Parallel()
			s := s.in(t)
			s.checkQueue(old, new)
			s.checkNewest(old, new)
			s.checkShared(old, new, "--shared")
			s.checkShared(old, new, "--limit", "2")
			s.checkPermits(old, new)
		})
	})
}

// TestTwoVersionsOfLayouts: programs of both versions exclude each other in the layouts that Holdfast shares with other
// clients, and on Redlock.
func TestTwoVersionsOfLayouts(t *testing.T) {
	t.Parallel()
	both, err := buildVersions()
	if err != nil {
		t.Fatal(err)
	}
	for store, layouts := range abilities {
		for layout := range layouts {
			if layout == "" && store != "redlock" || layout == "ledger" { // TestTwoVersions and TestTwoVersionsOfLedger
				continue
			}
			if store == "azure" { // the version before does not know it
				continue
			}
			t.Run(strings.Trim(store+"/"+layout, "/"), func(t *testing.T) {
				t.Parallel()
				s := (&scene{url: start(t, store)(layout)}).in(t)
				if layout == "curator-semaphore" { // it has no mutex
					s.checkMutex(both[0], both[1], "--limit", "1")
				} else {
					s.checkMutex(both[0], both[1])
				}
			})
		}
	}
}

// TestTwoVersionsOfLedger: a key whose run has succeeded by the version before or by this one is never run again by the
// other. This version continues what the former has begun. The former may refuse a key that this one has run, with a
// message; a key that it has run itself stays good for it, whatever this version has read, or done to other keys.
func TestTwoVersionsOfLedger(t *testing.T) {
	check := func(t *testing.T, s *scene, old, new version) {
		for _, pair := range [][2]version{{old, new}, {new, old}} {
			t.Run(pair[0].name+"-"+pair[1].name, func(t *testing.T) {
				t.Parallel()
				newLedgerScene(s.in(t), old).check(pair[0], pair[1])
			})
		}
	}
	eachStore(t, check)
	t.Run("dynamodb-ledger", func(t *testing.T) {
		t.Parallel()
		both, err := buildVersions()
		if err != nil {
			t.Fatal(err)
		}
		check(t, &scene{url: start(t, "dynamodb")("ledger")}, both[0], both[1])
	})
}

// TestTwoVersionsOfHistory: this version continues a history that the version before has written in several pages,
// and shows all of it.
func TestTwoVersionsOfHistory(t *testing.T) {
	t.Parallel()
	both, err := buildVersions()
	if err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{"file", "zookeeper"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			l := newLedgerScene((&scene{url: start(t, store)("")}).in(t), both[0])
			for range 40 {
				l.run(both[0], "many", 3)
			}
			l.show(both[1], "many", "failed", "")
			for range 20 {
				l.run(both[1], "many", 3)
			}
			l.show(both[1], "many", "failed", "")
			l.runEither(both[1], both[0], "many")
			l.show(both[1], "many", "succeeded", "")
		})
	}
}

// TestTwoVersionsOfServe: servers of both versions renew and release by each other's handles, and keep each other's
// clients out.
func TestTwoVersionsOfServe(t *testing.T) {
	t.Parallel()
	both, err := buildVersions()
	if err != nil {
		t.Fatal(err)
	}
	s := (&scene{url: start(t, "file")("")}).in(t)
	a, b := s.serve(both[0]), s.serve(both[1])
	for i, pair := range [][2]func(string, string, int) string{{a, b}, {b, a}} {
		lock := fmt.Sprintf("/v1/locks/%s/try", s.lock(fmt.Sprint("serve-", i)))
		const options = `{"ttl_ms": 60000}`
		handle := pair[0](lock, options, http.StatusOK)
		pair[1](lock, options, http.StatusConflict)
		pair[1]("/v1/handles/"+handle+"/renew", "", http.StatusOK)
		pair[0](lock, options, http.StatusConflict)
		pair[1]("/v1/handles/"+handle+"/release", "", http.StatusOK)
		pair[0](lock, options, http.StatusOK)
	}
}

// serve starts a server, and returns a function that posts to it, checks the status, and returns the handle in the
// answer.
func (s *scene) serve(v version) (post func(path, body string, status int) string) {
	s.Helper()
	socket := filepath.Join(s.TempDir(), "socket")
	p := s.start(v, "serve", "--json", "--listen", "unix:"+socket)
	if p.line() == "" {
		p.wait()
		s.Fatalf("%s: %s", p.what, &p.errs)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	s.Cleanup(client.CloseIdleConnections)
	return func(path, body string, status int) string {
		s.Helper()
		r, err := client.Post("http://localhost"+path, "application/json", strings.NewReader(body))
		if err != nil {
			s.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != status {
			s.Errorf("%s: %s answers %d, want %d: %s, %v", v.name, path, r.StatusCode, status, text, err)
		}
		var answer struct{ Handle string }
		_ = json.Unmarshal(text, &answer)
		return answer.Handle
	}
}

// eachStore calls check for each kind of store.
func eachStore(t *testing.T, check func(t *testing.T, s *scene, old, new version)) {
	both, err := buildVersions()
	if err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{"file", "redis", "etcd", "zookeeper", "consul", "postgres", "mysql", "nats", "dynamodb",
		"minio", "gcs", "kubernetes"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			check(t, &scene{url: start(t, store)(""), detaches: store != "zookeeper"}, both[0], both[1])
		})
	}
}

// scene is a test on one store.
type scene struct {
	*testing.T
	url      string
	detaches bool             // a claim can outlive its process
	id       string           // in the names of all locks and ledgers of the test
	client   *holdfast.Client // looks at the locks
}

// in returns the scene for a test.
func (s *scene) in(t *testing.T) *scene {
	t.Helper()
	client, err := holdfast.Open(t.Context(), s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &scene{T: t, url: s.url, detaches: s.detaches, id: strings.ToLower(rand.Text()[:8]), client: client}
}

// lock is the name of a lock of this test.
func (s *scene) lock(what string) string { return "versions-" + s.id + "-" + what }

// process is a command that runs.
type process struct {
	*exec.Cmd
	s     *scene
	what  string
	in    io.WriteCloser
	out   *bufio.Reader
	errs  bytes.Buffer
	ended bool
}

func (s *scene) start(v version, args ...string) *process {
	s.Helper()
	p := &process{Cmd: exec.Command(v.program, args...), s: s, what: v.name + ": holdfast " + strings.Join(args, " ")}
	p.Env = append(os.Environ(), "HOLDFAST_STORE="+s.url, "HOLDFAST_CONFIG=")
	out, err := p.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if p.in, err = p.StdinPipe(); err != nil {
		s.Fatal(err)
	}
	p.out, p.Stderr = bufio.NewReader(out), &p.errs
	if err := servertest.StartProcess(p.Cmd); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if !p.ended {
			_ = p.Process.Kill()
			p.wait()
		}
	})
	return p
}

// line returns a line that the process prints, or "" if it ends without one.
func (p *process) line() string {
	line, _ := p.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n")
}

// wait waits for the end, and returns the exit code and the rest of the output.
func (p *process) wait() (int, string) {
	p.s.Helper()
	rest, _ := io.ReadAll(p.out)
	err := p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.s.Fatalf("%s: %v", p.what, err)
	}
	p.ended = true
	return p.ProcessState.ExitCode(), string(rest)
}

// token returns the token of a hold, once it has acquired its lock.
func (p *process) token() int64 {
	p.s.Helper()
	line := p.line()
	token, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		p.wait()
		p.s.Fatalf("%s: got no token, but %q, %s", p.what, line, &p.errs)
	}
	return token
}

// end ends a hold, which releases its lock.
func (p *process) end() {
	p.s.Helper()
	_ = p.Process.Signal(syscall.SIGTERM)
	if code, _ := p.wait(); code != exitOK {
		p.s.Fatalf("%s: exit %d: %s", p.what, code, &p.errs)
	}
}

// hold begins to hold a lock.
func (s *scene) hold(v version, args ...string) *process {
	s.Helper()
	return s.start(v, append([]string{"hold", "--wait", longest}, args...)...)
}

// refused checks that a version is not granted a lock.
func (s *scene) refused(v version, args ...string) {
	s.Helper()
	p := s.start(v, append([]string{"hold", "--no-wait"}, args...)...)
	if line := p.line(); line != "" {
		s.Errorf("%s: it was granted token %s, while others hold the lock", p.what, line)
		p.end()
	} else if code, _ := p.wait(); code != exitNotAcquired {
		s.Errorf("%s: exit %d: %s", p.what, code, &p.errs)
	}
}

// rising checks that the tokens of consecutive holders rise.
func (s *scene) rising(what string, tokens ...int64) {
	s.Helper()
	for i := 1; i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			s.Errorf("%s: the tokens were %v", what, tokens)
		}
	}
}

// awaitWaiters waits until a lock has so many waiters.
func (s *scene) awaitWaiters(name string, n int) {
	s.Helper()
	storetest.Eventually(s, fmt.Sprintf("%d waiters for %s", n, name), func() bool {
		lock, err := s.client.Inspect(s.Context(), name)
		if err != nil {
			s.Fatal(err)
		}
		return len(lock.Waiters) == n
	})
}

// checkMutex: each keeps the other out, and the one that waits gets the lock when it is released.
func (s *scene) checkMutex(a, b version, flags ...string) {
	s.Helper()
	name := s.lock("mutex")
	args := append(flags, name)
	first := s.hold(a, args...)
	tokens := []int64{first.token()}
	s.refused(b, args...)
	second := s.hold(b, args...)
	first.end()
	tokens = append(tokens, second.token())
	s.refused(a, args...)
	second.end()
	third := s.hold(a, args...)
	tokens = append(tokens, third.token())
	third.end()
	s.rising(name, tokens...)
}

// killHolder kills a holder, and lets the other version wait. The function that it returns waits until that has the
// lock.
func (s *scene) killHolder(a, b version) (successor func()) {
	s.Helper()
	name := s.lock("killed")
	holder := s.hold(a, "--ttl", deadTTL, "--fair", name)
	first := holder.token()
	_ = holder.Process.Kill()
	holder.wait()
	waiter := s.hold(b, "--fair", name)
	return func() {
		s.Helper()
		s.rising(name, first, waiter.token())
		waiter.end()
	}
}

// checkQueue: both versions are granted a lock in the order of their arrival.
func (s *scene) checkQueue(a, b version) {
	s.Helper()
	name := s.lock("queue")
	queue := []*process{s.hold(a, "--fair", name)}
	tokens := []int64{queue[0].token()}
	for i, v := range []version{b, a, b} {
		queue = append(queue, s.hold(v, "--fair", name))
		s.awaitWaiters(name, i+1)
	}
	s.refused(a, "--fair", name)
	for i, p := range queue {
		if i > 0 {
			tokens = append(tokens, p.token())
		}
		p.end()
	}
	s.rising(name, tokens...)
}

// checkNewest: the version before, which does not know claims that are newest-only, keeps them in the queue when it
// writes the lock, and is neither superseded nor supersedes.
func (s *scene) checkNewest(old, new version) {
	s.Helper()
	name := s.lock("newest")
	holder := s.hold(old, "--fair", name)
	holder.token()
	first := s.hold(new, "--newest-only", name)
	s.awaitWaiters(name, 1)
	between := s.hold(old, "--fair", name)
	s.awaitWaiters(name, 2)
	second := s.hold(new, "--newest-only", name)
	if code, _ := first.wait(); code != exitSuperseded {
		s.Errorf("%s: exit %d: %s", first.what, code, &first.errs)
	}
	s.awaitWaiters(name, 2)
	holder.end()
	between.token()
	between.end()
	second.token()
	second.end()
}

// checkShared: both versions hold a lock of two holders or more together, and keep others out.
func (s *scene) checkShared(a, b version, kind ...string) {
	s.Helper()
	name := s.lock(strings.Trim(kind[0], "-"))
	args := append(slices.Clone(kind), name)
	first, second := s.hold(a, args...), s.hold(b, args...)
	first.token()
	second.token()
	other := args
	if kind[0] == "--shared" {
		other = []string{name} // a writer
	}
	s.refused(a, other...)
	s.refused(b, other...)
	first.end()
	second.end()
}

// checkPermits: this version gives no permit to two holders, whatever the version before has made of the lock: while a
// holder is there whose permit may have been forgotten, nobody gets one.
func (s *scene) checkPermits(old, new version) {
	s.Helper()
	if !s.client.Info().Permits {
		return
	}
	semaphore := s.client.Semaphore(s.lock("permits"), 4, nil)
	take := func() (lease *holdfast.Lease, permits []int64) {
		s.Helper()
		lease, err := semaphore.Acquire(s.Context(), 1)
		if err != nil {
			s.Fatal(err)
		}
		permits, err = lease.Permits()
		if err != nil && !errors.Is(err, holdfast.ErrUnsupported) {
			s.Error(err)
		}
		return lease, permits
	}
	release := func(leases ...*holdfast.Lease) {
		s.Helper()
		for _, l := range leases {
			if err := l.Release(); err != nil {
				s.Error(err)
			}
		}
	}
	args := []string{"--limit", "4", s.lock("permits")}
	a, first := take()
	b, second := take()
	if !slices.Equal(first, []int64{0}) || !slices.Equal(second, []int64{1}) {
		s.Errorf("the permits are %v and %v", first, second)
	}
	before := s.hold(old, args...)
	before.token()
	c, third := take() // next to a holder of the version before
	if third != nil {
		s.Errorf("a claim next to one of the version before has the permits %v", third)
	}
	before.end() // the version before may have forgotten the permits of others
	release(c)
	d, fourth := take()
	if slices.Equal(fourth, first) || slices.Equal(fourth, second) {
		s.Errorf("%v was given again", fourth)
	}
	release(a, b, d)
	last := s.hold(new, args...)
	last.token()
	e, fifth := take()
	if len(fifth) != 1 {
		s.Errorf("nobody of the version before is there, and the permits are %v", fifth)
	}
	release(e)
	last.end()
}

// checkHandle: a version renews and releases what the other has acquired.
func (s *scene) checkHandle(a, b version) {
	s.Helper()
	name := s.lock("handle")
	run := func(v version, args ...string) string {
		s.Helper()
		p := s.start(v, args...)
		code, out := p.wait()
		if code != exitOK {
			s.Fatalf("%s: exit %d: %s", p.what, code, &p.errs)
		}
		return strings.TrimSpace(out)
	}
	handle := run(a, "acquire", "--ttl", "1m", name)
	run(b, "renew", handle)
	s.refused(b, name)
	run(b, "release", handle)
	next := s.hold(a, name)
	var was struct{ Token int64 }
	if err := json.Unmarshal([]byte(handle), &was); err != nil {
		s.Fatal(err)
	}
	s.rising(name, was.Token, next.token())
	next.end()
}

// ledgerScene is a test of keys in one ledger.
type ledgerScene struct {
	*scene
	old  version
	last map[string]lastRun
	// unlocked says that the store has no locks: so this version must be told that slots may overlap.
	unlocked bool
}

func newLedgerScene(s *scene, old version) *ledgerScene {
	if server, _, _ := strings.Cut(s.url, "?"); strings.HasPrefix(server, "zookeeper:") {
		// There, from the first key that this version runs, the former begins no run of any key of the namespace.
		s.url = server + "?namespace=" + s.id
	}
	return &ledgerScene{scene: s, old: old, last: map[string]lastRun{}, unlocked: strings.Contains(s.url, "layout=ledger")}
}

// lastRun is the last run of a key. tokens are those of all its runs.
type lastRun struct {
	by     version
	tokens []int64
}

func (r lastRun) attempt() int { return len(r.tokens) }

// token is that of the run, and 0 if there was none.
func (r lastRun) token() int64 { return append([]int64{0}, r.tokens...)[len(r.tokens)] }

// script prints what it was started with, and exits with the code that it is given, as soon as its input ends.
const script = `echo $HOLDFAST_ATTEMPT $HOLDFAST_TOKEN; cat; exit $0`

// begin starts a run of a key, which ends with the code when the input of the process ends.
func (l *ledgerScene) begin(v version, key string, code int, flags ...string) *process {
	l.Helper()
	return l.start(v, slices.Concat([]string{"once", "--ledger", ledgerName}, flags,
		[]string{l.id + key, "--", "sh", "-c", script, strconv.Itoa(code)})...)
}

// ran reads whether the run has begun, and checks that it is the next attempt, with a larger token.
func (l *ledgerScene) ran(p *process, v version, key string) bool {
	l.Helper()
	line := p.line()
	if line == "" {
		return false
	}
	was := l.last[key]
	var attempt int
	var token int64
	if _, err := fmt.Sscan(line, &attempt, &token); err != nil {
		l.Fatalf("%s: %q: %v", p.what, line, err)
	}
	if attempt != was.attempt()+1 || token <= was.token() {
		l.Errorf("%s: attempt %d with token %d follows attempt %d with token %d", p.what, attempt, token, was.attempt(),
			was.token())
	}
	l.last[key] = lastRun{v, append(was.tokens, token)}
	return true
}

// refuses reports whether a version has refused a key, as the old one may if the new one has run it.
func (l *ledgerScene) refuses(p *process, v version, key string, code int) bool {
	last := l.last[key]
	return v == l.old && last.attempt() > 0 && last.by != l.old && (code == exitUsage || code == exitUnavailable) &&
		p.errs.Len() > 0
}

// run checks that a version runs a key with this result, or refuses it and runs nothing if it may.
func (l *ledgerScene) run(v version, key string, want int, flags ...string) bool {
	l.Helper()
	p := l.begin(v, key, want, flags...)
	before := l.last[key]
	p.in.Close()
	ran := l.ran(p, v, key)
	code, _ := p.wait()
	if ran && code == want || !ran && l.refuses(p, v, key, code) {
		return ran
	}
	l.Errorf("%s: after attempt %d by the %s version: ran %v, exit %d: %s", p.what, before.attempt(), before.by.name, ran, code,
		&p.errs)
	return ran
}

// skip checks that a version does not run a key, and exits with this code, or refuses if it may.
func (l *ledgerScene) skip(v version, key string, want int, flags ...string) {
	l.Helper()
	p := l.begin(v, key, 0, flags...)
	p.in.Close()
	if line := p.line(); line != "" {
		l.Errorf("%s: it is run again, as attempt and token %s", p.what, line)
	}
	if code, _ := p.wait(); code != want && !l.refuses(p, v, key, code) {
		l.Errorf("%s: exit %d, want %d: %s", p.what, code, want, &p.errs)
	}
}

// show checks that a version shows all runs of a key, and how the last one has ended, or refuses if it may.
func (l *ledgerScene) show(v version, key, state, result string) {
	l.Helper()
	p := l.startLedger(v, "show", key, "--json")
	code, out := p.wait()
	if l.refuses(p, v, key, code) {
		return
	}
	var history struct {
		Runs []struct {
			Attempt       int
			Token         int64
			State, Result string
		}
	}
	err := json.Unmarshal([]byte(out), &history)
	if err == nil && code == exitOK && len(history.Runs) == 0 && l.looksElsewhere(v, key) {
		return
	}
	if err != nil || code != exitOK || len(history.Runs) == 0 {
		l.Fatalf("%s: exit %d, %v: %s%s", p.what, code, err, out, &p.errs)
	}
	want := l.last[key]
	for i, run := range history.Runs {
		if len(history.Runs) != want.attempt() || run.Attempt != i+1 || run.Token != want.tokens[i] {
			l.Fatalf("%s: %s, want the tokens %v", p.what, out, want.tokens)
		}
	}
	if got := history.Runs[len(history.Runs)-1]; got.State != state || got.Result != result {
		l.Errorf("%s: %s, want at last %s with result %q", p.what, out, state, result)
	}
}

// looksElsewhere reports whether a version does not see the runs of a key, since the other one keeps them in another
// place.
func (l *ledgerScene) looksElsewhere(v version, key string) bool {
	return v == l.old && l.last[key].by != l.old && strings.HasPrefix(l.url, "zookeeper:")
}

// startLedger starts a command about the runs of a key.
func (l *ledgerScene) startLedger(v version, action, key string, flags ...string) *process {
	l.Helper()
	subcommand := "ledger"
	if v == l.old {
		subcommand = "runs" // its name in that version
	}
	return l.start(v, slices.Concat([]string{subcommand, action, "--ledger", ledgerName}, flags, []string{l.id + key})...)
}

// checkRetry checks that b lets a key run once more that has no attempt left by a, or refuses if it may.
func (l *ledgerScene) checkRetry(a, b version) {
	l.Helper()
	l.run(a, "retried", 3, "--attempts", "1")
	l.skip(a, "retried", exitAttempts, "--attempts", "1")
	l.skip(b, "retried", exitAttempts, "--attempts", "1")
	retry := l.startLedger(b, "retry", "retried")
	switch code, _ := retry.wait(); {
	case code == exitOK:
		l.runEither(a, b, "retried", "--attempts", "1")
	case !l.refuses(retry, b, "retried", code) && !l.looksElsewhere(b, "retried"):
		l.Errorf("%s: exit %d: %s", retry.what, code, &retry.errs)
	}
}

// check lets a version begin, and the other one go on.
func (l *ledgerScene) check(a, b version) {
	l.Helper()
	// A worker that dies. The last lines of this function wait for the end of its run.
	dead := l.begin(a, "dead", 0, "--ttl", deadTTL)
	if !l.ran(dead, a, "dead") {
		l.Fatalf("%s: %s", dead.what, &dead.errs)
	}
	_ = dead.Process.Kill()
	dead.wait()

	l.run(a, "done", 0, "--keep-output", "1k")
	l.skip(b, "done", exitOK)
	l.skip(a, "done", exitOK)
	l.show(b, "done", "succeeded", fmt.Sprintf("%d %d\n", l.last["done"].attempt(), l.last["done"].token()))

	l.run(a, "slot", 0, l.slots(a, "87600h")...)
	l.skip(b, "slot", exitOK, l.slots(b, "87600h")...)

	l.run(a, "failed", 3, "--fingerprint", "one")
	l.show(b, "failed", "failed", "")
	l.skip(b, "failed", exitUsage, "--fingerprint", "two")
	l.runEither(a, b, "failed", "--fingerprint", "one")

	running := l.begin(a, "running", 0)
	if !l.ran(running, a, "running") {
		l.Fatalf("%s: %s", running.what, &running.errs)
	}
	l.skip(b, "running", exitNotAcquired)
	running.in.Close()
	if code, _ := running.wait(); code != exitOK {
		l.Errorf("%s: exit %d: %s", running.what, code, &running.errs)
	}
	l.skip(b, "running", exitOK)

	// A version goes back to a key of its own that the other one has only looked at.
	l.run(a, "back", 3)
	l.show(b, "back", "failed", "")
	l.run(a, "back", 0)
	l.skip(b, "back", exitOK)

	l.checkRetry(a, b)
	l.checkOverlap(a, b)
	l.runEither(a, b, "dead", "--wait="+longest)
}

// slots are the flags of a job in slots of a length.
func (l *ledgerScene) slots(v version, every string) []string {
	flags := []string{"--every", every}
	if l.unlocked && v != l.old {
		flags = append(flags, "--allow-overlap")
	}
	return flags
}

// checkOverlap checks that two slots of a job overlap if one version is the former, which takes no lock of the job, and
// that two of this version do not.
func (l *ledgerScene) checkOverlap(a, b version) {
	l.Helper()
	first := l.begin(a, "apart", 0, l.slots(a, "87600h")...)
	if !l.ran(first, a, "apart") {
		l.Fatalf("%s: %s", first.what, &first.errs)
	}
	second := l.begin(b, "apart", 0, l.slots(b, "43800h")...)
	overlaps := strings.HasPrefix(second.line(), "1 ")
	if a != l.old && !l.unlocked {
		l.skip(a, "apart", exitNotAcquired, "--every", "29200h", "--wait=1ms")
	}
	first.in.Close()
	second.in.Close()
	if code, _ := first.wait(); code != exitOK {
		l.Errorf("%s: exit %d: %s", first.what, code, &first.errs)
	}
	if code, _ := second.wait(); overlaps && code != exitOK || !overlaps && !l.refuses(second, b, "apart", code) {
		l.Errorf("%s: next to the other version's slot it runs: %t, exit %d: %s", second.what, overlaps, code, &second.errs)
	}
}

// runEither checks that b runs a key that a has run, and succeeds. If b refuses, which it may, a does so. Then
// neither runs it again.
func (l *ledgerScene) runEither(a, b version, key string, flags ...string) {
	l.Helper()
	if !l.run(b, key, 0, flags...) {
		l.run(a, key, 0, flags...)
	}
	l.skip(a, key, exitOK, flags...)
	l.skip(b, key, exitOK, flags...)
}
