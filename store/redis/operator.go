package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	errForeign = fmt.Errorf("%w: a foreign holder cannot be told, only removed by force", driver.ErrUnsupported)
	errNoLock  = fmt.Errorf("%w: what stands there is neither a short string nor a small hash, as locks are; if it may go, delete the key by hand", driver.ErrUnsupported)
)

// Break is one step. It raises the lock's token where it removes a holder.
func (s *Store) Break(ctx context.Context, name, ref string, mode driver.BreakMode) error {
	if ref == "" || mode < driver.BreakGraceful || mode > driver.BreakRequestRelease {
		return fmt.Errorf("%w: a break needs a ref that Inspect gave and a known mode", driver.ErrInvalid)
	}
	if err := driver.CheckName(name, s.info); err != nil {
		return err
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	keys := s.keys.allKeys(name)
	p := s.newRetryLoop(driver.MaxTTL)
	m, _, err := p.run(ctx, s.scripts.breakClaim, keys[:s.scripts.keyCount], s.breakArgs(keys[0], idOf(ref), strconv.Itoa(int(mode))))
	switch {
	case err != nil:
		return err
	case readNumber(m) == 1:
		return nil
	case readNumber(m) == -1:
		return errForeign
	case readNumber(m) == -2:
		return errNoLock
	case p.outcomeUnknown && mode != driver.BreakRequestRelease:
		return nil // an earlier request of this call has removed it
	}
	return &driver.LossError{Cause: driver.LossGone}
}

func (s *Store) breakArgs(lock string, mine ...string) []string {
	if s.scripts.releaseQueued == nil {
		return append([]string{s.publishCommand(), s.scripts.channel(lock), retentionMillis}, mine...)
	}
	return new(queueArgs).fill(s, mine...)
}

// Detach is one step. The claim ends by the server's clock, keep after the step.
func (s *Store) Detach(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if keep <= 0 || keep > driver.MaxTTL {
		return fmt.Errorf("%w: a claim can be left standing for up to %v, not %v", driver.ErrInvalid, driver.MaxTTL, keep)
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	keys := s.keys.allKeys(g.Name)
	p := s.newRetryLoop(g.GrantedTTL)
	ms := (keep + time.Millisecond - 1).Milliseconds()
	m, _, err := p.run(ctx, s.scripts.detach, keys[:s.scripts.keyCount],
		s.breakArgs(keys[0], renewID(&g), strconv.FormatInt(g.Token, 10), strconv.FormatInt(ms, 10)))
	if err != nil {
		return err
	}
	switch readNumber(m) {
	case 1:
		return nil
	case -1:
		return &driver.LossError{Cause: driver.LossTaken}
	case -2:
		return &driver.LossError{Cause: driver.LossBroken}
	}
	return &driver.LossError{Cause: driver.LossGone}
}
