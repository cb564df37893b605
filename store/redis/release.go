package redis

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// Release gives a plain mutex back in one round trip. Where claims wait in the queue, the same script promotes the next
// one. A forced break leaves a note, by which a release whose first reply was lost tells its own effect from an
// operator's.
func (s *store) Release(ctx context.Context, c driver.Claim, ref string) error {
	id := cmp.Or(c.ID, idOf(ref))
	if id == "" || c.ID != "" && ref != "" && c.ID != idOf(ref) {
		return &driver.LossError{Cause: driver.LossGone} // no claim has both ids
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	p := s.newRetryLoop(max(c.TTL, driver.MinTTL))
	p.skipClock, p.startedAt = true, time.Now()
	tombstone := s.isInFlight(id)
	reply, err := s.sendRelease(ctx, &p, &c, id, tombstone)
	if err != nil {
		return err
	}
	if tombstone {
		s.forgetInFlight(id)
	}
	return p.releaseResult(reply)
}

// sendRelease runs the script that fits. With a tombstone, a request that may still make the claim is refused when it
// arrives.
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
	case c.Kind == driver.KindMutex && !c.Fair && !tombstone:
		m, _, err = p.run(ctx, s.scripts.release, []string{lock, s.scripts.recordKey(lock)},
			[]string{id, s.publishCommand()})
		if err != nil || readNumber(m) != replyUseQueue {
			return readNumber(m), err
		}
	}
	keys := s.keys.allKeys(c.Name)
	var args queueArgs
	m, _, err = p.run(ctx, s.scripts.releaseQueued, keys[:], args.fill(s, id, mark))
	return readNumber(m), err
}

// releaseResult decides what a release has done. Where the script found no claim, and no note that an operator ended
// it, an earlier request of this call has removed it, if one may have arrived.
func (p *retryLoop) releaseResult(reply int64) error {
	switch {
	case reply == replyDone:
		return nil
	case reply == replyBroken:
		return &driver.LossError{Cause: driver.LossBroken}
	case !p.outcomeUnknown:
		return &driver.LossError{Cause: driver.LossGone}
	case reply == replyMaybeBroken || isNoteExpired(p.startedAt):
		return uncertainError(errMaybeBroken)
	}
	return nil
}

// breakNoteTime is how long the note of a break is kept at least, beyond its claim's TTL (NOTETIME in notes.lua). A
// release begins while its lease is still valid, and finds a note for as long as that afterwards.
const breakNoteTime = 10 * time.Minute

// isNoteExpired reports whether a release began so long ago that a note may have been removed. It looks at the wall
// clock too, since the process or the machine may have been suspended.
func isNoteExpired(startedAt time.Time) bool {
	now := time.Now()
	return max(now.Sub(startedAt), now.Round(0).Sub(startedAt.Round(0))) > breakNoteTime
}

// errMaybeBroken is for a lock on which so many claims were broken, or so long ago, that not all of them are
// remembered.
var errMaybeBroken = errors.New("the claim does not exist any more: this release has ended it, or an operator did before")
