package etcd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
)

// TestRaisedByRestore: an operator who does what RaiseToken says gets tokens that are large enough.
func TestRaisedByRestore(t *testing.T) {
	t.Parallel()
	etcdutl, err := etcdtest.Tool("etcdutl")
	fails(t, err)
	c := startCluster(t, etcdtest.Options{Members: 1, Direct: true})
	client := newClient(t, rig.Peer(t, c), 30*time.Second)
	before := lease(t, client, t.Name())
	fails(t, before.Release())
	const seen = 1795404378628155 // a token of another store
	fails(t, client.RaiseToken(t.Context(), t.Name(), before.Token()))
	err = client.RaiseToken(t.Context(), t.Name(), seen+1)
	if !errors.Is(err, holdfast.ErrUnsupported) || client.CheckTokens(t.Context(), seen+1) == nil {
		t.Fatal(err)
	}
	_, flags, ok := strings.Cut(err.Error(), "etcdutl snapshot restore ")
	if !ok {
		t.Fatalf("no command in: %v", err)
	}
	m := c.Members[0]
	m.Terminate()
	old := filepath.Join(t.TempDir(), "old")
	fails(t, os.Rename(m.Dir, old))
	args := []string{"snapshot", "restore", filepath.Join(old, "member", "snap", "db"), "--skip-hash-check",
		"--data-dir", m.Dir, "--name", m.Name}
	for i, a := range m.Args {
		if a == "--initial-cluster" || a == "--initial-cluster-token" || a == "--initial-advertise-peer-urls" {
			args = append(args, a, m.Args[i+1])
		}
	}
	if out, err := exec.Command(etcdutl, append(args, strings.Fields(flags)...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fails(t, m.Start())
	fails(t, c.Ready(t.Context()))
	again := newClient(t, rig.Peer(t, c), 30*time.Second)
	fails(t, again.CheckTokens(t.Context(), seen+1))
	after := lease(t, again, t.Name())
	if after.Token() <= seen {
		t.Errorf("the token is %d, want more than %d", after.Token(), int64(seen))
	}
	fails(t, after.Release())
}
