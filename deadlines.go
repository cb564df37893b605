package holdfast

import (
	"context"
	"sync"
	"time"
)

// deadlines gives contexts that end after a while, the same one to all who ask for as long at nearly the same time: a
// context and a timer for each Unlock would cost more than the rest of it.
type deadlines struct {
	base   context.Context
	mu     sync.Mutex
	recent map[time.Duration]deadline
}

type deadline struct {
	ctx    context.Context
	cancel context.CancelFunc
	since  time.Time
}

// maxDeadlines is how many different times are remembered. As a rule there are one or two.
const maxDeadlines = 64

// within gives a context that ends after d, or up to an eighth earlier, or with the base.
func (s *deadlines) within(d time.Duration) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.recent[d]
	if ok && time.Since(last.since) < d/8 {
		return last.ctx
	}
	if s.recent == nil || len(s.recent) >= maxDeadlines {
		s.recent = map[time.Duration]deadline{}
	}
	last.since = time.Now()
	last.ctx, last.cancel = context.WithTimeout(s.base, d) // others may still use the one before, so it is left to its timer
	s.recent[d] = last
	return last.ctx
}
