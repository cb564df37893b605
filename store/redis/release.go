package redis

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// Release gives a plain mutex back in one round trip; where there is a line, the next in it is called in the same step. Whoever
// breaks a claim by force leaves a note of it, so that a release whose first reply was lost tells its own doing from that.
func (s *Store) Release(ctx context.Context, c driver.Claim, ref string) error {
	id := cmp.Or(c.ID, idOf(ref))
	switch {
	case c.ID != "" && ref != "" && c.ID != idOf(ref):
		return &driver.LossError{Cause: driver.LossGone} // no claim is both
	case id == "":
		return &driver.LossError{Cause: driver.LossGone}
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	lock := s.keys.lockKey(c.Name)
	bar := ""
	if s.isInFlight(id) {
		bar = "1"
	}
	p := s.newRetryLoop(max(c.TTL, driver.MinTTL))
	p.skipClock, p.startedAt = true, time.Now()
	var m rueidis.RedisMessage
	var err error
	asked := false
	switch {
	case s.scripts.releaseQueued == nil:
		m, _, err = p.run(ctx, s.scripts.release, []string{lock, s.scripts.recordKey(lock)}, []string{id, s.publishCommand(), s.scripts.channel(lock), bar})
		asked = true
	case c.Kind == driver.KindMutex && !c.Fair && bar == "":
		m, _, err = p.run(ctx, s.scripts.release, []string{lock, s.scripts.recordKey(lock)}, []string{id, s.publishCommand()})
		asked = err != nil || readNumber(m) != replyUseQueue
	}
	if !asked {
		keys := s.keys.allKeys(c.Name)
		var args queueArgs
		m, _, err = p.run(ctx, s.scripts.releaseQueued, keys[:], args.fill(s, id, bar))
	}
	if err == nil && bar != "" {
		s.forgetInFlight(id)
	}
	if err != nil {
		return err
	}
	return p.releaseResult(readNumber(m))
}

// releaseResult is the outcome of a release. Where nothing stood, and nobody has left a note that he ended the claim, an earlier request
// of this call has removed it, if one may have come through.
func (p *retryLoop) releaseResult(answer int64) error {
	switch {
	case answer == 1:
		return nil
	case answer == replyBroken:
		return &driver.LossError{Cause: driver.LossBroken}
	case !p.outcomeUnknown:
		return &driver.LossError{Cause: driver.LossGone}
	case answer == replyMaybeBroken || isNoteExpired(p.startedAt):
		return uncertainError(errMaybeBroken)
	}
	return nil
}

// breakNoteTime is how long after its claim's TTL a note of a break is kept at least (NOTETIME in notes.lua). A release begins while its
// lease is believed in: so for as long after that a note would be found.
const breakNoteTime = 10 * time.Minute

// isNoteExpired reports whether a release has begun so long ago, also in a process or a machine that stood still meanwhile, that a note
// may have been removed.
func isNoteExpired(begun time.Time) bool {
	now := time.Now()
	return max(now.Sub(begun), now.Round(0).Sub(begun.Round(0))) > breakNoteTime
}

// errMaybeBroken: so many claims were broken on a lock, or so long ago, that not all of them are remembered.
var errMaybeBroken = errors.New("the claim does not stand: either this release has ended it, or an operator before it")
