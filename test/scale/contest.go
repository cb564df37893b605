package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// lockName is the lock that is waited for.
const lockName = "scale-contest"

// crowd has all that wait for the lock.
type crowd struct {
	processes, clients, waiters int // the clients of all processes, and the waiters of all clients
	fair                        bool
}

// measureWaiters measures many waiters of few clients.
func measureWaiters(ctx context.Context, s store) error {
	return measureCrowds(ctx, s, "waiters", *waiters, func(n int) crowd {
		return crowd{waiterProcesses, waiterProcesses, max(n/waiterProcesses, 1) * waiterProcesses, false}
	})
}

// measureClients measures many clients with one waiter each.
func measureClients(ctx context.Context, s store) error {
	return measureCrowds(ctx, s, "clients", *clients, func(n int) crowd {
		return crowd{min(clientProcesses, n), n, n, false}
	})
}

func measureCrowds(ctx context.Context, s store, who, sizes string, crowdOf func(n int) crowd) error {
	if s.oneProcess {
		fmt.Printf("\n%s: not measured, since this store is seen by one process alone\n", who)
		return nil
	}
	for kind := range strings.SplitSeq(*locks, ",") {
		if kind != "plain" && kind != "fair" {
			return fmt.Errorf("there is no mutex %q: the mutexes are plain and fair", kind)
		}
		if kind == "fair" && s.alwaysFair {
			fmt.Printf("\n%s of one fair mutex: not measured, since plain ones are fair on this store\n", who)
			continue
		}
		t := newTable(fmt.Sprintf("%s of one %s mutex", who, kind), who, "in the store", "refused", "resident B each",
			"heap B each", "goroutines each", "requests/s idle", "hand-overs", "gap ms", "mean", "99 %",
			"requests/hand-over")
		err := forSizes(ctx, s, sizes, func(n int, at *server) error {
			c := crowdOf(n)
			c.fair = kind == "fair"
			return c.measure(ctx, s, at, t)
		})
		t.end(s.name + ", " + kind)
		if err != nil {
			return err
		}
	}
	return nil
}

// measure has the crowd wait while this process holds the lock, and then lets it have the lock, in rounds.
func (c crowd) measure(ctx context.Context, s store, at *server, t *table) error {
	holder, err := holdfast.Open(ctx, at.url, nil)
	if err != nil {
		return err
	}
	defer holder.Close()
	ws, err := startWorkers(ctx, c.processes)
	if err != nil {
		return err
	}
	defer ws.kill()
	before, err := c.openClients(ws, at.url)
	if err != nil {
		return err
	}
	lease, err := c.begin(ctx, holder, ws)
	if err != nil {
		return err
	}
	queued, refused, err := awaitQueued(ctx, holder, ws)
	if err != nil {
		return err
	}
	polls, err := at.countDuring(ctx, ws, func() error { return sleep(ctx, *idle) })
	if err != nil {
		return err
	}
	now, err := ws.usage(false)
	if err != nil {
		return err
	}
	var sum handOvers
	for left := *forTime; ; {
		took, err := sum.addRound(ctx, at, ws, lease, left)
		if err != nil {
			return err
		}
		if left -= took + pause; left <= 0 {
			break
		}
		if lease, err = c.begin(ctx, holder, ws); err != nil {
			return err
		}
	}
	more, waiting := now.since(before), float64(c.waiters-refused)
	slices.Sort(sum.gaps)
	turns := float64(len(sum.gaps))
	t.add(withCommas(int64(c.waiters)), withCommas(int64(queued)), withCommas(int64(refused)),
		perUnit(float64(more.Resident), waiting), perUnit(float64(more.Heap), waiting),
		perUnit(float64(more.Goroutines), waiting), polls.per(idle.Seconds()), withCommas(int64(turns)),
		percentile(sum.gaps, 50), perUnit(1000*sum.took.Seconds(), turns), percentile(sum.gaps, 99),
		sum.requests.per(turns))
	return s.closeClients(ws)
}

// begin takes the lock, and has the crowd wait for it.
func (c crowd) begin(ctx context.Context, holder *holdfast.Client, ws workers) (*holdfast.Lease, error) {
	lease, err := holder.Mutex(lockName, &holdfast.LockOptions{Fair: c.fair}).Lock(ctx)
	if err != nil {
		return nil, err
	}
	_, err = callAll[struct{}](ws, "Wait", WaitArgs{lockName, c.fair, c.waiters / c.clients})
	return lease, err
}

// pause is how long nothing is done before and after the requests of a round are counted: a claim that has just begun
// to wait looks at the lock once more within a second, and some servers count late.
const pause = 1500 * time.Millisecond

// handOvers are the hand-overs of all rounds.
type handOvers struct {
	gaps     []time.Duration // from one holder to the next
	took     time.Duration   // for all of them
	requests requestCount
}

// addRound releases the lock, and lets those that wait have it, one after the other, until all had it or the time is
// up. It returns how long that took.
func (h *handOvers) addRound(ctx context.Context, at *server, ws workers, lease *holdfast.Lease, limit time.Duration,
) (took time.Duration, err error) {
	if err := sleep(ctx, pause); err != nil {
		return 0, err
	}
	var from, to time.Duration
	requests, err := at.countDuring(ctx, ws, func() error {
		from = machineTime()
		if err := lease.Release(); err != nil {
			return err
		}
		done, err := callAll[bool](ws, "AwaitTurns", limit)
		if to = machineTime(); err != nil || slices.Contains(done, false) {
			return err
		}
		return sleep(ctx, pause)
	})
	if err != nil {
		return 0, err
	}
	turns, err := endRound(ws, to)
	if err != nil {
		return 0, err
	}
	last := from
	for _, turn := range turns {
		h.gaps = append(h.gaps, turn-last)
		last = turn
	}
	h.took += last - from
	h.requests = requestCount{h.requests.n + requests.n, requests.known}
	return to - from, nil
}

// openClients opens the clients, and returns what the processes used before what is measured: if there are as many
// clients as waiters, they belong to it.
func (c crowd) openClients(ws workers, url string) (before Usage, err error) {
	if c.clients == c.waiters {
		if before, err = ws.usage(true); err != nil {
			return before, err
		}
	}
	for i, w := range ws {
		share := (i+1)*c.clients/len(ws) - i*c.clients/len(ws)
		if err := w.call("Open", OpenArgs{url, share}, nil); err != nil {
			return before, err
		}
	}
	if c.clients == c.waiters {
		return before, nil
	}
	return ws.usage(true)
}

const (
	calmFor  = 3               // so many looks, one per second, must find the queue unchanged
	calmTime = 3 * time.Minute // how long the queue may take to get calm
)

// awaitQueued waits until the queue does not change any more. It returns how many claims wait in the store, and how
// many were refused.
func awaitQueued(ctx context.Context, c *holdfast.Client, ws workers) (queued, refused int, err error) {
	same := 0
	for start := time.Now(); same < calmFor && time.Since(start) < calmTime; {
		if err := sleep(ctx, time.Second); err != nil {
			return 0, 0, err
		}
		lock, err := c.Inspect(ctx, lockName)
		if err != nil {
			return 0, 0, err
		}
		all, err := callAll[int](ws, "CountRefused", struct{}{})
		if err != nil {
			return 0, 0, err
		}
		sum := 0
		for _, n := range all {
			sum += n
		}
		if same++; len(lock.Waiters) != queued || sum != refused {
			same = 0
		}
		queued, refused = len(lock.Waiters), sum
	}
	return queued, refused, nil
}

// endRound ends a round, and returns when the lock was handed over until then, in order.
func endRound(ws workers, until time.Duration) (turns []time.Duration, err error) {
	all, err := callAll[Round](ws, "EndRound", struct{}{})
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.Failures > 0 {
			fmt.Printf("%d waiters of a process have failed; the last one: %s\n", r.Failures, r.LastErr)
		}
		for _, at := range r.Turns {
			if at <= until {
				turns = append(turns, at)
			}
		}
	}
	slices.Sort(turns)
	return turns, nil
}

func percentile(sorted []time.Duration, p int) string {
	if len(sorted) == 0 {
		return unknown
	}
	return millis(sorted[(len(sorted)-1)*p/100])
}
