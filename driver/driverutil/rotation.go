package driverutil

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Rotation keeps one value per TTL that is good only for a while, such as a session that nobody renews. When the value
// has been used for a third of the TTL, the next caller makes another one, and callers that come meanwhile wait for it.
// The methods may be called concurrently.
type Rotation[T comparable] struct {
	Clock driver.Clock
	// Make makes a value. The third is counted from the start of the call.
	Make func(ctx context.Context, ttl time.Duration) (T, error)
	// Retire, if set, is told of a value that is not handed out any more, but may be in use.
	Retire func(T)

	mu    sync.Mutex
	byTTL map[time.Duration]*rotated[T]
}

type rotated[T comparable] struct {
	turn   chan struct{} // holds an element while somebody looks at the fields below
	exists bool
	value  T
	since  driver.Instant
}

// maxRotated limits how many TTLs have a value. A program uses few of them.
const maxRotated = 64

// Get returns the value of a TTL. It returns Make's error, or ctx's if that ends while another caller makes the value.
func (r *Rotation[T]) Get(ctx context.Context, ttl time.Duration) (value T, err error) {
	v, err := r.lockValue(ctx, ttl)
	if err != nil {
		return value, err
	}
	defer v.unlock()
	if v.exists && r.Clock.Since(v.since) < ttl/3 {
		return v.value, nil
	}
	since := r.Clock.Now()
	if value, err = r.Make(ctx, ttl); err != nil {
		return value, err
	}
	r.retire(v)
	v.exists, v.value, v.since = true, value, since
	return value, nil
}

// Drop makes sure that a value that has turned out to be bad is not handed out again.
func (r *Rotation[T]) Drop(ctx context.Context, ttl time.Duration, bad T) {
	v, err := r.lockValue(ctx, ttl)
	if err != nil {
		return
	}
	defer v.unlock()
	if v.exists && v.value == bad {
		r.retire(v)
		v.exists = false
	}
}

func (r *Rotation[T]) retire(v *rotated[T]) {
	if v.exists && r.Retire != nil {
		r.Retire(v.value)
	}
}

func (v *rotated[T]) unlock() { <-v.turn }

// lockValue returns the entry of a TTL, which the caller unlocks.
func (r *Rotation[T]) lockValue(ctx context.Context, ttl time.Duration) (*rotated[T], error) {
	r.mu.Lock()
	if r.byTTL == nil {
		r.byTTL = map[time.Duration]*rotated[T]{}
	}
	v := r.byTTL[ttl]
	if v == nil {
		for other := range r.byTTL { // what is removed here is in use by nobody, or ends by itself
			if len(r.byTTL) < maxRotated {
				break
			}
			delete(r.byTTL, other)
		}
		v = &rotated[T]{turn: make(chan struct{}, 1)}
		r.byTTL[ttl] = v
	}
	r.mu.Unlock()
	select {
	case v.turn <- struct{}{}:
		return v, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
