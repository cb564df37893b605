package sim

import (
	"flag"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds = flag.Int("seeds", 10000, "how many worlds to live through")
	first = flag.Uint64("first", 1, "the first seed")
	until = flag.String("until", "", "stop at the first violation that this regular expression finds, not after four worlds with any")
)

// TestWorlds lives through many worlds. A seed that fails is named, and runs alone by -first N -seeds 1.
func TestWorlds(t *testing.T) { worlds(t, Run) }

// TestTreeWorlds is the same for the sequence engine.
func TestTreeWorlds(t *testing.T) { worlds(t, RunTree) }

func worlds(t *testing.T, run func(seed uint64) Report) {
	var next, grants, losses, ejected, took, failed atomic.Int64
	var found atomic.Bool
	sought := regexp.MustCompile(*until)
	const workers = 2
	t.Run("seeds", func(t *testing.T) {
		for range workers {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for {
					n := next.Add(1) - 1
					if n >= int64(*seeds) || found.Load() || *until == "" && failed.Load() > 3 {
						return
					}
					var r Report
					synctest.Test(t, func(*testing.T) { r = run(*first + uint64(n)) })
					for _, wrong := range r.Wrong {
						t.Errorf("seed %d %s", r.Seed, wrong)
						if *until != "" && sought.MatchString(wrong) {
							found.Store(true)
						}
					}
					if len(r.Wrong) > 0 {
						failed.Add(1)
					}
					grants.Add(int64(r.Grants))
					losses.Add(int64(r.Losses))
					ejected.Add(int64(r.Ejected))
					took.Add(int64(r.Took))
				}
			})
		}
	})
	t.Logf("%d worlds, %.1f simulated hours, %d grants, %d leases lost, %d claims removed from the line, %d worlds with violations",
		min(next.Load(), int64(*seeds)), time.Duration(took.Load()).Hours(), grants.Load(), losses.Load(), ejected.Load(), failed.Load())
}
