package sim

import (
	"flag"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds = flag.Int("seeds", 10000, "how many worlds to run")
	first = flag.Uint64("first", 1, "the first seed")
	which = flag.String("kind", "", "the only kind of store; empty: all in turn")
	long  = flag.Duration("for", 0, "run worlds for this long, in place of -seeds")
	until = flag.String("until", "",
		"stop at the first violation that this regular expression finds, not after four worlds with any")
)

// TestWorlds runs many simulations (worlds). A seed that fails is named; -first N -seeds 1 runs it alone.
func TestWorlds(t *testing.T) { runWorlds(t, Run) }

// TestTreeWorlds is TestWorlds for the sequence engine.
func TestTreeWorlds(t *testing.T) { runWorlds(t, RunTree) }

// TestKindWorlds is TestWorlds for stores that misbehave as some real ones do: they lose writes, set their clocks, or
// stop answering. In some worlds there are two stores, and users take locks of both with one LockAll.
func TestKindWorlds(t *testing.T) {
	runWorlds(t, func(seed uint64) Report { return RunKind(seed, *which) })
}

// TestTreeKindWorlds is TestKindWorlds for the sequence engine.
func TestTreeKindWorlds(t *testing.T) {
	runWorlds(t, func(seed uint64) Report { return RunTreeKind(seed, *which) })
}

// TestLedgerWorlds is TestWorlds for ledgers: the users run keys in place of taking locks.
func TestLedgerWorlds(t *testing.T) {
	runWorlds(t, func(seed uint64) Report { return RunLedger(seed, *which) })
}

func runWorlds(t *testing.T, run func(seed uint64) Report) {
	var next, finished, grants, losses, ejected, took, failed atomic.Int64
	var found atomic.Bool
	var slow slowestWorld
	sought := regexp.MustCompile(*until)
	const workers = 2
	began := time.Now()
	t.Run("seeds", func(t *testing.T) {
		for range workers {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for {
					n := next.Add(1) - 1
					done := n >= int64(*seeds)
					if *long > 0 {
						done = time.Since(began) > *long
					}
					if done || found.Load() || *until == "" && failed.Load() > 3 {
						return
					}
					var r Report
					from := time.Now()
					synctest.Test(t, func(*testing.T) { r = run(*first + uint64(n)) })
					slow.note(r, time.Since(from))
					for _, wrong := range r.Wrong {
						t.Errorf("seed %d %s%s", r.Seed, r.Kind, wrong)
						if *until != "" && sought.MatchString(wrong) {
							found.Store(true)
						}
					}
					if len(r.Wrong) > 0 {
						failed.Add(1)
					}
					finished.Add(1)
					grants.Add(int64(r.Grants))
					losses.Add(int64(r.Losses))
					ejected.Add(int64(r.Ejected))
					took.Add(int64(r.Took))
				}
			})
		}
	})
	t.Logf("%d worlds, %.1f simulated hours, %d grants, %d leases lost, %d claims removed by others, %d worlds with "+
		"violations; the slowest took %v: seed %d %s",
		finished.Load(), time.Duration(took.Load()).Hours(), grants.Load(), losses.Load(), ejected.Load(), failed.Load(),
		slow.took.Round(time.Millisecond), slow.seed, slow.kind)
}

// slowestWorld is the world that took longest. One that takes much longer than the others may be running in circles.
type slowestWorld struct {
	mu   sync.Mutex
	took time.Duration
	seed uint64
	kind string
}

func (s *slowestWorld) note(r Report, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if took > s.took {
		s.took, s.seed, s.kind = took, r.Seed, r.Kind
	}
}
