package holdfast

import (
	"context"
	"sync"
	"time"
)

// timeoutCache makes contexts that end after a time, and gives the same context to all callers that ask for the same
// time at nearly the same moment. A context and a timer for each Release would cost more than the rest of it.
type timeoutCache struct {
	base   context.Context
	mu     sync.Mutex
	recent map[time.Duration]cachedTimeout
}

type cachedTimeout struct {
	ctx    context.Context
	cancel context.CancelFunc
	since  time.Time
}

// maxCachedTimeouts is how many different times are remembered. There are one or two as a rule: those of the TTLs in
// use.
const maxCachedTimeouts = 64

// contextFor returns a context that ends after d, or up to an eighth earlier, or with the base.
func (s *timeoutCache) contextFor(d time.Duration) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.recent[d]
	if ok && time.Since(last.since) < d/8 {
		return last.ctx
	}
	if s.recent == nil || len(s.recent) >= maxCachedTimeouts {
		s.recent = map[time.Duration]cachedTimeout{}
	}
	last.since = time.Now()
	last.ctx, last.cancel = context.WithTimeout(s.base, d)
	s.recent[d] = last
	return last.ctx
}
