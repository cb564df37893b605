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

var fairDuration = flag.Duration("fair", 8*time.Second, "how long the fairness test goes on, at least")

// Fairness has 64 clients in eight processes come for one lock, a quarter of whose waits are given up, while leaders are
// killed. The token is the place of arrival; so the tokens of those let in must rise.
func (r *Harness[C, P]) Fairness(t *testing.T) {
	c := r.Own(t)
	file := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := WorkerTask{Do: "queue", Endpoints: c.Endpoints(), Lock: t.Name(), TTL: 10 * time.Second, Clients: 8, File: file}
	began := time.Now()
	var workers []*Worker
	for range 8 {
		workers = append(workers, r.StartWorker(t, o))
	}
	goOn := func(when string) { // until some more have been let in
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
				t.Fatalf("nobody was let in for two minutes, %s", when)
			}
		}
	}
	goOn("at first")
	kills := 0
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
		goOn("when a leader had been killed")
	}
	for _, w := range workers {
		w.Finish()
	}
	for _, w := range workers {
		CheckError(t, w.Wait())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type note struct {
		what  string
		token int64
	}
	var notes []note
	late := map[int64]bool{} // tokens of those who had stood still for a TTL when they looked again
	for line := range strings.Lines(string(data)) {
		what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, _ := strconv.ParseInt(number, 10, 64)
		notes = append(notes, note{what, token})
		late[token] = late[token] || what == "late"
	}
	var holds, cancelled, overtakes, overlaps int
	var last, inside int64
	for _, n := range notes {
		switch {
		case n.what == "cancelled":
			cancelled++
		case late[n.token]:
		case n.what == "hold":
			holds++
			if n.token <= last {
				overtakes++
			}
			if inside != 0 {
				overlaps++
			}
			last, inside = n.token, n.token
		case n.what == "free":
			if inside != n.token {
				overlaps++
			}
			inside = 0
		}
	}
	t.Logf("%d holds, %d waits given up, %d leaders killed, in %v: %d overtakes, %d overlaps", holds, cancelled, kills, time.Since(began).Round(time.Second), overtakes, overlaps)
	if overtakes+overlaps > 0 || holds == 0 || cancelled == 0 {
		t.Error("not as promised")
	}
}
