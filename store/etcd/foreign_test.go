package etcd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// TestInterop: etcdctl lock and Go's concurrency.Mutex, in processes of their own, exclude us and are excluded by us,
// and all of them get the lock.
func TestInterop(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	etcdctl, err := etcdtest.Tool("etcdctl")
	if err != nil {
		t.Fatal(err)
	}
	for name, begin := range map[string]func(t *testing.T, lock, file string) func() error{
		"concurrency": func(t *testing.T, lock, file string) func() error {
			return rig.StartWorker(t, sessiontest.WorkerTask{Do: "peer", Endpoints: c.Endpoints(), Lock: lock,
				Rounds: *sessiontest.Rounds, File: file}).Wait
		},
		"etcdctl": func(t *testing.T, lock, file string) func() error {
			const add = `n=$(cat "$1"); echo $((n+1)) > "$1.new"; cat "$1.new" > "$1"`
			return func() error {
				for range *sessiontest.Rounds {
					cmd := exec.CommandContext(t.Context(), etcdctl, "--dial-timeout", "60s", "--command-timeout",
						"60s", "--endpoints", strings.Join(c.Endpoints(),
							","), "lock", lock, "--", "sh", "-c", add, "sh", file)
					if out, err := cmd.CombinedOutput(); err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := benchStore(t)
			sessiontest.Interop(t, s, driver.KindMutex, func(lock, file string) func() (int, error) {
				wait := begin(t, lock, file)
				return func() (int, error) { return *sessiontest.Rounds, wait() }
			})
		})
	}
}

// foreignMutex takes a lock with etcd's own mutex, and adds to the number in a file, for some rounds.
func foreignMutex(o sessiontest.WorkerTask) error {
	cli, err := etcdtest.Connect(o.Endpoints)
	if err != nil {
		return err
	}
	defer cli.Close()
	s, err := concurrency.NewSession(cli, concurrency.WithTTL(60))
	if err != nil {
		return err
	}
	defer s.Close()
	m := concurrency.NewMutex(s, o.Lock)
	for range o.Rounds {
		if err := m.Lock(context.Background()); err != nil {
			return err
		}
		if err := sessiontest.AddOne(o.File); err != nil {
			return err
		}
		if err := m.Unlock(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// TestForeignHolder: claims of every kind wait for a foreign holder. An operator sees who it is, in a listing too,
// cannot break it gracefully, and can remove it by force.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	s, cli, _ := benchStore(t)
	ctx := t.Context()
	g, err := cli.Grant(ctx, 600)
	fails(t, err)
	lock := t.Name()
	_, err = cli.Put(ctx, fmt.Sprintf("%s/%x", lock, g.ID), "", clientv3.WithLease(g.ID))
	fails(t, err)
	for _, junk := range []string{lock + "/junk", lock + "/1f/deeper", lock + "/ABC", lock + "/12.x", lock +
		"/0123456789abcdef0"} {
		_, err = cli.Put(ctx, junk, "", clientv3.WithLease(g.ID))
		fails(t, err)
	}
	_, err = cli.Put(ctx, lock+"/77", "") // without a lease it is no claim
	fails(t, err)
	_, err = cli.Put(ctx, lock+"-services/a", "", clientv3.WithLease(g.ID)) // it only looks like a key of the lock
	fails(t, err)
	var listed []string
	for l, err := range s.List(ctx, lock) {
		fails(t, err)
		listed = append(listed, l.Name)
	}
	if len(listed) != 1 || listed[0] != lock {
		t.Errorf("listed are %q", listed)
	}
	permits := mutexClaim(lock)
	permits.Kind, permits.Limit = driver.KindSemaphore, 3
	if _, err := s.Acquire(ctx, permits); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a try next to a foreign holder: %v", err)
	}
	l, err := s.Inspect(ctx, lock)
	if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || len(l.Waiters) != 0 {
		t.Fatalf("%+v, %v", l, err)
	}
	if err := s.Break(ctx, lock, l.Holders[0].Ref, driver.Break{Mode: driver.BreakGraceful}); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("a graceful break of a foreign holder: %v", err)
	}
	permits.Wait = true
	done := make(chan error, 1)
	go func() { _, err := s.Acquire(ctx, permits); done <- err }()
	sessiontest.AwaitWaiter(t, s, lock)
	fails(t, s.Break(ctx, lock, l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}))
	fails(t, <-done)
	fails(t, s.Release(ctx, permits, ""))
}
