package redis

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Release releases a claim, whether it holds the lock, waits or is unknown. That takes one round trip, or two for a
// plain mutex for which claims wait, but none of this client. The script that releases also promotes the next claim,
// so that a hand-over needs no further request.
//
// A release whose reply is lost is repeated, and the repetition finds no claim. That alone does not say whether the
// first request released the claim or an operator broke it before. So a forced break leaves a note in the record, which
// the script reports.
func (s *store) Release(ctx context.Context, c driver.Claim, ref string) error {
	id := cmp.Or(c.ID, idOf(ref))
	if id == "" || c.ID != "" && ref != "" && c.ID != idOf(ref) {
		return &driver.LossError{Cause: driver.LossGone} // no claim has both ids
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	p := s.newRetryLoop(max(c.TTL, driver.MinTTL))
	p.startedAt = time.Now()
	// A request of this claim's Acquire without a reply may still be on its way, on another connection, and would make
	// the claim after the release. The tombstone makes the scripts refuse it.
	tombstone := s.isInFlight(id)
	reply, err := s.sendRelease(ctx, &p, &c, id, tombstone)
	if err != nil {
		return err
	}
	if tombstone {
		s.forgetInFlight(id)
	}
	return s.addReason(ctx, c.Name, id, p.releaseResult(reply))
}

// sendRelease runs the script that fits: release.lua for the usual case, which is the cheapest, and release_queued.lua
// if that replies that it cannot decide, or if a tombstone has to be written.
func (s *store) sendRelease(ctx context.Context, p *retryLoop, c *driver.Claim, id string,
	tombstone bool) (reply int64, err error) {
	lock, mark := s.keys.lockKey(c.Name), ""
	if tombstone {
		mark = "1"
	}
	var m rueidis.RedisMessage
	switch {
	case s.scripts.releaseQueued == nil:
		args := []string{id, s.publishCommand(), s.scripts.channel(lock), mark}
		m, _, err = p.run(ctx, s.scripts.release, []string{lock, s.scripts.recordKey(lock)}, args)
		return readNumber(m), err
	// The cheap script first, unless claims probably wait: a fair lock is handed over in one round trip. It cannot write
	// a tombstone, and shared claims have more keys.
	case c.Kind == driver.KindMutex && !c.Fair && !tombstone && !s.isContended(lock):
		m, _, err = p.run(ctx, s.scripts.release, []string{lock, s.scripts.recordKey(lock)}, []string{id})
		if err != nil || readNumber(m) != replyUseQueue {
			return readNumber(m), err
		}
	}
	keys := s.keys.allKeys(c.Name)
	var args queueArgs
	m, _, err = p.run(ctx, s.scripts.releaseQueued, keys[:],
		args.fill(s, id, mark, strconv.FormatInt(s.opts.ForeignTurn.Milliseconds(), 10)))
	return readNumber(m), err
}

// releaseResult decides what a release has done. If the script found neither the claim nor a note that an operator
// ended it, then an earlier request of this call has released it, if one may have arrived.
func (r *retryLoop) releaseResult(reply int64) error {
	switch {
	case reply == replyDone:
		return nil
	case reply == replyBroken:
		return &driver.LossError{Cause: driver.LossBroken}
	case !r.Uncertain:
		return &driver.LossError{Cause: driver.LossGone}
	case reply == replyMaybeBroken || isNoteExpired(r.startedAt):
		return driverutil.Unresolved(errMaybeBroken)
	}
	return nil
}

// breakNoteTime is the minimum time for which the note of a break is kept beyond its claim's TTL (NOTE_TIME in
// shared/notes.lua). A release begins while its lease is still valid, and for that long afterwards it still finds the
// note.
const breakNoteTime = 10 * time.Minute

// isNoteExpired reports whether a release began so long ago that a note may have been removed meanwhile. It compares
// the wall clock too: the monotonic clock may stop while the machine sleeps, and the server's clock does not.
func isNoteExpired(startedAt time.Time) bool {
	now := time.Now()
	return max(now.Sub(startedAt), now.Round(0).Sub(startedAt.Round(0))) > breakNoteTime
}

// errMaybeBroken is returned if it is unknown who ended the claim: notes of that time are missing, because too many
// claims of the lock were broken, or because the break may be too long ago.
var errMaybeBroken = errors.New("the claim is gone; this release, or an operator before it, removed it")
