package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// workerOrder is what a worker process has to do.
type workerOrder struct {
	Locker, Addr, Key string
	Goroutines        int
	Seconds           float64
}

// timeSpan is one turn, by the clock that all processes of the machine share.
type timeSpan struct{ From, To int64 }

// contestResult is the result of one locker in one round.
type contestResult struct {
	gap      float64 // from the start of a release to the next holder, in us; the mean
	perSec   float64
	fairness float64 // the maximum of turns of a goroutine, divided by the minimum
	starved  int     // goroutines without a turn
}

// measureHandOvers measures how long a hand-over takes on a lock that is always wanted.
func measureHandOvers(ctx context.Context, server *redistest.Server, name string, processes, goroutines int) error {
	lockers := selectLockers(func(l *locker) bool { return !l.alone })
	got := make([][]contestResult, len(lockers))
	n := max(*rounds/3, 3)
	for round := range n {
		for i, l := range lockers {
			c, err := runContest(ctx, server.Addr, l.name, fmt.Sprint(name, l.name, round), processes, goroutines)
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			got[i] = append(got[i], c)
		}
	}
	fmt.Printf("\n%-40s %10s %10s %7s %9s %9s\n", name, "turns/s", "gap us", "ratio", "max/min", "starved")
	for i, l := range lockers {
		by := func(f func(contestResult) float64) float64 { return median(got[i], f) }
		ratios := make([]float64, n)
		for k := range ratios {
			ratios[k] = got[i][k].gap / got[0][k].gap
		}
		fmt.Printf("%-40s %10.0f %10.0f %7.2f %9.2f %9.0f\n", l.name,
			by(func(c contestResult) float64 { return c.perSec }),
			by(func(c contestResult) float64 { return c.gap }), median(ratios, func(f float64) float64 { return f }),
			by(func(c contestResult) float64 { return c.fairness }), by(func(c contestResult) float64 { return float64(c.starved) }))
	}
	return nil
}

// runContest lets that many processes compete for one lock for a second.
func runContest(ctx context.Context, addr, name, key string, processes, goroutines int) (c contestResult, err error) {
	type worker struct {
		cmd *exec.Cmd
		in  *json.Encoder
		out *bufio.Reader
	}
	var workers []*worker
	defer func() {
		for _, w := range workers {
			if err != nil {
				_ = w.cmd.Process.Kill()
			}
			_ = w.cmd.Wait()
		}
	}()
	for range processes {
		w := &worker{cmd: exec.CommandContext(ctx, os.Args[0], "worker", name, addr)}
		w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		w.cmd.Stderr = os.Stderr
		in, err := w.cmd.StdinPipe()
		if err != nil {
			return c, err
		}
		out, err := w.cmd.StdoutPipe()
		if err != nil {
			return c, err
		}
		if err := w.cmd.Start(); err != nil {
			return c, err
		}
		w.in, w.out = json.NewEncoder(in), bufio.NewReader(out)
		workers = append(workers, w)
	}
	for _, w := range workers {
		if _, err := w.out.ReadString('\n'); err != nil {
			return c, fmt.Errorf("a worker is not ready: %w", err)
		}
	}
	for _, w := range workers {
		if err := w.in.Encode(workerOrder{Key: key, Goroutines: goroutines, Seconds: 1}); err != nil {
			return c, err
		}
	}
	var all []timeSpan
	least, most := int(^uint(0)>>1), 0
	for _, w := range workers {
		var by [][]timeSpan
		if err := json.NewDecoder(w.out).Decode(&by); err != nil {
			return c, fmt.Errorf("a worker reports nothing: %w", err)
		}
		for _, spans := range by {
			least, most = min(least, len(spans)), max(most, len(spans))
			if len(spans) == 0 {
				c.starved++
			}
			all = append(all, spans...)
		}
	}
	slices.SortFunc(all, func(a, b timeSpan) int { return int(a.From - b.From) })
	var sum int64
	for i := range all[1:] {
		gap := all[i+1].From - all[i].To
		if gap < 0 {
			return c, fmt.Errorf("two holders at once, for %d ns", -gap)
		}
		sum += gap
	}
	c.gap = float64(sum) / 1e3 / float64(len(all)-1)
	c.perSec = float64(len(all)) / (float64(all[len(all)-1].To-all[0].From) / 1e9)
	c.fairness = float64(most) / float64(max(least, 1))
	return c, nil
}

// runWorker is a worker process: it takes turns as its standard input says, and reports them.
func runWorker(name, addr string) {
	report := func(err error) {
		fmt.Fprintln(os.Stderr, name, err)
		os.Exit(1)
	}
	ctx := context.Background()
	var t lockTurn
	for _, l := range lockers {
		if l.name == name {
			var err error
			var end func()
			if t, end, err = l.open(ctx, addr); err != nil {
				report(err)
			}
			defer end()
		}
	}
	_ = t(ctx, fmt.Sprint("warm", os.Getpid()), nil)
	fmt.Println("ready")
	var o workerOrder
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		report(err)
	}
	by := make([][]timeSpan, o.Goroutines)
	until := nowNanos() + int64(o.Seconds*1e9)
	var all sync.WaitGroup
	for g := range by {
		by[g] = []timeSpan{}
		all.Go(func() {
			for nowNanos() < until {
				bounded, cancel := context.WithTimeout(ctx, time.Duration(until-nowNanos())+time.Second)
				err := t(bounded, o.Key, func() {
					from := nowNanos()
					by[g] = append(by[g], timeSpan{from, nowNanos()})
				})
				cancel()
				if err != nil && bounded.Err() == nil {
					report(err)
				}
			}
		})
	}
	all.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(by); err != nil {
		report(err)
	}
}

// nowNanos reads the clock that all processes of the machine share.
func nowNanos() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}
