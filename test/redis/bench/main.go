// Command bench measures Holdfast on one Redis beside the bare scripts and other Go clients.
//
// The machine's other work must not decide the comparison. So all clients are measured in turn, a short time each, for
// many rounds. Printed are the medians of the rounds; ratios are medians of the ratios within a round.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

var (
	rounds = flag.Int("rounds", 15, "how often all measure in turn")
	slice  = flag.Duration("slice", 200*time.Millisecond, "how long one measures in a round")
	only   = flag.String("only", "",
		"only the set-ups and the lockers with these words in their names, separated by commas")
	held = flag.Int("held", 10_000, "how many leases are held at once")
	prof = flag.String("cpuprofile", "", "write a CPU profile of Holdfast's turns here")
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		runWorker(os.Args[2], os.Args[3])
		return
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := redistest.Start()
	if err == nil {
		defer server.Stop()
		err = runAll(ctx, server)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func runAll(ctx context.Context, server *redistest.Server) error {
	fmt.Printf("# Redis on %s, %d cores, %d rounds of %v each; ratios to the first line of a table\n",
		runtime.GOOS, runtime.NumCPU(), *rounds, *slice)
	for _, s := range []struct {
		name       string
		goroutines int
		key        func(i int) string
	}{
		{"uncontended", 1, func(int) string { return "one" }},
		{"own keys, 64 goroutines", 64, func(i int) string { return fmt.Sprint("own", i) }},
	} {
		if isWanted(s.name) {
			if err := measureRates(ctx, server, s.name, s.goroutines, s.key); err != nil {
				return err
			}
		}
	}
	for _, s := range []struct {
		name                  string
		processes, goroutines int
	}{
		{"one key, 64 goroutines of one process", 1, 64},
		{"one key, 8 processes", 8, 1},
		{"one key, 8 processes of 8 goroutines", 8, 8},
	} {
		if isWanted(s.name) {
			if err := measureHandOvers(ctx, server, s.name, s.processes, s.goroutines); err != nil {
				return err
			}
		}
	}
	if name := fmt.Sprintf("%d held leases", *held); isWanted(name) {
		return measureHeldLeases(ctx, server, name)
	}
	return nil
}

// isWanted reports whether a set-up has to be run.
func isWanted(name string) bool { return matchesOnly(name, "uncontended", "own", "one", "held") }

// matchesOnly reports whether a name contains one of the words of -only of its kind.
func matchesOnly(name string, kind ...string) bool {
	all := true
	for word := range strings.SplitSeq(*only, ",") {
		if !slices.ContainsFunc(kind, func(k string) bool { return strings.HasPrefix(word, k) }) {
			continue
		}
		all = false
		if strings.Contains(name, word) {
			return true
		}
	}
	return all
}

// rateResult is the result of one locker in one slice.
type rateResult struct{ perSecond, allocs, clientCPU, serverCPU, switches float64 }

// measureRates measures how many turns per second goroutines take without competition.
func measureRates(ctx context.Context, server *redistest.Server, name string, goroutines int,
	key func(int) string) error {
	lockers := selectLockers(func(l *locker) bool { return !l.handOver })
	turns := make([]lockTurn, len(lockers))
	for i, l := range lockers {
		t, end, err := l.open(ctx, server.Addr)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		defer end()
		turns[i] = t
	}
	got := make([][]rateResult, len(lockers))
	for round := range *rounds + 1 {
		for i, l := range lockers {
			r, err := measureSlice(context.Background(), server, turns[i], goroutines,
				func(g int) string { return l.name + key(g) }, l.name == "holdfast" && round > 0)
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			if round > 0 { // the first round is a warm-up
				got[i] = append(got[i], r)
			}
		}
	}
	fmt.Printf("\n%-28s %10s %7s %8s %12s %12s %9s\n", name, "cycles/s", "ratio", "allocs", "client us", "server us", "switches")
	for i, l := range lockers {
		by := func(f func(rateResult) float64) float64 { return median(got[i], f) }
		ratios := make([]float64, len(got[i]))
		for k := range ratios {
			ratios[k] = got[i][k].perSecond / got[0][k].perSecond
		}
		fmt.Printf("%-28s %10.0f %7.2f %8.1f %12.1f %12.1f %9.1f\n", l.name,
			by(func(r rateResult) float64 { return r.perSecond }),
			median(ratios, func(f float64) float64 { return f }), by(func(r rateResult) float64 { return r.allocs }),
			by(func(r rateResult) float64 { return r.clientCPU }), by(func(r rateResult) float64 { return r.serverCPU }),
			by(func(r rateResult) float64 { return r.switches }))
	}
	return nil
}

func measureSlice(ctx context.Context, server *redistest.Server, t lockTurn, goroutines int, key func(int) string,
	profiled bool) (r rateResult, err error) {
	if *prof != "" && profiled {
		if err := startProfile(); err != nil {
			return r, err
		}
		defer pprof.StopCPUProfile()
	}
	var all sync.WaitGroup
	var n atomic.Int64
	var failure atomic.Value
	before, theirs, ours, start := countMallocs(), serverCPU(server), clientCPU(), time.Now()
	switches := countSwitches()
	for g := range goroutines {
		key := key(g)
		all.Go(func() {
			for time.Since(start) < *slice {
				if err := t(ctx, key, nil); err != nil {
					failure.Store(err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	took, cycles := time.Since(start), float64(n.Load())
	if err, failed := failure.Load().(error); failed {
		return r, err
	}
	return rateResult{
		perSecond: cycles / took.Seconds(),
		allocs:    float64(countMallocs()-before) / cycles,
		clientCPU: float64((clientCPU() - ours).Nanoseconds()) / 1e3 / cycles,
		serverCPU: (serverCPU(server) - theirs) * 1e6 / cycles,
		switches:  float64(countSwitches()-switches) / cycles,
	}, nil
}

var profiled int

// startProfile begins a profile of one slice, in a file of its own.
func startProfile() error {
	profiled++
	f, err := os.Create(fmt.Sprintf("%s.%d", *prof, profiled))
	if err != nil {
		return err
	}
	return pprof.StartCPUProfile(f)
}

func median[T any](all []T, f func(T) float64) float64 {
	if len(all) == 0 {
		return 0
	}
	fs := make([]float64, len(all))
	for i, x := range all {
		fs[i] = f(x)
	}
	slices.Sort(fs)
	return fs[len(fs)/2]
}

func countMallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func clientCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// countSwitches is how often this process gave up a processor to wait, since it began.
func countSwitches() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Nvcsw
}

// serverCPU is the processor time that the server has used, in seconds.
func serverCPU(s *redistest.Server) (sum float64) {
	info, _ := s.Do("INFO", "cpu")
	for line := range strings.Lines(info) {
		var f float64
		if _, err := fmt.Sscanf(line, "used_cpu_sys:%g", &f); err == nil {
			sum += f
		} else if _, err := fmt.Sscanf(line, "used_cpu_user:%g", &f); err == nil {
			sum += f
		}
	}
	return sum
}
