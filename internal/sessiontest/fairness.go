//go:build unix

package sessiontest

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var fairDuration = flag.Duration("fair", 8*time.Second, "how long the fairness test runs, at least")

// Fairness has 64 clients in eight processes contend for one lock, while leaders are killed. A quarter of the waits are
// canceled. A token is the claim's place in the order of arrival, so the tokens of the holders must rise.
func (h *Harness[C, P]) Fairness(t *testing.T) {
	c := h.Own(t)
	file := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	kills := h.runFairly(t, c, file)
	counts := countFairness(readFairHistory(t, file))
	t.Logf("%d holds, %d waits canceled, %d leaders killed, in %v: %d overtakes, %d overlaps",
		counts.holds, counts.canceled, kills, time.Since(began).Round(time.Second), counts.overtakes, counts.overlaps)
	if counts.overtakes+counts.overlaps > 0 {
		t.Error("claims were granted out of order, or two at a time")
	}
	if counts.holds == 0 || counts.canceled == 0 {
		t.Error("too little has happened for the test to prove anything")
	}
}

// runFairly runs the worker processes, which write their holds to file, and kills leaders meanwhile. It returns how
// many.
func (h *Harness[C, P]) runFairly(t *testing.T, c C, file string) (kills int) {
	t.Helper()
	task := WorkerTask{Do: "queue", Endpoints: c.Endpoints(), Lock: t.Name(), TTL: 10 * time.Second, Clients: 8,
		File: file}
	var workers []*Worker
	for range 8 {
		workers = append(workers, h.StartWorker(t, task))
	}
	awaitMoreHolds(t, file, "at the start")
	for end := time.Now().Add(*fairDuration - 3*time.Second); kills == 0 || time.Now().Before(end); kills++ {
		time.Sleep(max(2*time.Second, min(*fairDuration/3, 10*time.Second)))
		leader, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leader.Kill()
		time.Sleep(time.Second)
		if err := leader.Start(); err != nil {
			t.Fatal(err)
		}
		CheckError(t, c.Ready(t.Context()))
		awaitMoreHolds(t, file, "after a leader was killed")
	}
	for _, w := range workers {
		w.Finish()
	}
	for _, w := range workers {
		CheckError(t, w.Wait())
	}
	return kills
}

// awaitMoreHolds waits until the history contains three more holds than now.
func awaitMoreHolds(t *testing.T, file, when string) {
	t.Helper()
	before := -1
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(string(data), "hold ")
		if before < 0 {
			before = n
		}
		if n >= before+3 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("no claim was granted for two minutes, %s", when)
		}
	}
}

// fairNote is one line of the history: "hold", "free", "late" or "canceled".
type fairNote struct {
	what  string
	token int64
}

// readFairHistory parses what the workers wrote, in the order in which they wrote it.
func readFairHistory(t *testing.T, file string) (notes []fairNote) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, _ := strconv.ParseInt(number, 10, 64)
		notes = append(notes, fairNote{what, token})
	}
	return notes
}

type fairCounts struct {
	holds, canceled int
	overtakes       int // holds with a token that is not larger than the one before
	overlaps        int // holds that began before the one before had ended
}

// countFairness counts what happened. It leaves out the holds of clients that were stopped for a TTL before they noted
// their hold: these had lost the lock by then.
func countFairness(notes []fairNote) (counts fairCounts) {
	late := map[int64]bool{}
	for _, n := range notes {
		late[n.token] = late[n.token] || n.what == "late"
	}
	var last, inside int64
	for _, n := range notes {
		switch {
		case n.what == "canceled":
			counts.canceled++
		case late[n.token]:
		case n.what == "hold":
			counts.holds++
			if n.token <= last {
				counts.overtakes++
			}
			if inside != 0 {
				counts.overlaps++
			}
			last, inside = n.token, n.token
		case n.what == "free":
			if inside != n.token {
				counts.overlaps++
			}
			inside = 0
		}
	}
	return counts
}
