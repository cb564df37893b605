//go:build unix

package sessiontest

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// takeoverCounts is what was measured in the runs of one fault.
type takeoverCounts struct {
	// how long the old holder believed in its lock after the next one was granted; negative: it stopped before
	overlap  []time.Duration
	takeOver []time.Duration // from the fault to the next holder
	late     time.Duration   // the longest delay of the servers or this machine by themselves
}

func (y *takeoverCounts) addRun(t *testing.T, fault time.Time, believed map[string]int64, rivals []rivalResult,
	pulse *pace.Pace) {
	t.Helper()
	y.late = max(y.late, pulse.Worst(fault))
	for _, r := range rivals {
		if r.err != nil {
			t.Errorf("%s: the rival: %v", r.lock, r.err)
			continue
		}
		if !r.repeated {
			y.takeOver = append(y.takeOver, r.grantedAt.Sub(fault))
		}
		if last := believed[r.lock]; last != 0 {
			y.overlap = append(y.overlap, time.Duration(last-r.grantedAt.UnixNano()))
		}
	}
}

// checkCounts fails the test if two holders believed in the same lock at the same time, if half of the take-overs
// took longer than bound, or if one took far longer. Servers that were slow by themselves may have been so at each
// step of a take-over, or have changed their leader, which restarts the time of all sessions.
func (y *takeoverCounts) checkCounts(t *testing.T, bound time.Duration) {
	t.Helper()
	slices.Sort(y.overlap)
	slices.Sort(y.takeOver)
	if n := len(y.overlap); n > 0 {
		worst, over := y.overlap[n-1], 0
		for _, o := range y.overlap {
			if o > 0 {
				over++
			}
		}
		t.Logf("%d runs, TTL %v, margin %v: overlapping holders in %d; the old lease ended %v to %v before the next claim was granted",
			n, faultTTL, driver.Margin(faultTTL), over, -worst.Round(time.Millisecond), -y.overlap[0].Round(time.Millisecond))
		if over > 0 {
			t.Errorf("two believed at a time in %d of %d runs, for up to %v", over, n, worst)
		}
	}
	bound += 6 * y.late
	if n := len(y.takeOver); n > 0 {
		median, worst := y.takeOver[n/2], y.takeOver[n-1]
		share := func(tenths int) time.Duration { return y.takeOver[(n-1)*tenths/10].Round(time.Millisecond) }
		t.Logf("take-over under a TTL of %v: after %v at least, %v in one of ten, %v (median), %v in nine of ten, %v at most; others waited for up to %v",
			faultTTL, share(0), share(1), share(5), share(9), share(10), y.late.Round(time.Millisecond))
		if median > bound || worst > bound+2*time.Second {
			t.Errorf("a take-over may take %v", bound)
		}
	}
}
