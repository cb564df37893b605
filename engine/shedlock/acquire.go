package shedlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Acquire is idempotent by the claim's id: a claim that holds the lock is renewed.
func (s *store) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := c.Check(s.info); err != nil {
		return driver.Grant{}, err
	}
	if c.Kind != driver.KindMutex || c.Fair || c.Limit != 1 {
		return driver.Grant{}, driverutil.OnlyUnfairMutexes("shedlock")
	}
	loop := s.newLoop(c.TTL)
	g, seen, err := s.takeLock(ctx, c, loop)
	if err == nil {
		return g, nil
	}
	if ctx.Err() != nil && !driverutil.IsFinal(err) {
		err = ctx.Err()
		if seen.Remaining > 0 {
			err = fmt.Errorf("%w; %w", err, seen.HeldError())
		}
	}
	return driver.Grant{}, loop.End(err)
}

// takeLock tries to take the lock until it has it, or must give up. seen is the row for which the claim has waited.
func (s *store) takeLock(
	ctx context.Context, c driver.Claim, loop *driverutil.RetryLoop,
) (g driver.Grant, seen Row, err error) {
	signature := makeSignature(c, s.signatureRoom)
	for {
		if ctx.Err() != nil {
			return g, seen, ctx.Err()
		}
		since := s.info.Clock.Now()
		loop.RequestStarted(since)
		t := s.table.TakeRow(ctx, c.Name, signature, c.TTL)
		v, err := t.Seen, t.Err
		switch {
		case t.Pending != nil:
			s.rememberTake(c.ID, t.Pending)
			loop.Uncertain = true
			return g, seen, err
		case err != nil && !errors.Is(err, record.ErrConflict):
			err = loop.PauseAfterFailure(ctx, err, !errors.Is(err, record.ErrUnsent))
		case err == nil && t.Token != 0:
			return driver.Grant{Claim: c, Token: t.Token, Since: since, GrantedTTL: c.TTL, Ref: c.ID}, seen, nil
		case err == nil && v.Remaining > 0 && v.ClaimID == c.ID && v.Claim.Broken:
			return g, seen, v.LossError(c.ID)
		case err != nil, v.Remaining <= 0, v.ClaimID == c.ID:
			// Another client was faster, and may have ended its claim since, or an earlier try of this claim was late.
			err = loop.PauseAfterAnswer(ctx)
		case !c.Wait:
			return g, seen, v.HeldError()
		default:
			if seen, err = s.waitUntilFree(ctx, c.Name, v, loop); err == nil {
				loop.Restart()
			}
		}
		if err != nil {
			return g, seen, err
		}
	}
}

// How long a waiter waits at most before it reads the row again. Foreign holders do not notify.
const (
	maxPollDelay    = time.Second
	maxWatchedDelay = 5 * time.Second
)

// waitUntilFree returns when the lock seems to be free, with the row as it was seen last.
func (s *store) waitUntilFree(
	ctx context.Context, name string, seen Row, loop *driverutil.RetryLoop,
) (Row, error) {
	wait, delayOfOurs := s.table.Sleep, maxPollDelay
	if watch := s.table.WatchRow(name); watch != nil {
		defer watch.Close()
		wait, delayOfOurs = watch.Wait, maxWatchedDelay
	}
	for polls := 0; seen.Remaining > 0; polls++ {
		longest := maxPollDelay
		if seen.ClaimID != "" {
			longest = delayOfOurs
		}
		delay := min(rand.N(longest)/2+20*time.Millisecond<<min(polls, 8), longest)
		loop.NoteAnswer()
		if err := wait(ctx, min(delay, seen.Remaining+time.Millisecond)); err != nil {
			return seen, err
		}
		loop.RequestStarted(s.info.Clock.Now())
		v, err := s.table.ReadRow(ctx, name)
		switch {
		case err == nil:
			seen = v
		case ctx.Err() != nil || driverutil.IsFinal(err):
			return seen, err
		default:
			return seen, nil // the next take gets the same error, and decides what to do
		}
	}
	return seen, nil
}

// rememberTake keeps a take that is under way, so that the claim's release can wait for its result. A release that
// overtook the take, on another connection, would find nothing to end, and the lock would then be held for the whole
// TTL by nobody. It forgets those whose result has arrived and whose claims were never released.
func (s *store) rememberTake(id string, pending <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pendingTakes, func(_ string, pending <-chan struct{}) bool {
		select {
		case <-pending:
			return true
		default:
			return false
		}
	})
	s.pendingTakes[id] = pending
}

// awaitTake waits for a take that is under way.
func (s *store) awaitTake(ctx context.Context, id string) error {
	s.mu.Lock()
	pending := s.pendingTakes[id]
	s.mu.Unlock()
	if pending == nil {
		return nil
	}
	select {
	case <-pending:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
