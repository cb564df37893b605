package etcd

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// A cluster that is restored from a snapshot forgets what came after that: keys that were deleted since stand again, under
// leases that stand again, too. A client whose session is among those goes on renewing it, and with it the keys of claims that
// it has given up long ago, for which nobody looks any more. So when revisions fall all sessions of this client are ended, and
// with them all that stands under them; holders are told.

// reading is what a client had seen of the cluster when it began to ask.
type reading struct {
	revision int64
	restored int // how often the cluster was found to be restored
}

func (t *tree) reading() reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.newest
}

// saw takes in the revision of an answer to what was asked after a reading.
func (t *tree) saw(before reading, revision int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case before.restored != t.newest.restored || t.life.Err() != nil: // it says nothing of the cluster as it is now
	case revision >= before.revision:
		t.newest.revision = max(t.newest.revision, revision)
	default:
		t.newest = reading{revision, before.restored + 1}
		clear(t.known)
		clear(t.gates)
		for session := range t.kept {
			t.work.Go(func() { t.revoke(session) })
		}
		clear(t.kept)
	}
}

// keep notes a session that this client renews, and release one that it leaves alone, or that is over.
func (t *tree) keep(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept[session] = true
}

func (t *tree) release(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.kept, session)
}

// revoke ends a session for certain, while the store is open.
func (t *tree) revoke(session string) {
	for t.life.Err() == nil {
		ctx, cancel := context.WithTimeout(t.life, answerTime)
		err := t.EndSession(ctx, session)
		cancel()
		if err == nil || errors.Is(err, sequence.ErrSessionExpired) {
			return
		}
		select {
		case <-time.After(answerTime / 4):
		case <-t.life.Done():
		}
	}
}
