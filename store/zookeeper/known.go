package zookeeper

import (
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// recall fills in what is known of nodes.
func (t *tree) recall(path string, all []child) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range all {
		if n := t.known[path+"/"+all[i].Key]; n != nil {
			all[i].Node = *n
		}
	}
}

// maxKnown bounds what is remembered of other clients' nodes; those of this client's own claims are remembered while they
// stand.
const maxKnown = 4096

func (t *tree) learn(path string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= max(t.knownMost, maxKnown) {
		for p, o := range t.known {
			if t.sessions[o.Session] == nil {
				delete(t.known, p)
			}
		}
		t.knownMost = 2 * len(t.known)
	}
	t.known[path] = &n
}

func (t *tree) unlearn(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, path)
}
