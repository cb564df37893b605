package sim

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// host is a machine with one client on it. In a paired simulation each machine has a second host, for the other store.
type host struct {
	*machine
	name         string
	reliable     bool // no fault affects it
	sim          *simulation
	client       *holdfast.Client
	disconnected bool   // no message passes between it and the store
	second       *host  // in a paired simulation: the same machine with its client of the second store
	inSecond     bool   // it is such a host
	address      string // of the store, as the host knows it; empty: as all hosts know it
}

// machine is what the hosts of one machine share.
type machine struct {
	mu          sync.Mutex    // also guards disconnected
	running     chan struct{} // closed while the host runs; replaced by an open one while it is stopped
	crashed     bool
	suspended   bool          // its monotonic clock has stopped
	asleep      time.Duration // how long that clock was stopped in total
	suspendedAt time.Duration // when it stopped last
	// its Boottime can be set, and it is never suspended; otherwise Boottime is never set
	boottimeSettable bool
	boottimeOffset   time.Duration // by how much its Boottime was set
	clockBase        [2]time.Duration
	rate             float64
	wallOffset       time.Duration // the error of its wall clock
}

var errCrashed = errors.New("the host has crashed")

// newHost makes a machine with clocks of its own: they began at different times, run at slightly different rates,
// and the wall clock may be days wrong.
func newHost(sim *simulation, name string) *host {
	h := &host{name: name, sim: sim, machine: &machine{running: make(chan struct{})}}
	close(h.running)
	h.clockBase = [2]time.Duration{sim.upTo(time.Hour), sim.upTo(time.Hour)}
	h.boottimeSettable = sim.chance(0.3)
	h.rate = 1 + (sim.randomFloat()-0.5)/100
	h.wallOffset = sim.upTo(2*time.Minute) - time.Minute
	if sim.chance(0.3) { // nobody has set it
		h.wallOffset += sim.upTo(6*24*time.Hour) - 3*24*time.Hour
	}
	return h
}

// newClock returns the host's own clock. Its rate differs from that of the other hosts.
func (h *host) newClock() driver.Clock {
	return driver.Clock{
		Monotonic: func() time.Duration {
			h.mu.Lock()
			defer h.mu.Unlock()
			now := h.sim.elapsed()
			if h.suspended {
				now = h.suspendedAt
			}
			return h.clockBase[0] + time.Duration(float64(now-h.asleep)*h.rate)
		},
		Boottime: func() time.Duration {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.clockBase[1] + time.Duration(float64(h.sim.elapsed())*h.rate) + h.boottimeOffset
		},
	}
}

// waitUntilRunning blocks while the host is stopped.
func (h *host) waitUntilRunning(ctx context.Context) error {
	for {
		h.mu.Lock()
		open, crashed := h.running, h.crashed
		h.mu.Unlock()
		if crashed {
			return errCrashed
		}
		select {
		case <-open:
			h.mu.Lock()
			again := h.running != open
			h.mu.Unlock()
			if !again {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-h.sim.ended:
			return errCrashed
		}
	}
}

// stopFor pauses the host for d, as SIGSTOP does, or suspends it, as closing the lid of a laptop does.
func (h *host) stopFor(d time.Duration, suspend bool) {
	h.mu.Lock()
	if h.crashed || !isClosed(h.running) {
		h.mu.Unlock()
		return
	}
	h.running = make(chan struct{})
	suspend = suspend && !h.boottimeSettable
	h.suspended, h.suspendedAt = suspend, h.sim.elapsed()
	h.mu.Unlock()
	if suspend {
		h.sim.checker.noteSuspension(h)
		if h.sim.runs != nil {
			h.sim.runs.noteRunSuspension(h)
		}
	}
	time.Sleep(d)
	h.mu.Lock()
	if suspend {
		h.asleep += h.sim.elapsed() - h.suspendedAt
		h.suspended = false
	}
	close(h.running)
	h.mu.Unlock()
}

func (h *host) crash() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.crashed = true
	if !isClosed(h.running) {
		close(h.running)
	}
}

func (h *host) setDisconnected(cut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.disconnected = cut
}

func (h *host) setClock(by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boottimeSettable {
		h.boottimeOffset += by
	}
	h.wallOffset += by
}

// isReachable reports whether messages pass between the host and the store now.
func (h *host) isReachable() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.disconnected && !h.crashed
}

// canAct reports whether a user on the host can do something now.
func (h *host) canAct() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.crashed && !h.suspended
}

func (h *host) hasCrashed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.crashed
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
