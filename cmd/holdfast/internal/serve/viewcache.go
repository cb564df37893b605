package serve

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

// viewCache reads locks on behalf of all streams that wait for them, each at most once per positionPause.
type viewCache struct {
	client *holdfast.Client

	mu    sync.Mutex
	locks map[string]*lockReading
}

// lockReading is the last reading of a lock, or one under way.
type lockReading struct {
	at      time.Time
	lock    holdfast.Lock
	known   bool
	waiting []chan<- holdfast.Lock // for the reading under way; nil if there is none
	reading bool
}

func (v *viewCache) init(client *holdfast.Client) {
	v.client, v.locks = client, map[string]*lockReading{}
}

// look puts the state of a lock into a channel when it is known. It never blocks; a channel that is full is left as it
// is.
func (v *viewCache) look(ctx context.Context, name string, to chan<- holdfast.Lock) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if len(v.locks) > 1000 {
		for other, reading := range v.locks {
			if !reading.reading && now.Sub(reading.at) > positionPause {
				delete(v.locks, other)
			}
		}
	}
	reading := v.locks[name]
	if reading == nil {
		reading = &lockReading{}
		v.locks[name] = reading
	}
	switch {
	case reading.known && now.Sub(reading.at) < positionPause/2:
		offer(to, reading.lock)
	case reading.reading:
		reading.waiting = append(reading.waiting, to)
	default:
		reading.reading, reading.waiting = true, []chan<- holdfast.Lock{to}
		go v.read(context.WithoutCancel(ctx), name, reading)
	}
}

// read reads a lock for all streams that wait for its state, in one request. If that fails, they go on with the
// last state.
func (v *viewCache) read(ctx context.Context, name string, reading *lockReading) {
	ctx, cancel := context.WithTimeout(ctx, positionPause)
	defer cancel()
	lock, err := v.client.Inspect(ctx, name)
	v.mu.Lock()
	defer v.mu.Unlock()
	reading.at, reading.reading = time.Now(), false
	if err == nil {
		reading.lock, reading.known = lock, true
		for _, to := range reading.waiting {
			offer(to, lock)
		}
	}
	reading.waiting = nil
}

func offer(to chan<- holdfast.Lock, lock holdfast.Lock) {
	select {
	case to <- lock:
	default:
	}
}
