package serve

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxRateClients is how many clients have a rate of their own. Further ones share one.
const maxRateClients = 10_000

// rateLimits bound how many requests each client sends. A nil limit, or one of 0, allows all.
type rateLimits struct {
	perSecond float64

	mu      sync.Mutex
	clients map[string]*rateClient
	others  *rate.Limiter
	sweepAt time.Time
}

type rateClient struct {
	limiter *rate.Limiter
	usedAt  time.Time
}

func newRateLimits(perSecond float64) *rateLimits {
	l := &rateLimits{perSecond: perSecond, clients: map[string]*rateClient{}}
	l.others = l.newLimiter()
	return l
}

// newLimiter allows bursts of two seconds.
func (l *rateLimits) newLimiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(l.perSecond), max(1, int(2*l.perSecond)))
}

// allow counts a request of a client, and reports whether it may be answered.
func (l *rateLimits) allow(client string) bool {
	if l.perSecond <= 0 {
		return true
	}
	now := time.Now()
	l.mu.Lock()
	l.sweep(now)
	c := l.clients[client]
	limiter := l.others
	switch {
	case c != nil:
		c.usedAt, limiter = now, c.limiter
	case len(l.clients) < maxRateClients:
		limiter = l.newLimiter()
		l.clients[client] = &rateClient{limiter, now}
	}
	l.mu.Unlock()
	return limiter.AllowN(now, 1)
}

// sweep forgets clients that were not seen for a while: their bursts are full again.
func (l *rateLimits) sweep(now time.Time) {
	const after = 10 * time.Second
	if now.Before(l.sweepAt) {
		return
	}
	l.sweepAt = now.Add(after)
	for name, c := range l.clients {
		if now.Sub(c.usedAt) > after {
			delete(l.clients, name)
		}
	}
}
