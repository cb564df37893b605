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

// learn remembers a node as it was read. One of this client's own that is not known has been removed since.
func (t *tree) learn(path string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[n.Session] == nil || t.known[path] != nil {
		t.learnLocked(path, n)
	}
}

// learnMade remembers a node of this client's own.
func (t *tree) learnMade(path string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.learnLocked(path, n)
}

func (t *tree) learnLocked(path string, n sequence.Node) {
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
	delete(t.twins, path)
}

// learnTwin remembers the second node of a claim of this client's own.
func (t *tree) learnTwin(path, twin string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.twins[path] = twin
}

// twinsOf are the second nodes of those of these that have one; empty for the others.
func (t *tree) twinsOf(paths []string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	twins := make([]string, len(paths))
	for i, path := range paths {
		twins[i] = t.twins[path]
	}
	return twins
}
