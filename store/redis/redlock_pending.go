package redis

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// A server that is away while a claim is released still has the claim when it returns. Until the TTL ends there, that
// server would be missing from the majority of the next claim. So such releases are kept, a bounded number of them, and
// sent when the server is back.

// pendingReleases are the releases that one server has missed.
type pendingReleases struct {
	releases map[string]pendingRelease // by claim id
	sending  bool                      // a goroutine is sending them
}

// pendingRelease is a release that a server has missed.
type pendingRelease struct {
	name, tombstone string
	ttl             time.Duration
	until           time.Time // when the claim's TTL has ended it on the server anyway
}

// maxPendingReleases bounds how many releases are kept for a server. Claims beyond it end there by their TTL.
const maxPendingReleases = 4096

// releaseEverywhere removes a claim from all servers. If a request of its Acquire may still be under way, all servers
// get a tombstone, by which they refuse that request. A server that did not reply gets its release later, but only once
// a majority has replied: until then the caller repeats the round.
func (r *redlockStore) releaseEverywhere(ctx context.Context, name, id string, ttl time.Duration) (replyCounts, error) {
	keys := r.servers[0].keys.allKeys(name)
	tombstone := ""
	if r.countInFlight(id) > 0 {
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

// scheduleRelease sends a release to a server when that is back, unless the claim's TTL has ended there before.
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
		r.life.Go(func() { r.sendPendingReleases(server) })
	}
}

// sendPendingReleases sends a server the releases that it has missed, one after the other. So a server that is away
// gets two requests per second, however many releases it has missed.
func (r *redlockStore) sendPendingReleases(server int) {
	s := r.servers[server]
	for s.life.Sleep(r.life, reconnectInterval/2) == nil {
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

// nextPendingRelease returns a release that a server has missed, and drops those whose claims have expired. If none is
// left, the goroutine that sends them must end: sending is cleared with mu held, so that the next release starts
// another one.
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

// sendRelease sends one release, and reports whether the server has replied. Any reply will do: a server that refuses
// the release would refuse it again.
func (r *redlockStore) sendRelease(s *store, id string, l pendingRelease) bool {
	ctx, cancel := context.WithTimeout(r.life, serverTime(l.ttl))
	defer cancel()
	keys := s.keys.allKeys(l.name)
	_, err := s.runScript(ctx, plainScripts.releaseQueued, keys[:], new(queueArgs).fill(s, id, l.tombstone))
	return err == nil || isRedisReply(err)
}

// releaseResult decides what a release has done. t has the replies of the last round. released and unknown say of each
// server whether, in any round, it replied that it had removed the claim, or may have done so without a reply.
// notesExpired means that the notes of operators' breaks may have been removed by now.
//
// The release succeeded if a majority may have had the claim until then. A server counts as certain if it removed the
// claim, and as possible if it has not replied, or may have removed it earlier in this call.
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
		return driverutil.Unresolved(errMaybeBroken)
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// countInFlight counts the servers to which a request that may make the claim may still be on its way.
func (r *redlockStore) countInFlight(id string) (n int) {
	for _, s := range r.servers {
		if s.isInFlight(id) {
			n++
		}
	}
	return n
}
