package zookeeper

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gozk "github.com/go-zookeeper/zk"
	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// TestFreshAtLeader: a read that must be fresh shows what another client was told before the read began, even if the
// other one uses a follower and the reader uses the leader. A follower may answer first: the leader sends the commit to
// the followers before it applies it. The leader's threads that do so run more slowly here than its others.
func TestFreshAtLeader(t *testing.T) {
	t.Parallel()
	e := startEnsemble(t, zktest.Options{})
	leader, err := e.Leader(t.Context())
	mustSucceed(t, err)
	slowDownThreads(t, leader.PID(), "LearnerHandler", "CommitProcessor", "SyncThread")
	writer := newAdminAt(t, []string{followerOf(e, leader).Endpoint})
	reader := rig.Peer(t, e, leader)
	var rounds, stale atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(8 * time.Second)
	for g := range 16 {
		wg.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				path := fmt.Sprintf("/fresh-%d-%d", g, i)
				if _, err := writer.Create(path, make([]byte, 3000), 0, gozk.WorldACL(gozk.PermAll)); err != nil {
					t.Error(err)
					return
				}
				calls, _, err := reader.nodeStore.read(t.Context(), true, func() []*zk.Call { return []*zk.Call{zk.Exists(path)} })
				switch {
				case err != nil:
					t.Error(err)
					return
				case calls[0].Err == zk.CodeNoNode:
					stale.Add(1)
				case calls[0].Err != nil:
					t.Error(calls[0].Err)
				}
				rounds.Add(1)
			}
		})
	}
	wg.Wait()
	if t.Logf("%d reads", rounds.Load()); stale.Load() > 0 {
		t.Errorf("%d of %d reads did not show what existed before them", stale.Load(), rounds.Load())
	}
}

// slowDownThreads gives the threads of a process whose names begin with one of these a tenth of the usual share of a
// busy processor. It finds at least one of each.
func slowDownThreads(t *testing.T, pid int, names ...string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	mustSucceed(t, err)
	found := map[string]bool{}
	for _, file := range tasks {
		comm, err := os.ReadFile(file)
		mustSucceed(t, err)
		for _, name := range names {
			if !strings.HasPrefix(string(comm), name) {
				continue
			}
			tid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			mustSucceed(t, err)
			mustSucceed(t, unix.Setpriority(unix.PRIO_PROCESS, tid, 10))
			found[name] = true
		}
	}
	if len(found) != len(names) {
		t.Fatalf("of %q only %v are threads of the server", names, found)
	}
}
