package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// Fault is a kind of fault.
type Fault string

// The faults. ServerFault is not chosen by name: it is there if the caller gives hooks.
const (
	Cut         Fault = "cut"    // a worker's link passes nothing on, in both directions or only replies
	Delay       Fault = "delay"  // a worker's link passes everything on late
	Reset       Fault = "reset"  // the connections of a worker end
	Pause       Fault = "pause"  // a worker process is stopped for a while
	Kill        Fault = "kill"   // a worker process is killed, and another one takes its place
	Skew        Fault = "skew"   // a worker's clocks are shifted
	ServerFault Fault = "server" // a hook of the caller
)

// Faults are the faults that can be chosen.
var Faults = []Fault{Cut, Delay, Reset, Pause, Kill, Skew}

// NeedsLink reports whether a fault is one of the network between a worker and the store.
func (f Fault) NeedsLink() bool { return f == Cut || f == Delay || f == Reset }

// FaultView is one fault, for the report. Times are seconds since the start.
type FaultView struct {
	Fault  Fault   `json:"fault"`
	Worker int     `json:"worker"` // -1: the server
	From   float64 `json:"from"`
	To     float64 `json:"to"`
}

// faultLog is which worker was under a fault, and when. The judge needs it for the latest minutes only.
type faultLog struct {
	mu     sync.Mutex
	recent []faultTime
	counts map[Fault]int
	views  []FaultView
}

type faultTime struct {
	worker   int // -1: all
	from, to int64
}

// maxFaultViews bounds how many faults are kept for the page.
const maxFaultViews = 5000

// add remembers a fault: its count for good, its time for as long as violations may be explained by it.
func (l *faultLog) add(f Fault, worker int, from, to, start int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = map[Fault]int{}
	}
	l.counts[f]++
	l.recent = append(l.recent, faultTime{worker, from, to})
	l.recent = slices.DeleteFunc(l.recent, func(t faultTime) bool { return t.to < to-int64(2*keepTime) })
	l.views = append(l.views, FaultView{f, worker, seconds(from - start), seconds(to - start)})
	if n := len(l.views) - maxFaultViews; n > 0 {
		l.views = slices.Delete(l.views, 0, n)
	}
}

// touched reports whether a worker was under a fault at some time between from and to.
func (l *faultLog) touched(worker int, from, to int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.recent, func(t faultTime) bool {
		return (t.worker == worker || t.worker < 0) && t.from < to && t.to > from
	})
}

func (l *faultLog) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.counts {
		n += c
	}
	return n
}

// injector makes faults until its context ends. Each fault has one worker, and at most half of the workers are under a
// fault at a time, so that the others can be seen to take over.
type injector struct {
	*run
	rnd  *rand.Rand
	mu   sync.Mutex
	busy map[int]bool
	work sync.WaitGroup
	// hookFailures counts the server hooks that have failed one after the other.
	hookFailures int
}

// maxHookFailures is how many server hooks may fail one after the other before the run ends: its faults do not happen.
const maxHookFailures = 3

// inject makes faults at random times until the run ends. Fewer than half of the workers suffer at a time, so that
// the others can show what they see.
func (i *injector) inject(ctx context.Context) error {
	defer i.work.Wait()
	if i.cfg.ServerFault != "" {
		i.work.Go(func() { i.injectServerFaults(ctx) })
	}
	if len(i.cfg.Faults) == 0 {
		<-ctx.Done()
		return nil
	}
	for sleep(ctx, time.Duration(i.rnd.ExpFloat64()*float64(i.cfg.FaultEvery))) {
		kind := i.cfg.Faults[i.rnd.IntN(len(i.cfg.Faults))]
		worker := i.rnd.IntN(i.cfg.Workers)
		long := time.Duration((0.1 + 1.9*i.rnd.Float64()) * float64(i.cfg.TTL))
		choice := i.rnd.IntN(4)
		i.mu.Lock()
		free := !i.busy[worker] && 2*len(i.busy) < i.cfg.Workers
		if free {
			i.busy[worker] = true
		}
		i.mu.Unlock()
		if !free {
			continue
		}
		i.work.Go(func() {
			from := now()
			i.injectOne(ctx, kind, worker, long, choice)
			i.judge.faults.add(kind, worker, from, now(), i.judge.start)
			i.mu.Lock()
			delete(i.busy, worker)
			i.mu.Unlock()
		})
	}
	return nil
}

// injectOne makes one fault of a worker, and ends it. It ends early if ctx does.
func (i *injector) injectOne(ctx context.Context, kind Fault, worker int, long time.Duration, choice int) {
	switch kind {
	case Cut:
		link := i.links[worker]
		if choice == 0 {
			link.CutReplies()
		} else {
			link.Cut()
		}
		sleep(ctx, long)
		link.Heal()
	case Delay:
		late := time.Duration(choice+1) * i.cfg.TTL / 40
		i.links[worker].SetFaults(func() (time.Duration, bool) { return late, false })
		sleep(ctx, long)
		i.links[worker].SetFaults(nil)
	case Reset:
		i.links[worker].Reset()
	case Pause:
		p := i.process(worker)
		p.signal(system.SIGSTOP)
		sleep(ctx, long)
		p.signal(system.SIGCONT)
	case Kill:
		i.process(worker).kill()
		if choice > 0 {
			sleep(ctx, long/2)
		}
		i.restart(worker)
	case Skew:
		i.process(worker).send(skewOrder(choice, long))
	}
}

// skewOrder is one of four ways in which clocks go wrong.
func skewOrder(choice int, long time.Duration) order {
	switch choice {
	case 0:
		return order{Op: "skew", Wall: time.Hour}
	case 1:
		return order{Op: "skew", Wall: -time.Hour}
	case 2: // the machine seems to have slept
		return order{Op: "skew", Boot: long}
	}
	return order{Op: "skew", Rate: 0.995 + 0.01*float64(long%1000)/1000}
}

// injectServerFaults calls the caller's hooks. Between a fault and its end, and after it, there is time for the locks
// to recover.
func (i *injector) injectServerFaults(ctx context.Context) {
	for sleep(ctx, i.cfg.ServerEvery) {
		from := now()
		err := i.runHook(ctx, "fault", i.cfg.ServerFault)
		if err == nil {
			sleep(ctx, i.cfg.ServerFor)
		}
		// The server is healed even if the fault has failed half-way, or the run is over.
		healErr := i.runHook(context.WithoutCancel(ctx), "heal", i.cfg.ServerHeal)
		if err != nil || healErr != nil {
			if i.hookFailures++; i.hookFailures >= maxHookFailures || healErr != nil {
				i.endEarly(fmt.Errorf("the hook for the server has failed: %w", firstError(healErr, err)))
				return
			}
			i.cfg.Progress(fmt.Sprintf("the hook for the server has failed: %v", err))
			continue
		}
		i.hookFailures = 0
		i.judge.faults.add(ServerFault, -1, from, now(), i.judge.start)
	}
}

func firstError(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// runHook runs a command line of the caller, in a process group of its own, so that nothing of it is left when it
// hangs.
func (i *injector) runHook(ctx context.Context, name, line string) error {
	if line == "" {
		return nil
	}
	out, err := runShell(ctx, line, i.cfg.HookTimeout)
	if err != nil {
		return fmt.Errorf("--server-%s: %w%s", name, err, out)
	}
	return nil
}
