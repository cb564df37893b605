package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast/driver"
)

// TestOtherRecipe: a mutex is refused where Curator's read-write lock is held, which would not be kept out by it,
// and learns what to do; in the layout that has mutexes among its writers it waits, as a read-write lock does. In
// kazoo's layout, of which Curator sees nothing, a writer is refused as well. Inspect shows the kind that is not
// refused.
func TestOtherRecipe(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	_, err := cli.Create("/"+t.Name(), nil, 0, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	writer := mutexClaim(t.Name())
	writer.Kind, writer.Limit, writer.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit
	for _, end := range []string{endRead, endWrite} {
		node, err := cli.Create("/"+t.Name()+"/_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-"+end, nil,
			gozk.FlagEphemeral|gozk.FlagSequence, gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
		for _, layout := range []Layout{LayoutCurator, LayoutBoth, LayoutKazoo, LayoutCuratorReadWrite} {
			s, err := openAs[*store](c.Endpoints(), Options{Layout: layout})
			mustSucceed(t, err)
			for _, wait := range []bool{false, true} {
				claim := mutexClaim(t.Name())
				claim.Wait = wait
				if layout == LayoutCuratorReadWrite {
					if wait {
						continue
					}
					_, err = s.Acquire(t.Context(), claim)
					if !errors.Is(err, driver.ErrHeld) {
						t.Errorf("%s, %s: a mutex: %v", layout, end, err)
					}
					continue
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err = s.Acquire(ctx, claim); !errors.Is(err, driver.ErrMismatch) ||
					!strings.Contains(err.Error(), string(LayoutCuratorReadWrite)) {
					t.Errorf("%s, %s: a mutex that waits, %v: %v", layout, end, wait, err)
				}
			}
			want, kind := driver.ErrHeld, driver.KindRW
			if layout == LayoutKazoo {
				want, kind = driver.ErrMismatch, driver.KindMutex
			}
			if _, err := s.Acquire(t.Context(), writer); !errors.Is(err, want) {
				t.Errorf("%s, %s: a writer: %v", layout, end, err)
			}
			l, err := s.Inspect(t.Context(), t.Name())
			if err != nil || l.Kind != kind || len(l.Holders) != 1 || !l.Holders[0].Foreign {
				t.Errorf("%s, %s: it is shown as %+v, %v", layout, end, l, err)
			}
			mustSucceed(t, s.Close())
		}
		mustSucceed(t, cli.Delete(node, -1))
	}
	keys, _, err := cli.Children("/" + t.Name())
	if err != nil || len(keys) > 0 {
		t.Errorf("there are %q, %v", keys, err)
	}
}

// TestExplainOtherRecipe: Explain says so where it would not be seen by Curator's read-write
// lock.
func TestExplainOtherRecipe(t *testing.T) {
	t.Parallel()
	writer := mutexClaim(t.Name())
	writer.Kind, writer.Limit, writer.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit
	for _, k := range []struct {
		layout Layout
		claim  driver.Claim
		noted  bool
	}{
		{LayoutCurator, mutexClaim(t.Name()), true}, {LayoutBoth, mutexClaim(t.Name()), true}, {LayoutCurator, writer,
			false},
		{LayoutBoth, writer, false}, {LayoutCuratorReadWrite, mutexClaim(t.Name()), false},
	} {
		s, err := openAs[*store]([]string{"127.0.0.1"}, Options{Layout: k.layout})
		mustSucceed(t, err)
		if notes := s.Explain(k.claim).Notes; (len(notes) > 0) != k.noted {
			t.Errorf("%s, a %s: %q", k.layout, k.claim.Kind, notes)
		}
		mustSucceed(t, s.Close())
	}
}

// TestListForeignLocks: in a namespace what only foreign clients hold is listed; without one it is not.
func TestListForeignLocks(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	for _, path := range []string{"/" + t.Name(), "/" + t.Name() + "/theirs", "/" + t.Name() + "/nothing"} {
		_, err := cli.Create(path, nil, 0, gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
	}
	for path, flags := range map[string]int32{"/theirs/_c_6f1d8e2a-5b1c-4a51-9d53-5d0c7a0a3a11-lock-": gozk.FlagEphemeral | gozk.FlagSequence, "/leader": gozk.FlagEphemeral} {
		_, err := cli.Create("/"+t.Name()+path, nil, flags, gozk.WorldACL(gozk.PermAll))
		mustSucceed(t, err)
	}
	for _, k := range []struct {
		layout    Layout
		namespace string
		want      []string
	}{
		{LayoutCurator, t.Name(), []string{"theirs"}}, {LayoutCurator, "", nil}, {LayoutPlain, t.Name(),
			[]string{"leader"}}, {LayoutPlain, "", nil},
	} {
		s, err := New(t.Context(), c.Endpoints(), &Options{Layout: k.layout, Namespace: k.namespace})
		mustSucceed(t, err)
		prefix, got := "", []string(nil)
		if k.namespace == "" {
			prefix = t.Name()
		}
		for l, err := range s.List(t.Context(), prefix) {
			mustSucceed(t, err)
			got = append(got, l.Name)
		}
		if !slices.Equal(got, k.want) {
			t.Errorf("layout %s, namespace %q: %q, not %q", k.layout, k.namespace, got, k.want)
		}
		mustSucceed(t, s.Close())
	}
}
