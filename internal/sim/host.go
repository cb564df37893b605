package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// host is a machine with one client on it.
type host struct {
	name     string
	reliable bool // nothing goes wrong for it
	world    *World
	client   *holdfast.Client

	mu        sync.Mutex
	open      chan struct{} // closed while the host runs; replaced by an open one while it does not
	cut       bool          // nothing passes between it and the store
	crashed   bool
	suspended bool          // its monotonic clock stands still
	asleep    time.Duration // how long that clock stood still, all in all
	since     time.Duration // when it last began to
	settable  bool          // its other hand is the wall clock, and it never sleeps; else it counts sleep and is never set
	jumped    time.Duration // how far its other hand was set
	base      [2]time.Duration
	rate      float64
	wall      time.Duration // how wrong its wall clock is
}

var errCrashed = errors.New("the host has crashed")

func newHost(w *World, name string) *host {
	h := &host{name: name, world: w, open: make(chan struct{})}
	close(h.open)
	h.base = [2]time.Duration{w.upTo(time.Hour), w.upTo(time.Hour)}
	h.settable = w.chance(0.3)
	h.rate = 1 + (w.float()-0.5)/100
	h.wall = w.upTo(2*time.Minute) - time.Minute
	return h
}

// clock is the host's own.
func (h *host) clock() driver.Clock {
	return driver.Clock{
		Monotonic: func() time.Duration {
			h.mu.Lock()
			defer h.mu.Unlock()
			now := h.world.elapsed()
			if h.suspended {
				now = h.since
			}
			return h.base[0] + time.Duration(float64(now-h.asleep)*h.rate)
		},
		Boottime: func() time.Duration {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.base[1] + time.Duration(float64(h.world.elapsed())*h.rate) + h.jumped
		},
	}
}

// pass blocks while the host does not run.
func (h *host) pass(ctx context.Context) error {
	for {
		h.mu.Lock()
		open, crashed := h.open, h.crashed
		h.mu.Unlock()
		if crashed {
			return errCrashed
		}
		select {
		case <-open:
			h.mu.Lock()
			again := h.open != open
			h.mu.Unlock()
			if !again {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-h.world.over:
			return errCrashed
		}
	}
}

// stop pauses the host for d, as SIGSTOP does, or suspends it, as closing the lid does.
func (h *host) stop(d time.Duration, suspend bool) {
	h.mu.Lock()
	if h.crashed || !closed(h.open) {
		h.mu.Unlock()
		return
	}
	h.open = make(chan struct{})
	suspend = suspend && !h.settable
	h.suspended, h.since = suspend, h.world.elapsed()
	h.mu.Unlock()
	if suspend {
		h.world.judge.slept(h)
	}
	time.Sleep(d)
	h.mu.Lock()
	if suspend {
		h.asleep += h.world.elapsed() - h.since
		h.suspended = false
	}
	close(h.open)
	h.mu.Unlock()
}

func (h *host) crash() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.crashed = true
	if !closed(h.open) {
		close(h.open)
	}
}

func (h *host) setCut(cut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = cut
}

func (h *host) setClock(by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.settable {
		h.jumped += by
	}
	h.wall += by
}

// reachable reports whether a message passes now.
func (h *host) reachable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.cut && !h.crashed
}

// acts reports whether a user on the host can do something now.
func (h *host) acts() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.crashed && !h.suspended
}

func (h *host) dead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.crashed
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
