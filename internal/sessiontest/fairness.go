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

var fairFor = flag.Duration("fair", 8*time.Second, "how long the fairness test goes on")

// Fairness has 64 clients in eight processes come for one lock, a quarter of whose waits are given up, while leaders are
// killed. The token is the place of arrival; so the tokens of those let in must rise.
func (r *Rig[C, P]) Fairness(t *testing.T) {
	c := r.Own(t)
	file := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := Order{Do: "queue", Endpoints: c.Endpoints(), Lock: t.Name(), TTL: 10 * time.Second, Clients: 8, For: *fairFor, File: file}
	var workers []*Worker
	for range 8 {
		workers = append(workers, r.StartWorker(t, o))
	}
	kills := 0
	for end := time.Now().Add(*fairFor - 3*time.Second); time.Now().Before(end); kills++ {
		time.Sleep(max(2*time.Second, min(*fairFor/3, 10*time.Second)))
		leader, err := c.Leader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leader.Kill()
		time.Sleep(time.Second)
		if err := leader.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range workers {
		Fails(t, w.Wait())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var holds, cancelled, overtakes, overlaps int
	var last, inside int64
	for line := range strings.Lines(string(data)) {
		what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, _ := strconv.ParseInt(number, 10, 64)
		switch what {
		case "hold":
			holds++
			if token <= last {
				overtakes++
			}
			if inside != 0 {
				overlaps++
			}
			last, inside = token, token
		case "free":
			if inside != token {
				overlaps++
			}
			inside = 0
		case "cancelled":
			cancelled++
		}
	}
	t.Logf("%d holds, %d waits given up, %d leaders killed, in %v: %d overtakes, %d overlaps", holds, cancelled, kills, *fairFor, overtakes, overlaps)
	if overtakes+overlaps > 0 || kills == 0 || holds < 3 {
		t.Error("not as promised")
	}
}
