package storm

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

var duration = flag.Duration("storm", 10*time.Second, "how long each storm lasts")

const (
	processes  = 8
	goroutines = 8
	ttl        = time.Second // where holders are killed and stopped
	waitLimit  = time.Minute // for what has no time limit of its own
)

// TestMain is also the main function of a worker process.
func TestMain(m *testing.M) {
	if order := os.Getenv("STORM"); order != "" {
		var o WorkerTask
		if err := json.Unmarshal([]byte(order), &o); err != nil {
			panic(err)
		}
		if err := Work(o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// workerProcess is a worker that this test started.
type workerProcess struct {
	*exec.Cmd
	out, err bytes.Buffer
}

func startWorker(t *testing.T, o WorkerTask) *workerProcess {
	t.Helper()
	order, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &workerProcess{Cmd: exec.Command(os.Args[0])}
	w.Env = append(os.Environ(), "STORM="+string(order))
	w.Stdout, w.Stderr = &w.out, &w.err
	if err := servertest.StartProcess(w.Cmd); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestNoAdditionIsLost: eight processes with eight goroutines each add to a number in a plain file, and no addition
// is lost.
func TestNoAdditionIsLost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A plain file does not refuse old tokens, so no worker may be stopped for a TTL here.
	o := WorkerTask{Store: "file://" + t.TempDir(), TTL: time.Minute, File: file, Until: *duration, Workers: goroutines}
	var workers []*workerProcess
	for range processes {
		workers = append(workers, startWorker(t, o))
	}
	sum := 0
	var each []int
	for _, w := range workers {
		if err := w.Wait(); err != nil {
			t.Errorf("%v: %s", err, w.err.String())
		}
		n, err := strconv.Atoi(strings.TrimSpace(w.out.String()))
		if err != nil {
			t.Fatalf("%v: %q", err, w.out.String())
		}
		sum += n
		each = append(each, n)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(data)); got != strconv.Itoa(sum) {
		t.Errorf("%d additions were made, and the file says %s", sum, got)
	}
	t.Logf("%d additions in %v by %d processes with %d goroutines, exact; by process %v", sum, *duration, processes,
		goroutines, each)
	if slices.Min(each) < goroutines {
		t.Errorf("a process made no progress: %v", each)
	}
}

// TestKillAndStop: while eight processes add at a witness, the holder of the lock is killed every second, and now and
// then one is stopped for two TTLs. No addition is lost, no stale write is accepted, the lock is granted to another
// claim within half a second of a kill, and a stopped process blocks the others no longer than its TTL.
func TestKillAndStop(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "witness")
	witness, err := NewWitness(socket)
	if err != nil {
		t.Fatal(err)
	}
	c := &workerSet{t: t, witness: witness, workers: map[int]*workerProcess{},
		order: WorkerTask{Store: "file://" + t.TempDir(), TTL: ttl, Witness: socket, Until: *duration + time.Minute,
			Workers: goroutines}}
	defer c.endAll()
	for range processes {
		c.startWorker()
	}
	var handOvers []time.Duration
	stops := 0
	until := time.Now().Add(*duration)
	for round := 0; time.Now().Before(until) || stops == 0; round++ {
		next := time.After(time.Second)
		if round%3 == 1 {
			c.stopHolder()
			stops++
		}
		handOvers = append(handOvers, c.killHolder())
		<-next
	}
	c.endAll()
	counts := witness.Close()
	slices.Sort(handOvers)
	worst := handOvers[len(handOvers)-1]
	t.Logf("%d writes, %d holders killed, %d stopped, %d stale writes refused; hand-over after a kill: median %v, longest %v; longest pause %v; the times are without what the machine was late by itself",
		counts.Writes, len(handOvers), stops, counts.Stale, handOvers[len(handOvers)/2], worst, counts.Longest)
	if counts.Lost > 0 || counts.Repeated > 0 {
		t.Errorf("%d writes were not made from the present value, %d tokens repeated", counts.Lost, counts.Repeated)
	}
	if worst > 500*time.Millisecond {
		t.Errorf("the lock passed on %v after a kill", worst)
	}
	if counts.Longest > ttl+500*time.Millisecond {
		t.Errorf("no write was accepted for %v", counts.Longest)
	}
	if stops == 0 {
		t.Error("no worker was stopped, so the test proves nothing")
	}
}

// workerSet is the workers of one test.
type workerSet struct {
	t       *testing.T
	witness *Witness
	order   WorkerTask
	workers map[int]*workerProcess
	stopped []*workerProcess
}

func (c *workerSet) startWorker() {
	w := startWorker(c.t, c.order)
	c.workers[w.Process.Pid] = w
}

// removeHolder waits until a worker holds the lock, and replaces that worker by another one.
func (c *workerSet) removeHolder() *workerProcess {
	if _, err := c.witness.AwaitHolder(0, waitLimit); err != nil {
		c.t.Fatal(err)
	}
	for {
		pid, changed := c.witness.Holder()
		if w := c.workers[pid]; w != nil {
			delete(c.workers, pid)
			c.startWorker()
			return w
		}
		<-changed
	}
}

// killHolder kills the holder of the lock, and returns how long it took until another worker held it.
func (c *workerSet) killHolder() time.Duration {
	w := c.removeHolder()
	w.Process.Kill()
	took, err := c.witness.AwaitHolder(w.Process.Pid, waitLimit)
	if err != nil {
		c.t.Fatal(err)
	}
	w.Wait()
	return took
}

// stopHolder stops the holder of the lock for two TTLs. It then continues, and its token is refused.
func (c *workerSet) stopHolder() {
	w := c.removeHolder()
	w.Process.Signal(syscall.SIGSTOP)
	time.AfterFunc(2*ttl, func() { w.Process.Signal(syscall.SIGCONT) })
	c.stopped = append(c.stopped, w)
	if _, err := c.witness.AwaitHolder(w.Process.Pid, waitLimit); err != nil {
		c.t.Fatal(err)
	}
}

// endAll kills the workers that are left.
func (c *workerSet) endAll() {
	for _, w := range c.workers {
		c.stopped = append(c.stopped, w)
	}
	for _, w := range c.stopped {
		w.Process.Kill()
		w.Wait()
	}
	c.workers, c.stopped = map[int]*workerProcess{}, nil
}
