package zookeeper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

var (
	runs    = flag.Int("faults", 10, "how often each fault is tried")
	cancels = flag.Int("cancels", 400, "how many acquires are cancelled")
)

// faultTTL is the TTL of the locks in these tests, and its margin what a holder gives up of it.
const faultTTL = 2 * time.Second

// batch is how many holders meet a fault at a time.
const batch = 10

// rival waits for a lock and notes when it was let in.
type rival struct {
	lock string
	in   time.Time
	err  error
}

// rivals waits for all locks, from one client that no fault touches.
func rivals(t *testing.T, c *zktest.Ensemble, locks []string, to ...*zktest.Member) func() []rival {
	t.Helper()
	p := mustOpen(t, c, to...)
	client, err := holdfast.New(p, &holdfast.Options{TTL: faultTTL})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]rival, len(locks))
	var all sync.WaitGroup
	for i, name := range locks {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			l, err := client.Mutex(name, nil).Lock(ctx)
			out[i] = rival{name, time.Now(), err}
			if err == nil {
				_ = l.Unlock()
			}
		})
	}
	return func() []rival {
		all.Wait()
		client.Close()
		return out
	}
}

// tally is what the runs of one fault came to.
type tally struct {
	overlap  []time.Duration // how long the old holder believed after the next was let in; negative: before
	takeOver []time.Duration // from the fault to the next holder
}

func (y *tally) add(t *testing.T, fault time.Time, believed map[string]int64, rivals []rival) {
	t.Helper()
	for _, r := range rivals {
		if r.err != nil {
			t.Errorf("%s: the rival: %v", r.lock, r.err)
			continue
		}
		y.takeOver = append(y.takeOver, r.in.Sub(fault))
		if last, ok := believed[r.lock]; ok {
			y.overlap = append(y.overlap, time.Duration(last-r.in.UnixNano()))
		}
	}
}

func (y *tally) report(t *testing.T, bound time.Duration) {
	t.Helper()
	slices.Sort(y.overlap)
	slices.Sort(y.takeOver)
	if n := len(y.overlap); n > 0 {
		worst, over := y.overlap[n-1], 0
		for _, o := range y.overlap {
			if o > 0 {
				over++
			}
		}
		t.Logf("%d runs, TTL %v, margin %v: belief overlap in %d; the old holder stopped believing %v to %v before the next was let in",
			n, faultTTL, driver.Margin(faultTTL), over, -worst.Round(time.Millisecond), -y.overlap[0].Round(time.Millisecond))
		if over > 0 {
			t.Errorf("two believed at a time in %d of %d runs, for up to %v", over, n, worst)
		}
	}
	if n := len(y.takeOver); n > 0 {
		t.Logf("take-over after %v (median), %v at most", y.takeOver[n/2].Round(time.Millisecond), y.takeOver[n-1].Round(time.Millisecond))
		if worst := y.takeOver[n-1]; bound > 0 && worst > bound {
			t.Errorf("a take-over took %v, and may take %v", worst, bound)
		}
	}
}

func lockNames(t *testing.T, round int) (names []string) {
	for i := range batch {
		names = append(names, fmt.Sprintf("%s/%d-%d-%d", t.Name(), time.Now().UnixNano(), round, i))
	}
	return names
}

// holders takes each lock by a client of its own, through a link of its own, and returns when all are held. The function
// that comes back waits until none is believed in any more.
func holders(t *testing.T, c *zktest.Ensemble, locks []string, to ...*zktest.Member) ([]*peer, func() map[string]int64) {
	t.Helper()
	peers := make([]*peer, len(locks))
	leases := make([]*holdfast.Lease, len(locks))
	var clients []*holdfast.Client
	for i, name := range locks {
		peers[i] = mustOpen(t, c, to...)
		client, err := holdfast.New(peers[i], &holdfast.Options{TTL: faultTTL})
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client)
		if leases[i], err = client.Mutex(name, nil).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	believed := map[string]int64{}
	for i, name := range locks {
		all.Go(func() {
			b := believe(name, func() bool { return leases[i].Valid() || leases[i].Context().Err() == nil })
			mu.Lock()
			defer mu.Unlock()
			believed[name] = b.Last
		})
	}
	return peers, func() map[string]int64 {
		all.Wait()
		for _, client := range clients {
			go client.Close()
		}
		return believed
	}
}

// rounds gives the number of batches.
func rounds() int { return (*runs + batch - 1) / batch }

// TestCut: a holder that is cut off in silence stops believing before the next is let in.
func TestCut(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var y tally
	for round := range rounds() {
		locks := lockNames(t, round)
		peers, believed := holders(t, c, locks)
		next := rivals(t, c, locks)
		time.Sleep(300*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		for _, p := range peers {
			p.link.Cut()
		}
		b := believed()
		y.add(t, fault, b, next())
		for _, p := range peers {
			p.link.Heal()
		}
	}
	y.report(t, faultTTL+3*time.Second) // a tick more on a quiet machine
}

// TestShortCut: a cut of less than a third of the TTL loses nothing. Without it, no overlap would prove nothing.
func TestShortCut(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	const ttl = 6 * time.Second
	n := 0
	for round := range rounds() {
		locks := lockNames(t, round)
		var leases []*holdfast.Lease
		var peers []*peer
		for _, name := range locks {
			p := mustOpen(t, c)
			peers, leases = append(peers, p), append(leases, lease(t, newClient(t, p, ttl), name))
		}
		time.Sleep(rand.N(ttl / 3))
		for _, p := range peers {
			p.link.Cut()
		}
		time.Sleep(ttl/3 - 50*time.Millisecond)
		for _, p := range peers {
			p.link.Heal()
		}
		time.Sleep(ttl / 2)
		for i, l := range leases {
			if !l.Valid() || l.Context().Err() != nil {
				t.Errorf("%s was lost to a short cut: %v", locks[i], context.Cause(l.Context()))
			}
			if err := l.Unlock(); err != nil {
				t.Error(err)
			}
			n++
		}
	}
	t.Logf("%d holders met a cut of %v under a TTL of %v, and lost nothing", n, ttl/3-50*time.Millisecond, ttl)
}

// TestKill: when a holder's process is killed its lock passes on within the TTL and a second.
func TestKill(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var y tally
	for round := range rounds() {
		locks := lockNames(t, round)
		w := startWorker(t, order{Do: "hold", Endpoints: c.Endpoints(), Locks: locks, TTL: faultTTL})
		w.until(t, "held")
		next := rivals(t, c, locks)
		time.Sleep(100*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		if err := w.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		y.add(t, fault, nil, next())
	}
	y.report(t, faultTTL+3*time.Second) // a tick more on a quiet machine
}

// TestStop: a holder whose process is stopped for longer than its TTL knows at its first look, when it goes on, that it
// has lost the lock.
func TestStop(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var y tally
	for round := range rounds() {
		locks := lockNames(t, round)
		w := startWorker(t, order{Do: "hold", Endpoints: c.Endpoints(), Locks: locks, TTL: faultTTL})
		w.until(t, "held")
		next := rivals(t, c, locks)
		time.Sleep(100*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		_ = w.Process.Signal(syscall.SIGSTOP)
		in := next()
		_ = w.Process.Signal(syscall.SIGCONT)
		believed := map[string]int64{}
		for w.lines.Scan() {
			var b belief
			if json.Unmarshal(w.lines.Bytes(), &b) == nil {
				believed[b.Lock] = b.Last
			}
		}
		if len(believed) != len(locks) {
			t.Errorf("%d of %d holders have said when they stopped believing", len(believed), len(locks))
		}
		y.add(t, fault, believed, in)
	}
	y.report(t, faultTTL+3*time.Second) // a tick more on a quiet machine
}

// TestMinority: a holder whose server is cut off from the others, leader or not, stops believing before the next is let
// in by the majority.
func TestMinority(t *testing.T) {
	t.Parallel()
	c, err := zktest.Start(t.Context(), zktest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var y tally
	for round := range max(2, rounds()) { // the leader, and a follower
		alone, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if round%2 == 1 {
			alone = c.Members[(slices.Index(c.Members, alone)+1)%len(c.Members)]
		}
		var others []*zktest.Member
		for _, m := range c.Members {
			if m != alone {
				others = append(others, m)
			}
		}
		locks := lockNames(t, round)
		_, believed := holders(t, c, locks, alone)
		next := rivals(t, c, locks, others...)
		time.Sleep(200*time.Millisecond + rand.N(faultTTL/2))
		fault := time.Now()
		c.Isolate(alone)
		b := believed()
		y.add(t, fault, b, next())
		c.Join()
		if err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// A new leader lets every lease run anew, so this may take longer than a TTL.
	y.report(t, 2*faultTTL+3*time.Second)
}

// TestCancels: acquires that are given up at any moment leave no node after a second.
func TestCancels(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	held, free := t.Name()+"/held", []string{t.Name() + "/free-1", t.Name() + "/free-2"}
	blocker, _ := counting(t)
	hold := mutexClaim(held)
	hold.TTL = time.Hour // nobody renews it
	if _, err := blocker.Acquire(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	var clients []*holdfast.Client
	for range 4 {
		client, err := holdfast.New(mustOpen(t, c), &holdfast.Options{TTL: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
	}
	began := time.Now()
	for range 8 {
		for _, client := range clients {
			l, err := client.Mutex(t.Name()+"/measure", nil).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			fails(t, l.Unlock())
		}
	}
	usual := time.Since(began) / 32
	var all sync.WaitGroup
	var mu sync.Mutex
	granted, before, waited := 0, 0, 0
	todo := make(chan int, *cancels)
	for i := range *cancels {
		todo <- i
	}
	close(todo)
	start := time.Now()
	for w := range 16 {
		all.Go(func() {
			for i := range todo {
				name, limit := held, 30*usual
				if i%2 == 0 {
					name, limit = free[i/2%2], 10*usual
				}
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(limit))
				began := time.Now()
				l, err := clients[w%4].Mutex(name, nil).Lock(ctx)
				cancel()
				mu.Lock()
				var told *holdfast.Error
				switch {
				case err == nil:
					granted++
				case errors.As(err, &told) && len(told.Holders) > 0:
					waited++
				default:
					before++
				}
				mu.Unlock()
				if err == nil {
					fails(t, l.Unlock())
				} else if took := time.Since(began); took > time.Second {
					t.Errorf("a cancelled acquire returned after %v", took)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	time.Sleep(time.Second)
	left := 0
	for _, name := range append(free, held) {
		l, err := blocker.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		left += len(l.Holders) + len(l.Waiters)
	}
	t.Logf("%d acquires in %v: %d granted before the cancel, %d given up in line, %d given up earlier; %d claims left after a second, beside the holder",
		*cancels, took.Round(time.Millisecond), granted, waited, before, left-1)
	if left != 1 {
		t.Errorf("%d claims are left", left-1)
	}
	if granted+waited < *cancels/5 {
		t.Errorf("too few cancels fell after the claim had come to stand")
	}
	fails(t, blocker.Release(t.Context(), hold, ""))
}

// TestLostAnswers: a claim whose request was taken and not answered, since the connection broke, stands once; and one that is
// given up then does not stand.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &deafConn{Conn: nc, lose: &lose}, err
	}
	s, err := New(Options{Servers: cluster(t).Endpoints(), Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, _ := counting(t)
	ctx := t.Context()
	ses, err := s.tree.Open(ctx, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	stands := func(name string) int {
		l, err := other.Inspect(ctx, name)
		fails(t, err)
		return len(l.Holders) + len(l.Waiters)
	}
	lost := 0
	for i := range 10 {
		name := fmt.Sprint(t.Name(), "/", i)
		note := sequence.Note{ID: mutexClaim("").ID, Kind: driver.KindMutex, Limit: 1, Weight: 1, TTL: ses.TTL}
		warm := note
		warm.ID = mutexClaim("").ID
		_, err := s.tree.Add(ctx, name, ses, int64(2*i), warm, sequence.Always)
		fails(t, err)
		lose.Store(true)
		_, err = s.tree.Add(ctx, name, ses, int64(2*i+1), note, sequence.Always)
		if err == nil {
			t.Error("the answer was not lost")
		}
		lost += stands(name) - 1
		if i%2 == 0 {
			look, err := s.tree.Add(ctx, name, ses, int64(2*i+1), note, sequence.Always)
			if err != nil || len(look.Nodes) != 2 || stands(name) != 2 {
				t.Errorf("asked for again, %d nodes stand: %v", stands(name), err)
			}
			continue
		}
		if _, err := s.tree.Withdraw(ctx, name, ses, int64(2*i+1), note.ID); err != nil {
			t.Error(err)
		}
		if n := stands(name); n != 1 {
			t.Errorf("withdrawn, %d nodes stand", n-1)
		}
	}
	t.Logf("%d of 10 requests without an answer were taken", lost)
	if lost == 0 {
		t.Error("none was taken")
	}
	fails(t, s.tree.End(ctx, ses.ID))
}

// deafConn breaks once when it is told to, a moment after it has sent a request to create a node, and hears nothing from then on.
type deafConn struct {
	net.Conn
	lose *atomic.Bool
	deaf atomic.Bool
}

func (d *deafConn) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.deaf.Load() {
		return 0, io.EOF
	}
	return n, err
}

func (d *deafConn) Write(b []byte) (int, error) {
	lose := len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == opCreate2 && d.lose.CompareAndSwap(true, false)
	if lose {
		d.deaf.Store(true)
	}
	n, err := d.Conn.Write(b)
	if lose {
		time.Sleep(30 * time.Millisecond)
		d.Conn.Close()
	}
	return n, err
}
