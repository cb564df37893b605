package election

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/pace"
)

var times = flag.Int("election", 4, "how often the leader is killed, stopped and cut off, each")

const (
	candidates = 3
	ttl        = time.Second
	waitLimit  = time.Minute // for what has no time limit of its own
)

// TestMain is also the main function of a candidate process.
func TestMain(m *testing.M) {
	if url := os.Getenv("ELECTION"); url != "" {
		fmt.Fprintln(os.Stderr, runCandidate(url, ttl))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestTakeOver: the leader is killed, stopped or cut off, again and again. Another candidate leads within the TTL
// plus a second, and no two candidates ever believe at the same time that they lead.
func TestTakeOver(t *testing.T) {
	j := &checker{terms: map[int64]*leadership{}, changed: make(chan struct{})}
	url := "file://" + t.TempDir()
	running := map[int]*exec.Cmd{}
	defer func() {
		for _, c := range running {
			c.Process.Kill()
			c.Wait()
		}
	}()
	start := func() {
		c, err := j.startCandidate(url)
		if err != nil {
			t.Fatal(err)
		}
		running[c.Process.Pid] = c
	}
	for range candidates {
		start()
	}
	// The times are without the delays of the machine: each of some ten steps, in several processes and on the disk,
	// may have been as late as the worst that was measured.
	took := map[string][]time.Duration{}
	var machine pace.Pace
	defer machine.WatchDisk(t.TempDir())()
	for round := range 3 * *times {
		leader, token, err := j.awaitLeader(0)
		if err != nil {
			t.Fatal(err)
		}
		c, how, at, from := running[leader], []string{"killed", "stopped", "cut off"}[round%3], bootTime(), time.Now()
		var after func()
		switch how {
		case "killed":
			c.Process.Kill()
			after = func() { c.Wait(); delete(running, leader); start() }
		case "stopped":
			c.Process.Signal(syscall.SIGSTOP)
			after = func() { c.Process.Signal(syscall.SIGCONT) }
		case "cut off":
			c.Process.Signal(syscall.SIGUSR1)
			after = func() { c.Process.Signal(syscall.SIGUSR2) }
		}
		_, next, err := j.awaitLeader(token)
		if err != nil {
			t.Fatalf("after the leader was %s: %v", how, err)
		}
		took[how] = append(took[how], j.firstReport(next)-at-max(machine.Lost(from), 10*machine.Worst(from)))
		after()
	}
	for how, ds := range took {
		slices.Sort(ds)
		t.Logf("%s %d times: taken over in %v (median), %v at most", how, len(ds), ds[len(ds)/2], ds[len(ds)-1])
		if ds[len(ds)-1] > ttl+time.Second {
			t.Errorf("taken over %v after the leader was %s", ds[len(ds)-1], how)
		}
	}
	terms, closest := j.checkOverlaps(t)
	t.Logf("%d leaderships, none of which overlap; the closest two are %v apart", terms, closest)
}

// checker keeps what the candidates have reported.
type checker struct {
	mu      sync.Mutex
	terms   map[int64]*leadership // by token
	latest  int64
	changed chan struct{}
}

// leadership is the time during which a candidate believed that it led under one token.
type leadership struct {
	pid         int
	first, last time.Duration
}

// startCandidate starts a candidate and reads its reports.
func (j *checker) startCandidate(url string) (*exec.Cmd, error) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "ELECTION="+url)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := servertest.StartProcess(c); err != nil {
		return nil, err
	}
	go j.readReports(c.Process.Pid, out)
	return c, nil
}

func (j *checker) readReports(pid int, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var token, at int64
		if _, err := fmt.Sscan(lines.Text(), &token, &at); err == nil { // a line may be cut by a kill
			j.recordReport(pid, token, time.Duration(at))
		}
	}
}

func (j *checker) recordReport(pid int, token int64, at time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.terms[token] == nil {
		j.terms[token] = &leadership{pid: pid, first: at}
		j.latest = max(j.latest, token)
		close(j.changed)
		j.changed = make(chan struct{})
	}
	j.terms[token].last = at
}

func (j *checker) firstReport(token int64) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.terms[token].first
}

// awaitLeader waits until a candidate leads under a later token than the given one.
func (j *checker) awaitLeader(token int64) (pid int, latest int64, err error) {
	deadline := time.After(waitLimit)
	for {
		j.mu.Lock()
		changed, latest := j.changed, j.latest
		if latest > token {
			defer j.mu.Unlock()
			return j.terms[latest].pid, latest, nil
		}
		j.mu.Unlock()
		select {
		case <-changed:
		case <-deadline:
			return 0, 0, errors.New("no candidate leads")
		}
	}
}

// checkOverlaps fails the test if two leaderships overlap.
func (j *checker) checkOverlaps(t *testing.T) (terms int, closest time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var tokens []int64
	for token := range j.terms {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	closest = time.Hour
	for i := 1; i < len(tokens); i++ {
		before, after := j.terms[tokens[i-1]], j.terms[tokens[i]]
		closest = min(closest, after.first-before.last)
		if after.first <= before.last {
			t.Errorf("token %d was believed in until %v, and token %d from %v on", tokens[i-1], before.last, tokens[i],
				after.first)
		}
	}
	return len(tokens), closest
}
