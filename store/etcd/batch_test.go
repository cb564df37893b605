package etcd

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestWritesGoTogether: writes of the same time are sent in fewer requests. Still no two claims on a lock get the same
// token, and the snapshot that an add returns is the state of the lock at its revision.
func TestWritesGoTogether(t *testing.T) {
	t.Parallel()
	s, cli, sent := benchStore(t)
	ctx := t.Context()
	ses, err := s.nodes.OpenSession(ctx, time.Hour) // longer than the test, so it needs no keep-alive
	fails(t, err)
	const workers, rounds = 32, 20
	sent.take()
	var mu sync.Mutex
	tokens := map[string]bool{}
	var snapshots []sequence.Snapshot
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for r := range rounds {
				name := fmt.Sprint(t.Name(), "/", rand.N(4))
				note := sequence.Payload{ID: fmt.Sprint(w, ".", r), Kind: driver.KindMutex, Limit: 1, Weight: 1,
					TTL: ses.TTL}
				guard := sequence.AddAlways
				if w%2 == 0 {
					guard = sequence.AddBatched
				}
				snapshot, err := s.nodes.Add(ctx, name, ses, int64(w*rounds+r), note, guard)
				if err != nil || len(snapshot.Nodes) == 0 {
					t.Errorf("%+v, %v", snapshot, err)
					return
				}
				n := snapshot.Nodes[len(snapshot.Nodes)-1]
				id := fmt.Sprint(name, n.Token)
				mu.Lock()
				if n.ID != note.ID || tokens[id] {
					t.Errorf("%s has the token %d of another claim, or %s has it", note.ID, n.Token, n.ID)
				}
				tokens[id], snapshots = true, append(snapshots, snapshot)
				mu.Unlock()
				existed, left, err := s.nodes.Remove(ctx, name, n, sequence.Then{Next: n.Key})
				if err != nil || !existed || len(left.Nodes) > 0 {
					t.Errorf("removed: %v, left: %v, %v", existed, left.Nodes, err)
				}
			}
		})
	}
	all.Wait()
	if n := sent.take()["Txn"]; n > workers*rounds {
		t.Errorf("%d claims were added and removed by %d requests", workers*rounds, n)
	} else {
		t.Logf("%d claims were added and removed by %d requests", workers*rounds, n)
	}
	for _, snapshot := range snapshots {
		from, to := s.nodes.lockRange(snapshot.Name)
		r, err := cli.Get(ctx, from, clientv3.WithRange(to), clientv3.WithRev(snapshot.Revision), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			t.Fatal(err)
		}
		same := len(r.Kvs) == len(snapshot.Nodes)
		for i := 0; same && i < len(r.Kvs); i++ {
			same = r.Kvs[i].CreateRevision == snapshot.Nodes[i].Token
		}
		if !same {
			t.Errorf("at revision %d there are %d claims, and the snapshot has %d", snapshot.Revision, len(r.Kvs), len(snapshot.Nodes))
		}
	}
	fails(t, s.nodes.EndSession(ctx, ses.ID))
}
