package zookeeper

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
)

// TestRemainsDenied: a claim whose node was created and can neither be listed nor removed, for lack of permissions,
// does not count as one of which nothing is left, and is not added a second time.
func TestRemainsDenied(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	name := t.Name() + rand.Text()
	path := "/" + name
	_, err := cli.Create(path, nil, 0, gozk.WorldACL(gozk.PermCreate))
	mustSucceed(t, err)
	claim := mutexClaim(name)
	claim.Wait = true // else the lock is listed before anything is added
	_, err = rig.Peer(t, c).Acquire(t.Context(), claim)
	if !errors.Is(err, driver.ErrUncertain) || !errors.Is(err, driver.ErrDenied) {
		t.Error(err)
	}
	catchUp(t, cli)
	_, stat, err := cli.Exists(path)
	if err != nil || stat.NumChildren != 1 {
		t.Errorf("there are %d nodes, %v", stat.NumChildren, err)
	}
}

// TestParentsDenied: a client that cannot create the nodes above a lock learns so at once, be they one or several
// that are missing.
func TestParentsDenied(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	cli := newAdmin(t, c)
	closed, leaf := "/"+t.Name()+"-closed", "/"+t.Name()+"-leaf"
	_, err := cli.Create(closed, nil, 0, gozk.WorldACL(gozk.PermRead))
	mustSucceed(t, err)
	_, err = cli.Create(leaf, nil, gozk.FlagEphemeral, gozk.WorldACL(gozk.PermAll))
	mustSucceed(t, err)
	for _, name := range []string{closed + "/a", closed + "/a/b", leaf, leaf + "/a", leaf + "/a/b"} {
		s := rig.Peer(t, c)
		claim := mutexClaim(strings.TrimPrefix(name, "/"))
		began := time.Now()
		_, err := s.Acquire(t.Context(), claim)
		if !errors.Is(err, driver.ErrDenied) || sessiontest.IsLate(began) {
			t.Errorf("%s: %v after %v", name, err, time.Since(began))
		}
	}
}
