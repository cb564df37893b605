package zookeeper

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// TestServersReplaced: servers that have lost their data refuse every session that has seen more than they know,
// and do not say that it has expired. The holder loses its lock, and the client goes on with another session.
func TestServersReplaced(t *testing.T) {
	t.Parallel()
	c := startEnsemble(t, zktest.Options{Members: 1})
	client := newClient(t, rig.Peer(t, c), 20*time.Second)
	for range 20 {
		mustSucceed(t, mustLock(t, client, t.Name()+"/before").Release())
	}
	held := mustLock(t, client, t.Name())
	m := c.Members[0]
	m.Kill()
	old, err := filepath.Glob(filepath.Join(m.Dir, "version-2"))
	if err != nil || len(old) != 1 {
		t.Fatal(old, err)
	}
	mustSucceed(t, os.RemoveAll(old[0]))
	mustSucceed(t, m.Start())
	mustSucceed(t, c.Ready(t.Context()))
	began := time.Now()
	for {
		l, err := client.Mutex(t.Name(), nil).Lock(t.Context())
		if err == nil {
			t.Logf("locked again after %v", time.Since(began))
			mustSucceed(t, l.Release())
			break
		}
		t.Logf("%v after %v", err, time.Since(began))
		if time.Since(began) > time.Minute {
			t.Fatal("the client does not come back")
		}
	}
	<-held.Context().Done()
	if err := held.Release(); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the holder learns: %v", err)
	}
	if _, err := client.Inspect(t.Context(), t.Name()); err != nil {
		t.Error(err)
	}
}
