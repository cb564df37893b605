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

// TestWritesGoTogether: writes that come at one time go in fewer requests; no lock gets two claims of one token by
// that, and what an add sees is how the lock stands at its revision.
func TestWritesGoTogether(t *testing.T) {
	t.Parallel()
	s, cli, sent := benchStore(t)
	ctx := t.Context()
	ses, err := s.nodes.OpenSession(ctx, time.Hour) // nobody beats it
	fails(t, err)
	const workers, rounds = 32, 20
	sent.take()
	var mu sync.Mutex
	tokens := map[string]bool{}
	var looks []sequence.Snapshot
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
				look, err := s.nodes.Add(ctx, name, ses, int64(w*rounds+r), note, guard)
				if err != nil || len(look.Nodes) == 0 {
					t.Errorf("%+v, %v", look, err)
					return
				}
				n := look.Nodes[len(look.Nodes)-1]
				id := fmt.Sprint(name, n.Token)
				mu.Lock()
				if n.ID != note.ID || tokens[id] {
					t.Errorf("%s has token %d, as another has, or %s does", note.ID, n.Token, n.ID)
				}
				tokens[id], looks = true, append(looks, look)
				mu.Unlock()
				stood, left, err := s.nodes.RemoveAndReadNext(ctx, name, n, n.Key)
				if err != nil || !stood || len(left.Nodes) > 0 {
					t.Errorf("removed: %v, left: %v, %v", stood, left.Nodes, err)
				}
			}
		})
	}
	all.Wait()
	if n := sent.take()["Txn"]; n > workers*rounds {
		t.Errorf("%d claims came and went in %d requests", workers*rounds, n)
	} else {
		t.Logf("%d claims came and went in %d requests", workers*rounds, n)
	}
	for _, look := range looks {
		from, to := s.nodes.lockRange(look.Name)
		r, err := cli.Get(ctx, from, clientv3.WithRange(to), clientv3.WithRev(look.Revision), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			t.Fatal(err)
		}
		same := len(r.Kvs) == len(look.Nodes)
		for i := 0; same && i < len(r.Kvs); i++ {
			same = r.Kvs[i].CreateRevision == look.Nodes[i].Token
		}
		if !same {
			t.Errorf("at revision %d stand %d claims, and %d were seen", look.Revision, len(r.Kvs), len(look.Nodes))
		}
	}
	fails(t, s.nodes.EndSession(ctx, ses.ID))
}
