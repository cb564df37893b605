package etcd

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// A cluster that is restored from a snapshot forgets what came after it: keys that were deleted since then exist
// again, under leases that exist again, too. A client whose session is among them goes on renewing it, and with it
// the keys of claims that it released long ago and no longer looks at. So when revisions fall, this client ends all
// its sessions, with all their claims, and notifies the holders.
//
// etcd's page on disaster recovery warns of the same for watches and caches, and offers --bump-revision and
// --mark-compacted for a restore. With --bump-revision revisions do not fall, and neither do tokens, but then nothing
// shows here that there was a restore.

// reading is what a client had read of the cluster when it sent a request.
type reading struct {
	revision int64
	restored int // how often the cluster was found to be restored
}

func (t *nodeStore) lastReading() reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.newest
}

// noteRevision is called with the revision of each reply, and the reading from before its request. A smaller revision
// means that the cluster was restored from a snapshot.
func (t *nodeStore) noteRevision(before reading, revision int64) {
	t.admission.CredentialsAccepted()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	// Compared with what was known when the request was sent, and not with what is known now: replies overtake each
	// other, so a smaller revision than the newest is usual.
	case before.restored != t.newest.restored || t.life.Err() != nil: // the reply is from before the restoration
	case revision >= before.revision:
		t.newest.revision = max(t.newest.revision, revision)
	default:
		t.newest = reading{revision, before.restored + 1}
		// What was remembered is of a history that no longer exists.
		clear(t.nodeCache)
		clear(t.gateRevisions)
		for session := range t.ownSessions {
			t.life.Go(func() { t.revokeSession(session) })
		}
		clear(t.ownSessions)
	}
}

// trackSession records a session that this client renews.
func (t *nodeStore) trackSession(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ownSessions[session] = true
}

// untrackSession forgets a session that this client does not renew, or that has expired.
func (t *nodeStore) untrackSession(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ownSessions, session)
}

// revokeSession ends a session, and tries again until it has ended or the store is closed.
func (t *nodeStore) revokeSession(session string) {
	for t.life.Err() == nil {
		ctx, cancel := context.WithTimeout(t.life, requestTimeout)
		err := t.EndSession(ctx, session)
		cancel()
		if err == nil || errors.Is(err, sequence.ErrSessionExpired) {
			return
		}
		select {
		case <-time.After(requestTimeout / 4):
		case <-t.life.Done():
		}
	}
}
