package servepage

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast"
)

const (
	// lockInterval is the pause between two reads of a lock that somebody looks at. Changes are seen at once.
	lockInterval = 2 * time.Second
	// maxWatches is how many locks are watched at one time.
	maxWatches = 256
	// watchIdle is for how long a lock is watched after the last one has looked at it.
	watchIdle = 10 * time.Minute
	// The pause after the watch of a lock has failed doubles from the first to the last of these.
	minWatchPause, maxWatchPause = time.Second, 30 * time.Second
)

// lockWatch watches a lock that somebody has looked at, so that its history has no gaps.
type lockWatch struct {
	state *shared[lockState]
	end   context.CancelFunc
}

// watchLock returns the watch of a lock. If there are too many, one that nobody looks at any more is ended.
func (p *Page) watchLock(name string) (*lockWatch, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.watches[name]; w != nil {
		return w, nil
	}
	if len(p.watches) >= maxWatches && !p.endIdlestWatch() {
		return nil, newPageError(http.StatusServiceUnavailable,
			"%d locks are looked at on this server, and it cannot watch more. Close other pages.", maxWatches)
	}
	ctx, end := context.WithCancel(p.base)
	w := &lockWatch{end: end}
	w.state = newShared(ctx, lockInterval, func(ctx context.Context) lockState {
		at := time.Now()
		lock, err := p.opts.Client.Inspect(ctx, name)
		lock.Name = name
		return lockState{Lock: lock, at: at, err: err}
	}, func(a, b lockState) bool { return !a.looksLike(b) })
	p.watches[name] = w
	p.history.setWatched(name, true)
	go p.followLock(ctx, name, w)
	return w, nil
}

// endIdlestWatch ends the watch of the lock that nobody has looked at for the longest time. It is called with
// p.mu held.
func (p *Page) endIdlestWatch() bool {
	idlest, since := "", time.Now()
	for name, w := range p.watches {
		if at := w.state.idleSince(); w.state.notifier.count() == 0 && at.Before(since) {
			idlest, since = name, at
		}
	}
	if idlest == "" {
		return false
	}
	p.watches[idlest].end()
	delete(p.watches, idlest)
	p.history.setWatched(idlest, false)
	return true
}

// followLock adds to the history what happens to a lock, until nobody has looked at it for a while.
func (p *Page) followLock(ctx context.Context, name string, w *lockWatch) {
	go p.endWhenIdle(ctx, name, w)
	for pause := minWatchPause; ctx.Err() == nil; pause = min(2*pause, maxWatchPause) {
		for lock, err := range p.opts.Client.Watch(ctx, name) {
			if err != nil {
				if errors.Is(err, holdfast.ErrClosed) || errors.Is(err, holdfast.ErrInvalid) {
					return
				}
				if ctx.Err() == nil {
					p.history.observeFailure(name, time.Now())
				}
				break
			}
			lock.Name, pause = name, minWatchPause
			p.history.observeWatched(lock, time.Now())
			w.state.invalidate()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// endWhenIdle ends a watch when nobody has looked at its lock for a while.
func (p *Page) endWhenIdle(ctx context.Context, name string, w *lockWatch) {
	for ctx.Err() == nil {
		select {
		case <-time.After(p.endIfIdle(name, w)):
		case <-ctx.Done():
		}
	}
}

// endIfIdle ends a watch if nobody has looked at its lock for a while. Otherwise it returns how long that may yet take.
func (p *Page) endIfIdle(name string, w *lockWatch) (left time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left = watchIdle - time.Since(w.state.idleSince()); left > 0 || p.watches[name] != w {
		return left
	}
	w.end()
	delete(p.watches, name)
	p.history.setWatched(name, false)
	return 0
}
