package zookeeper

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

var fairFor = flag.Duration("fair", 8*time.Second, "how long the fairness test goes on")

// TestFairness: of 64 clients in eight processes, a quarter of whose waits are given up, nobody is overtaken, also while
// the ensemble loses its leader. The token is the place of arrival; so the tokens of those let in must rise.
func TestFairness(t *testing.T) {
	t.Parallel()
	c, err := zktest.Start(t.Context(), zktest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	file := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := order{Do: "queue", Endpoints: c.Endpoints(), Locks: []string{t.Name()}, TTL: 10 * time.Second, Clients: 8, For: *fairFor, File: file}
	var workers []*worker
	for range 8 {
		workers = append(workers, startWorker(t, o))
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
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
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
	if overtakes+overlaps > 0 || kills == 0 || holds < 20 {
		t.Error("not as promised")
	}
}
