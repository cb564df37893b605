// Package pace distinguishes a slow store from a slow machine.
package pace

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Pace records when this machine was slow by itself: when a timer fired late. On such a machine, a failure for being
// too slow says nothing about a store. A Pace can also measure something else, such as servers that the fault of a
// test does not affect.
type Pace struct {
	mu   sync.Mutex
	lags []delay
	due  time.Time // when what is under way should be over; zero: nothing is
}

// delay is a time during which the machine did something else.
type delay struct{ from, to time.Time }

// minDelay is the shortest delay that is recorded: every machine has smaller ones.
const minDelay = 5 * time.Millisecond

// SlowMachine is the delay above which a failure for being too slow proves nothing. The shortest TTLs are 1 s, and
// servers on this machine were delayed, too.
const SlowMachine = 50 * time.Millisecond

// Watch measures until the returned function is called.
func (p *Pace) Watch() (stop func()) {
	const every = 5 * time.Millisecond
	return p.WatchTask(every, func(quit <-chan struct{}) {
		select {
		case <-quit:
		case <-time.After(every):
		}
	})
}

// WatchDisk measures the machine and a disk until the returned function is called: how late a small file is that is
// written below a directory, and gets another name, every 20 ms. An error of the disk counts as no delay.
func (p *Pace) WatchDisk(dir string) (stop func()) {
	const every = 20 * time.Millisecond
	return p.WatchTask(every, func(quit <-chan struct{}) {
		select {
		case <-quit:
			return
		case <-time.After(every):
		}
		name := filepath.Join(dir, "pace")
		if os.WriteFile(name+".new", []byte("pace"), 0o600) == nil {
			_ = os.Rename(name+".new", name)
		}
	})
}

// WatchTask measures a task that usually takes the given time. It repeats the task until the returned function is
// called.
func (p *Pace) WatchTask(usual time.Duration, task func(quit <-chan struct{})) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	p.noteTask(time.Now().Add(usual))
	go func() {
		defer close(done)
		for {
			task(quit)
			select {
			case <-quit:
				p.noteTask(time.Time{})
				return
			default:
				p.noteTask(time.Now().Add(usual))
			}
		}
	}()
	return func() { close(quit); <-done }
}

// noteTask records how late the task was that has just ended, and when the next one is due.
func (p *Pace) noteTask(due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lags = append(p.lags, p.currentDelays()...)
	p.due = due
}

// currentDelays returns the delay in progress, if there is one. It is called with mu held.
func (p *Pace) currentDelays() []delay {
	if now := time.Now(); !p.due.IsZero() && now.Sub(p.due) > minDelay {
		return []delay{{p.due, now}}
	}
	return nil
}

// delaysSince returns the delays that lasted beyond a moment, including the one in progress: the caller may be the
// first to run again on a machine that was stopped.
func (p *Pace) delaysSince(moment time.Time) []delay {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := p.currentDelays()
	for i := len(p.lags) - 1; i >= 0 && p.lags[i].to.After(moment); i-- {
		late = append(late, p.lags[i])
	}
	return late
}

// Worst returns the longest delay since a moment.
func (p *Pace) Worst(since time.Time) (worst time.Duration) {
	for _, l := range p.delaysSince(since) {
		worst = max(worst, l.to.Sub(l.from))
	}
	return worst
}

// Lost returns for how long the machine was delayed in total since a moment: a bound on what was done since then may
// be exceeded by that.
func (p *Pace) Lost(since time.Time) (lost time.Duration) {
	for _, l := range p.delaysSince(since) {
		if l.from.Before(since) {
			l.from = since
		}
		lost += l.to.Sub(l.from)
	}
	return lost
}
