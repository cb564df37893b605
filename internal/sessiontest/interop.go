//go:build unix

package sessiontest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// Rounds is how many rounds a foreign client and ours make on one lock.
var Rounds = flag.Int("interop", 20, "how many rounds each client makes on one lock with another kind of client")

// Interop takes a lock in turn with a foreign client. begin starts the foreign client on a lock and a file, and wait
// waits for its end. Each writer adds to the number in the file in two steps. No addition may be lost, and no reader
// may see the number change. Our client holds the lock until the foreign client is seen to wait for it, if the store
// shows waiting claims. Then both continue until each has made its rounds.
func Interop(t *testing.T, s driver.Store, kind driver.Kind, begin func(lock, file string) (wait func() (added int,
	err error))) {
	file := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := NewClient(t, s, time.Minute)
	lock := t.Name()
	type result struct {
		added int
		err   error
	}
	theirs := make(chan result, 1)
	first, err := takeLock(t.Context(), client, kind, lock, false)
	CheckError(t, err)
	wait := begin(lock, file)
	go func() { n, err := wait(); theirs <- result{n, err} }()
	foreign := func(s driver.ClaimInfo) bool { return s.Foreign }
	for limit := time.Now().Add(3 * time.Minute); s.Info().MaxWaiters > 0; time.Sleep(10 * time.Millisecond) {
		now, err := s.Inspect(t.Context(), lock)
		CheckError(t, err)
		if slices.ContainsFunc(now.Waiters, foreign) {
			break
		}
		if len(theirs) > 0 {
			r := <-theirs
			t.Fatalf("the peer ended while we held the lock, after %d additions: %v", r.added, r.err)
		}
		if time.Now().After(limit) {
			t.Fatalf("the peer does not wait for us: %+v", now)
		}
	}
	CheckError(t, first.Release())
	var peer *result
	added, rounds := 0, 0
	for ; peer == nil || rounds < *Rounds; rounds++ {
		read := kind == driver.KindRW && rand.N(2) == 0
		l, err := takeLock(t.Context(), client, kind, lock, read)
		if err != nil {
			t.Fatal(err)
		}
		if read {
			err = checkUnchanged(file)
		} else {
			err = AddOne(file)
			added++
		}
		if err != nil {
			t.Fatalf("two held at a time: %v", err)
		}
		now, err := s.Inspect(t.Context(), lock)
		if err != nil || len(now.Holders) == 0 || !read && foreign(now.Holders[0]) {
			t.Errorf("held by us, and shown as %+v, %v", now, err)
		}
		CheckError(t, l.Release())
		select {
		case r := <-theirs:
			if r.err != nil {
				t.Fatalf("the peer: %v", r.err)
			}
			peer = &r
		default:
		}
	}
	n, err := readNumber(file)
	CheckError(t, err)
	t.Logf("%d rounds of ours and %d of theirs; %d additions of ours and %d of theirs make %d", rounds, *Rounds, added,
		peer.added, n)
	if added+peer.added != n {
		t.Error("two held at a time")
	}
}

func takeLock(ctx context.Context, client *holdfast.Client, kind driver.Kind, lock string,
	read bool) (*holdfast.Lease, error) {
	switch {
	case kind == driver.KindMutex:
		return client.Mutex(lock, nil).Lock(ctx)
	case read:
		return client.RWMutex(lock, nil).RLock(ctx)
	}
	return client.RWMutex(lock, nil).Lock(ctx)
}

func readNumber(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// AddOne adds one to the number in a file, in two steps.
func AddOne(file string) error {
	n, err := readNumber(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// checkUnchanged checks that nobody writes the file for a moment.
func checkUnchanged(file string) error {
	before, err := readNumber(file)
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	if after, err := readNumber(file); err != nil || after != before {
		return errors.Join(err, fmt.Errorf("%d became %d under a reader", before, after))
	}
	return nil
}
