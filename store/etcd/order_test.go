package etcd

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

var fairFor = flag.Duration("fair", 8*time.Second, "how long the fairness test goes on")

// TestFairness: of 64 clients in eight processes, a quarter of whose waits are given up, nobody is overtaken, also while
// the cluster loses its leader. The token is the place of arrival; so the tokens of those let in must rise.
func TestFairness(t *testing.T) {
	t.Parallel()
	c, err := etcdtest.Start(t.Context(), etcdtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	file := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := order{Do: "queue", Endpoints: c.Endpoints(), Locks: []string{t.Name()}, TTL: 10 * time.Second, Clients: 8, For: *fairFor, File: file}
	var workers []*worker
	for range 8 {
		workers = append(workers, startWorker(t, o))
	}
	kills := 0
	for end := time.Now().Add(*fairFor - 3*time.Second); time.Now().Before(end); kills++ {
		time.Sleep(max(2*time.Second, min(*fairFor/3, 10*time.Second)))
		leader, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leader.Kill()
		time.Sleep(time.Second)
		if err := leader.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range workers {
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var holds, cancelled, overtakes, overlaps int
	var last, inside int64
	for line := range strings.Lines(string(data)) {
		what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, _ := strconv.ParseInt(number, 10, 64)
		switch what {
		case "hold":
			holds++
			if token <= last {
				overtakes++
			}
			if inside != 0 {
				overlaps++
			}
			last, inside = token, token
		case "free":
			if inside != token {
				overlaps++
			}
			inside = 0
		case "cancelled":
			cancelled++
		}
	}
	t.Logf("%d holds, %d waits given up, %d leaders killed, in %v: %d overtakes, %d overlaps", holds, cancelled, kills, *fairFor, overtakes, overlaps)
	if overtakes+overlaps > 0 || kills == 0 || holds < 20 {
		t.Error("not as promised")
	}
}

var interop = flag.Int("interop", 15, "how many rounds each client makes on one lock with another kind of client")

// TestInterop: etcdctl lock and Go's concurrency.Mutex, in processes of their own, exclude us and are excluded by us, and
// all make progress. Each adds to a number in a file, in two steps, and not one addition is lost.
func TestInterop(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	etcdctl, err := etcdtest.Tool("etcdctl")
	if err != nil {
		t.Fatal(err)
	}
	script := `n=$(cat "$1"); echo $((n+1)) > "$1.new"; cat "$1.new" > "$1"`
	for _, kind := range []string{"concurrency", "etcdctl"} {
		t.Run(kind, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "number")
			if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
				t.Fatal(err)
			}
			lock := t.Name()
			theirs := make(chan error, 1)
			var done []time.Time
			if kind == "concurrency" {
				w := startWorker(t, order{Do: "peer", Endpoints: c.Endpoints(), Locks: []string{lock}, Rounds: *interop, File: file})
				go func() { theirs <- w.Wait(); done = append(done, time.Now()) }()
			} else {
				go func() {
					for range *interop {
						cmd := commandContext(t.Context(), etcdctl, "--endpoints", strings.Join(c.Endpoints(), ","), "lock", lock, "--", "sh", "-c", script, "sh", file)
						if out, err := cmd.CombinedOutput(); err != nil {
							theirs <- fmt.Errorf("%w: %s", err, out)
							return
						}
					}
					theirs <- nil
				}()
			}
			ours, both, foreign := 0, 0, 0
			s, cli, _ := benchStore(t)
			defer cli.Close()
			over := false
			for ; ours < *interop || !over; ours++ {
				cl := mutexClaim(lock)
				cl.Wait = true
				if _, err := s.Acquire(t.Context(), cl); err != nil {
					t.Fatal(err)
				}
				l, err := s.Inspect(t.Context(), lock)
				if err != nil || len(l.Holders) != 1 || l.Holders[0].Foreign {
					t.Errorf("held by us, and shown as %+v, %v", l, err)
				}
				if len(l.Waiters) > 0 {
					both++
					if slices.ContainsFunc(l.Waiters, func(s standing) bool { return s.Foreign }) {
						foreign++
					}
				}
				if err := addOne(file); err != nil {
					t.Fatal(err)
				}
				if err := s.Release(t.Context(), cl, ""); err != nil {
					t.Fatal(err)
				}
				select {
				case err := <-theirs:
					if err != nil {
						t.Fatal(err)
					}
					over = true
				default:
				}
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := strconv.Itoa(ours + *interop)
			t.Logf("%d additions of ours and %d of theirs make %s; they were seen to wait for us %d times", ours, *interop, bytes.TrimSpace(data), foreign)
			if string(bytes.TrimSpace(data)) != want {
				t.Errorf("two held at a time: the number is %s, and should be %s", data, want)
			}
			if foreign == 0 {
				t.Error("the two never contended")
			}
		})
	}
}

// TestForeignHolder: a claim of another kind than a mutex waits for a foreign holder, too; an operator sees who that is,
// can't mark it, and can remove it by force.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	s, cli, _ := benchStore(t)
	ctx := t.Context()
	g, err := cli.Grant(ctx, 30)
	fails(t, err)
	lock := t.Name()
	_, err = cli.Put(ctx, fmt.Sprintf("%s/%x", lock, g.ID), "", withLease(g.ID))
	fails(t, err)
	for _, junk := range []string{lock + "/junk", lock + "/1f/deeper", lock + "/ABC", lock + "/12.x", lock + "/0123456789abcdef0"} {
		_, err = cli.Put(ctx, junk, "", withLease(g.ID))
		fails(t, err)
	}
	_, err = cli.Put(ctx, lock+"/77", "") // no lease: nobody's claim
	fails(t, err)
	permits := mutexClaim(lock)
	permits.Kind, permits.Limit = kindSemaphore, 3
	if _, err := s.Acquire(ctx, permits); !isHeld(err) {
		t.Errorf("a try beside a foreign holder: %v", err)
	}
	l, err := s.Inspect(ctx, lock)
	if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || len(l.Waiters) != 0 {
		t.Fatalf("%+v, %v", l, err)
	}
	if err := s.Break(ctx, lock, l.Holders[0].Ref, breakMark); !isUnsupported(err) {
		t.Errorf("marking a foreign holder: %v", err)
	}
	permits.Wait = true
	done := make(chan error, 1)
	go func() { _, err := s.Acquire(ctx, permits); done <- err }()
	time.Sleep(100 * time.Millisecond)
	fails(t, s.Break(ctx, lock, l.Holders[0].Ref, breakForce))
	fails(t, <-done)
	fails(t, s.Release(ctx, permits, ""))
}

// TestChangeAmong: a weight is changed only if those around stand as they did and nobody has come, which the server compares.
func TestChangeAmong(t *testing.T) {
	t.Parallel()
	s, _, _ := benchStore(t)
	ctx, name := t.Context(), t.Name()
	ses, err := s.tree.Open(ctx, 30*time.Second)
	fails(t, err)
	note := sequence.Note{ID: "a", Kind: driver.KindRW, Limit: driver.RWLimit, Weight: 1, TTL: ses.TTL}
	add := func(number int64, id string) sequence.Look {
		n := note
		n.ID = id
		look, err := s.tree.Add(ctx, name, ses, number, n, sequence.Always)
		fails(t, err)
		return look
	}
	alone := add(0, "a")
	both := add(1, "b")
	heavy := note
	heavy.Weight = heavy.Limit
	change := func(look sequence.Look, want bool, what string) {
		t.Helper()
		if _, ok, err := s.tree.ChangeAmong(ctx, name, look.Nodes[0], heavy, look.Nodes, look.Revision); ok != want || err != nil {
			t.Errorf("%s: changed: %v, %v", what, ok, err)
		}
	}
	change(alone, false, "beside one that has come since")
	other := note
	other.ID, other.Asked = "b", true
	if _, ok, err := s.tree.Change(ctx, name, both.Nodes[1], other); !ok || err != nil {
		t.Fatal(ok, err)
	}
	change(both, false, "beside one that has changed since")
	look, err := s.tree.List(ctx, name, true)
	fails(t, err)
	if _, _, err := s.tree.Remove(ctx, name, look.Nodes[1], false); err != nil {
		t.Fatal(err)
	}
	change(look, false, "when one has gone since")
	look, err = s.tree.List(ctx, name, true)
	fails(t, err)
	change(look, true, "undisturbed")
	if look, err = s.tree.List(ctx, name, true); err != nil || len(look.Nodes) != 1 || look.Nodes[0].Weight != heavy.Limit || look.Nodes[0].Token != alone.Nodes[0].Token {
		t.Errorf("%+v, %v", look, err)
	}
	fails(t, s.tree.End(ctx, ses.ID))
}
