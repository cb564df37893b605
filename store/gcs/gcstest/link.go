package gcstest

import (
	"net/http"
	"sync"
)

// Link is a client's connection to a service. While it is cut, requests and replies wait, and none is refused.
// When it is healed they continue, late.
type Link struct {
	Base http.RoundTripper

	mu     sync.Mutex
	healed chan struct{} // not nil while it is cut; closed when it heals
}

// Cut cuts the link.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.healed == nil {
		l.healed = make(chan struct{})
	}
}

// Heal undoes it.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.healed != nil {
		close(l.healed)
		l.healed = nil
	}
}

// RoundTrip passes a request and its reply, each when the link is not cut.
func (l *Link) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := l.awaitHealed(r); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	reply, err := l.Base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := l.awaitHealed(r); err != nil {
		reply.Body.Close()
		return nil, err
	}
	return reply, nil
}

// awaitHealed waits while the link is cut.
func (l *Link) awaitHealed(r *http.Request) error {
	l.mu.Lock()
	healed := l.healed
	l.mu.Unlock()
	if healed == nil {
		return r.Context().Err()
	}
	select {
	case <-healed:
		return nil
	case <-r.Context().Done():
		return r.Context().Err()
	}
}
