package redis

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// A server that is away while a claim is released still has it when it comes back. It would be missing from the
// majority of the next claim until the TTL ends there. So such releases are kept, a bounded number of them, and sent
// when the server is back.

// pendingReleases are the releases that one server has missed.
type pendingReleases struct {
	releases map[string]pendingRelease // by claim id
	sending  bool                      // a goroutine sends them
}

// pendingRelease is a release that a server has missed.
type pendingRelease struct {
	name, tombstone string
	ttl             time.Duration
	until           time.Time // by then the claim's TTL has ended it on the server
}

// maxPendingReleases bounds how many releases are kept for a server. Further claims end there by their TTL.
const maxPendingReleases = 4096

// releaseEverywhere removes a claim from all servers. Where a request of its Acquire may still be under way, all
// servers get a tombstone, by which they refuse that request.
func (r *redlockStore) releaseEverywhere(ctx context.Context, name, id string, ttl time.Duration) (replyCounts, error) {
	keys := r.servers[0].keys.allKeys(name)
	tombstone := ""
	if r.hasInFlight(id) {
		tombstone = "1"
	}
	args := new(queueArgs).fill(r.servers[0], id, tombstone)
	t, err := r.countReplies(ctx, ttl, serverScript{script: plainScripts.releaseQueued, keys: keys[:], args: args})
	for i, s := range r.servers {
		_, replied := t.byServer[i]
		switch {
		case replied:
			s.forgetInFlight(id)
		case err == nil && t.replies >= r.majority:
			r.scheduleRelease(i, id, pendingRelease{name, tombstone, ttl, time.Now().Add(ttl)})
		}
	}
	return t, err
}

// scheduleRelease sends a release to a server when that is back, unless the claim has ended there by its TTL before.
func (r *redlockStore) scheduleRelease(server int, id string, l pendingRelease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.pending[server]
	switch {
	case r.life.Err() != nil:
		return
	case len(p.releases) >= maxPendingReleases:
		r.servers[server].forgetInFlight(id)
		return
	case p.releases == nil:
		p.releases = map[string]pendingRelease{}
	}
	p.releases[id] = l
	if !p.sending {
		p.sending = true
		r.inBackground.Go(func() { r.sendPendingReleases(server) })
	}
}

// sendPendingReleases sends a server what it has missed, one release after the other. So a server that is away is asked
// twice per second, however many releases it has missed.
func (r *redlockStore) sendPendingReleases(server int) {
	s := r.servers[server]
	for s.sleepOrClosed(r.life, reconnectInterval/2) == nil {
		for {
			id, l, more := r.nextPendingRelease(server)
			if !more {
				return
			}
			if !r.sendRelease(s, id, l) {
				break // the server is still away
			}
			r.mu.Lock()
			delete(r.pending[server].releases, id)
			r.mu.Unlock()
			s.forgetInFlight(id)
		}
	}
}

// nextPendingRelease returns a release that a server has missed, and drops those whose claim has ended by its TTL. If
// none is left, the goroutine that sends them must end.
func (r *redlockStore) nextPendingRelease(server int) (id string, l pendingRelease, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.pending[server]
	for id, l := range p.releases {
		if time.Now().Before(l.until) {
			return id, l, true
		}
		delete(p.releases, id)
		r.servers[server].forgetInFlight(id)
	}
	p.sending = false
	return "", pendingRelease{}, false
}

// sendRelease reports whether the server has replied.
func (r *redlockStore) sendRelease(s *store, id string, l pendingRelease) bool {
	ctx, cancel := context.WithTimeout(r.life, serverTime(l.ttl))
	defer cancel()
	keys := s.keys.allKeys(l.name)
	_, err := s.runScript(ctx, plainScripts.releaseQueued, keys[:], new(queueArgs).fill(s, id, l.tombstone))
	return err == nil || isRedisReply(err)
}

// releaseResult decides what a release has done. t are the replies of the last round; released and unknown say of each
// server whether, in any round, it replied that it had removed the claim, or may have done so without a reply.
// notesExpired says that the notes of operators' breaks may have been removed by now.
func (r *redlockStore) releaseResult(t replyCounts, released, unknown map[int]bool, notesExpired bool) error {
	certain, possible, maybeBroken := 0, 0, 0
	for i := range r.servers {
		reply, replied := t.byServer[i]
		switch {
		case released[i]:
			certain++
			possible++
		case !replied, reply == replyNotFound && unknown[i] && !notesExpired:
			possible++
		case (reply == replyMaybeBroken || reply == replyNotFound) && unknown[i]:
			maybeBroken++
		}
	}
	switch {
	case certain >= r.majority:
		return nil
	case t.byReply[replyBroken] > 0:
		return &driver.LossError{Cause: driver.LossBroken}
	case possible >= r.majority:
		return nil
	case possible+maybeBroken >= r.majority:
		return uncertainError(errMaybeBroken)
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// hasInFlight reports whether a request that may make the claim may still be on its way to a server.
func (r *redlockStore) hasInFlight(id string) bool {
	for _, s := range r.servers {
		if s.isInFlight(id) {
			return true
		}
	}
	return false
}
