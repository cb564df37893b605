package servepage

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
)

const (
	// listInterval is the pause between two listings while somebody looks at them.
	listInterval = 2 * time.Second
	// maxListed is how many locks of a store are listed.
	maxListed = 10_000
)

// lockState is a lock as it was read.
type lockState struct {
	holdfast.Lock
	at  time.Time // when the read started
	err error     // why it could not be read
}

// listing is what a store has listed.
type listing struct {
	locks  []lockState // in the order of their names
	at     time.Time   // when the read started
	took   time.Duration
	err    error // why the last read failed; the locks are then those of an earlier one
	capped bool  // there are more
}

// listLocks lists the store. It is called by one goroutine at a time.
func (p *Page) listLocks(ctx context.Context) listing {
	l := listing{at: time.Now()}
	for lock, err := range p.opts.Client.List(ctx, "") {
		if err != nil && lock.Name == "" {
			l.err = err
			break
		}
		if len(l.locks) == maxListed {
			l.capped = true
			break
		}
		l.locks = append(l.locks, lockState{Lock: lock, at: time.Now(), err: err})
	}
	l.took = time.Since(l.at)
	if l.err != nil {
		if last, ok := p.locks.peek(); ok { // what was seen is better than nothing, with its time
			last.err = l.err
			return last
		}
	}
	slices.SortFunc(l.locks, func(a, b lockState) int { return cmp.Compare(a.Name, b.Name) })
	if l.err == nil {
		p.history.observeListing(l)
	}
	return l
}

// differsFrom reports whether people should see a difference soon. Renewals make none.
func (l listing) differsFrom(o listing) bool {
	return (l.err == nil) != (o.err == nil) || l.capped != o.capped ||
		!slices.EqualFunc(l.locks, o.locks, lockState.looksLike)
}

// looksLike reports whether two readings show the same claims in the same states.
func (l lockState) looksLike(o lockState) bool {
	return l.Name == o.Name && l.Kind == o.Kind && l.Limit == o.Limit && (l.err == nil) == (o.err == nil) &&
		slices.EqualFunc(l.Holders, o.Holders, claimLooksLike) && slices.EqualFunc(l.Waiters, o.Waiters, claimLooksLike)
}

func claimLooksLike(a, b holdfast.ClaimInfo) bool {
	return a.Ref == b.Ref && a.Token == b.Token && a.Weight == b.Weight && a.Broken == b.Broken &&
		a.ReleaseRequested == b.ReleaseRequested && a.Detached == b.Detached
}

// until is when a claim expires if it is not renewed; zero if it is not known.
func (l lockState) until(c holdfast.ClaimInfo) time.Time {
	if c.Remaining <= 0 {
		return time.Time{}
	}
	return l.at.Add(c.Remaining)
}

// isExpired reports whether the time of a claim has passed. It is ended when the next client comes.
func (l lockState) isExpired(c holdfast.ClaimInfo, now time.Time) bool {
	until := l.until(c)
	return !until.IsZero() && until.Before(now)
}

// peek returns the value that was read last, however old it is.
func (s *shared[T]) peek() (value T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, !s.startedAt.IsZero()
}
