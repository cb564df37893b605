package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	// errForeign is returned for a graceful break or a requested release: a foreign client reads no flags of ours.
	errForeign = fmt.Errorf("%w: a foreign holder cannot be notified, only removed by force", driver.ErrUnsupported)
	// errNoLock is returned for a key whose value is too large to be a lock, or of another type: it is probably the
	// user's data under a mistyped name, which a break must not remove.
	errNoLock = fmt.Errorf("%w: the key has neither a short string nor a small hash, as locks are; to remove it, delete the key by hand",
		driver.ErrUnsupported)
)

// checkBreak refuses a call of Break that makes no sense.
func checkBreak(name, ref string, b driver.Break, info driver.Info) error {
	if ref == "" || b.Mode < driver.BreakGraceful || b.Mode > driver.BreakRequestRelease {
		return fmt.Errorf("%w: a break needs a ref that Inspect gave and a known mode", driver.ErrInvalid)
	}
	return driver.CheckName(name, info)
}

// Break runs one script. If that removes a holder, it raises the lock's token: the holder may go on working until it
// learns of it, and whatever checks tokens then refuses its token. It also leaves a note with the reason, by which the
// holder learns why it lost the lock. In Redisson's layout the reason is dropped.
func (s *store) Break(ctx context.Context, name, ref string, b driver.Break) error {
	if err := checkBreak(name, ref, b, s.info); err != nil {
		return err
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	keys := s.keys.allKeys(name)
	p := s.newRetryLoop(driver.MaxTTL)
	args := s.operatorArgs(keys[0], idOf(ref), strconv.Itoa(int(b.Mode)), b.Reason)
	m, _, err := p.run(ctx, s.scripts.breakClaim, keys[:s.scripts.keyCount], args)
	if err != nil {
		return err
	}
	switch readNumber(m) {
	case replyDone:
		return nil
	case breakForeign:
		return errForeign
	case breakNoLock:
		return errNoLock
	}
	// An earlier request of this call had no reply, and the claim is gone now: that request has removed it. A requested
	// release removes nothing, so there the claim has ended without it.
	if p.Uncertain && b.Mode != driver.BreakRequestRelease {
		return nil
	}
	return &driver.LossError{Cause: driver.LossGone}
}

// operatorArgs returns the arguments of the scripts that break and detach.
func (s *store) operatorArgs(lock string, more ...string) []string {
	if s.scripts.releaseQueued == nil {
		return append([]string{s.publishCommand(), s.scripts.channel(lock), retentionMillis}, more...)
	}
	return new(queueArgs).fill(s, more...)
}

// checkKeep refuses a duration for which a claim cannot be detached.
func checkKeep(keep time.Duration) error {
	if keep <= 0 || keep > driver.MaxTTL {
		return fmt.Errorf("%w: a claim can be detached for up to %v, not %v", driver.ErrInvalid, driver.MaxTTL, keep)
	}
	return nil
}

// millisRoundedUp counts a part of a millisecond as a whole one, so that a claim is not held for less than was asked.
func millisRoundedUp(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

// Detach runs one script. The claim ends by the server's clock, keep after the script has run. A repeated request sets
// the same time again, from its own run: the claim may be held for longer then, never for less.
func (s *store) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := checkKeep(keep); err != nil {
		return err
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	keys := s.keys.allKeys(g.Name)
	p := s.newRetryLoop(g.GrantedTTL)
	args := s.operatorArgs(keys[0], renewID(&g), strconv.FormatInt(g.Token, 10),
		strconv.FormatInt(millisRoundedUp(keep), 10))
	m, _, err := p.run(ctx, s.scripts.detach, keys[:s.scripts.keyCount], args)
	if err != nil {
		return err
	}
	switch readNumber(m) {
	case replyDone:
		return s.confirmChange(ctx, &g)
	case detachTaken:
		return &driver.LossError{Cause: driver.LossTaken}
	case detachBroken:
		return s.addReason(ctx, g.Name, renewID(&g), &driver.LossError{Cause: driver.LossBroken})
	}
	return &driver.LossError{Cause: driver.LossGone}
}
