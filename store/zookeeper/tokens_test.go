package zookeeper

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// TestRaisedByEpoch: an operator who does what RaiseToken says gets tokens that are large enough.
func TestRaisedByEpoch(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 3, Direct: true})
	client := newClient(t, rig.Peer(t, c), 20*time.Second)
	before := mustLock(t, client, t.Name())
	mustSucceed(t, before.Release())
	const seen = 1795404378628155 // a token of another store
	mustSucceed(t, client.RaiseToken(t.Context(), t.Name(), before.Token()))
	err := client.RaiseToken(t.Context(), t.Name(), seen+1)
	if !errors.Is(err, holdfast.ErrUnsupported) || client.CheckTokens(t.Context(), seen+1) == nil {
		t.Fatal(err)
	}
	advice := regexp.MustCompile(`write (\d+) into the file (\S+)`).FindStringSubmatch(err.Error())
	if advice == nil {
		t.Fatalf("no number and file in: %v", err)
	}
	for _, m := range c.Members {
		m.Terminate()
	}
	for _, m := range c.Members {
		mustSucceed(t, os.WriteFile(filepath.Join(m.Dir, advice[2]), []byte(advice[1]), 0o600))
		mustSucceed(t, m.Start())
	}
	mustSucceed(t, c.Ready(t.Context()))
	again := newClient(t, rig.Peer(t, c), 20*time.Second)
	mustSucceed(t, again.CheckTokens(t.Context(), seen+1))
	after := mustLock(t, again, t.Name())
	if after.Token() <= seen {
		t.Errorf("the token is %d, want more than %d", after.Token(), int64(seen))
	}
	mustSucceed(t, after.Release())
}
