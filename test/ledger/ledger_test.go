package ledger

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

var (
	processes = flag.Int("processes", 4, "how many workers")
	events    = flag.Int("events", 60, "how many events")
	which     = flag.String("stores", "file,redis", "the stores, or all")
)

const (
	goroutines = 4 // per worker
	ttl        = 2 * time.Second
	waitLimit  = 3 * time.Minute // for what has no time limit of its own
	// faultInterval is the longest time between two faults of one worker.
	faultInterval = 2500 * time.Millisecond
)

// TestMain is also the main function of a worker process.
func TestMain(m *testing.M) {
	if text := os.Getenv("LEDGER_WORKER"); text != "" {
		var task WorkerTask
		err := json.Unmarshal([]byte(text), &task)
		if err == nil {
			err = Work(task)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestEvents: each event is delivered 3 to 10 times at once, and twice later, while workers are killed and stopped, and
// links are cut. Each event is recorded as succeeded exactly once, no two workers believe in runs of the same event at
// the same time, and the histories are complete. A worker that dies between its work and its report does not keep its
// event from being handled again, under a larger token, and what it writes late is refused.
func TestEvents(t *testing.T) {
	names := strings.Split(*which, ",")
	if *which == "all" {
		names = slices.Sorted(maps.Keys(stores))
	}
	for _, name := range names {
		start := stores[name]
		if start == nil {
			t.Fatalf("there is no store %q", name)
		}
		t.Run(name, func(t *testing.T) { handleEvents(t, start(t)) })
	}
}

func handleEvents(t *testing.T, store server) {
	_, direct := store.linkTo(t)
	client, err := openClient(WorkerTask{Store: direct, TTL: ttl}) // it also makes what the store lacks
	failOn(t, err)
	t.Cleanup(func() { failOn(t, client.Close()) })
	ledger := client.Ledger(ledgerName, nil)
	_, err = ledger.History(t.Context(), eventKey(0))
	failOn(t, err)

	set := &workerSet{t: t, logs: t.TempDir(), hubPath: filepath.Join(t.TempDir(), "hub"), hasLinks: len(store.at) > 0}
	hub, err := NewHub(set.hubPath, *events, set)
	failOn(t, err)
	for i := range *processes {
		w := &slot{number: i}
		w.links, w.url = store.linkTo(t)
		set.slots = append(set.slots, w)
		set.start(w)
	}
	began := time.Now()
	stopFaults := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() { set.causeFaults(stopFaults) })
	limit := waitLimit + time.Duration(*events)*time.Second
	err = hub.AwaitEnd(limit)
	close(stopFaults)
	faults.Wait()
	took := time.Since(began)
	set.endAll()
	counts, broken := hub.Close()
	failOn(t, err)
	for _, b := range broken {
		t.Error(b)
	}
	logs := readLogs(t, set.logs)
	histories := map[string][]holdfast.RunInfo{}
	for i := range *events {
		histories[eventKey(i)], err = ledger.History(t.Context(), eventKey(i))
		failOn(t, err)
	}
	sum := checkHistories(t, hub, histories, logs)
	checkValidTimes(t, logs)
	t.Logf("%d events in %d deliveries, %d of them made again, to %d processes in %v", counts.Events, counts.Deliveries,
		counts.Redelivered, *processes, took.Round(time.Second))
	t.Logf("%d processes killed and %d stopped at random, %d links cut", set.killed, set.stopped, set.cut)
	t.Logf("%d runs: %d succeeded, one per event; %d failed, %d abandoned; %d late reports refused, "+
		"%d reports without an answer", sum.runs, sum.succeeded, sum.failed, sum.abandoned, sum.late, sum.unknown)
	t.Logf("between their work and their report %d workers were killed and %d stopped; %d times work was done again, "+
		"each time under a larger token; %d writes with smaller tokens were refused, %d of them of stopped workers",
		counts.KilledBeforeReport, counts.StoppedBeforeReport, counts.Repeated, counts.Refused, counts.LateRefused)
	if counts.KilledBeforeReport == 0 || counts.LateRefused == 0 || counts.Repeated < counts.LateRefused {
		t.Error("no worker died or was stopped between its work and its report, so the test proves too little")
	}
}

// slot is the place of one worker process. When it is killed, another one takes its place.
type slot struct {
	number int
	links  *servertest.Net
	url    string

	mu     sync.Mutex
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{} // closed when the process has ended
	isHeld bool          // it is stopped between its work and its report: no other signals are sent
}

// workerSet is the worker processes of one test.
type workerSet struct {
	t             *testing.T
	logs, hubPath string
	hasLinks      bool // the workers reach the store through links
	slots         []*slot
	ending        atomic.Bool // no process is started again

	killed, stopped, cut int
}

// start starts a slot's process, and again whenever it was killed.
func (s *workerSet) start(w *slot) {
	task, err := json.Marshal(WorkerTask{
		Slot: w.number, Store: w.url, TTL: ttl, Hub: s.hubPath, Logs: s.logs, Goroutines: goroutines,
	})
	if err != nil {
		s.t.Error(err)
		return
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LEDGER_WORKER="+string(task))
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.ending.Load() {
		return
	}
	cmd.Stdout, cmd.Stderr = &w.output, &w.output
	if err := servertest.StartProcess(cmd); err != nil {
		s.t.Error(err)
		return
	}
	w.cmd, w.ended, w.isHeld = cmd, make(chan struct{}), false
	go s.awaitProcess(w, cmd, w.ended)
}

func (s *workerSet) awaitProcess(w *slot, cmd *exec.Cmd, ended chan struct{}) {
	err := cmd.Wait()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err != nil && status.Signal() != syscall.SIGKILL {
		s.t.Errorf("worker %d: %v: %s", w.number, err, w.output.String())
	}
	close(ended)
	if err != nil {
		s.start(w)
	}
}

// signal sends a signal to the slot's process, unless that is stopped between its work and its report.
func (w *slot) signal(sig syscall.Signal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.isHeld && w.cmd.Process.Signal(sig) == nil
}

// causeFaults kills and stops workers, and cuts their links.
func (s *workerSet) causeFaults(end <-chan struct{}) {
	var healing sync.WaitGroup
	defer healing.Wait()
	for {
		select {
		case <-end:
			return
		case <-time.After(rand.N(faultInterval / time.Duration(len(s.slots)))):
		}
		w := s.slots[rand.N(len(s.slots))]
		during := rand.N(2 * ttl)
		kinds := 3
		if !s.hasLinks {
			kinds = 2
		}
		switch rand.N(kinds) {
		case 0:
			if w.signal(syscall.SIGKILL) {
				s.killed++
			}
		case 1:
			if w.signal(syscall.SIGSTOP) {
				s.stopped++
				healing.Go(func() { waitFor(during, end); w.signal(syscall.SIGCONT) })
			}
		default:
			w.links.Cut()
			s.cut++
			healing.Go(func() { waitFor(during, end); w.links.Heal() })
		}
	}
}

func waitFor(d time.Duration, end <-chan struct{}) {
	select {
	case <-time.After(d):
	case <-end:
	}
}

// Kill kills a worker between its work and its report.
func (s *workerSet) Kill(number int) {
	w := s.slots[number]
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.cmd.Process.Kill()
}

// Stop stops a worker between its work and its report, unless half of the workers are stopped so.
func (s *workerSet) Stop(number int, resume <-chan struct{}) bool {
	stopped := 0
	for _, w := range s.slots {
		w.mu.Lock()
		if w.isHeld {
			stopped++
		}
		w.mu.Unlock()
	}
	w := s.slots[number]
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isHeld || stopped >= *processes/2 || w.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	w.isHeld = true
	cmd := w.cmd
	go func() {
		<-resume
		w.mu.Lock()
		defer w.mu.Unlock()
		_ = cmd.Process.Signal(syscall.SIGCONT)
		w.isHeld = w.isHeld && w.cmd != cmd
	}()
	return true
}

// endAll lets the workers end.
func (s *workerSet) endAll() {
	s.ending.Store(true)
	for _, w := range s.slots {
		w.mu.Lock()
		ended := w.ended
		w.mu.Unlock()
		select {
		case <-ended:
		case <-time.After(waitLimit):
			s.t.Errorf("worker %d does not end", w.number)
			_ = w.cmd.Process.Kill()
			<-ended
		}
	}
}

// readLogs returns what all workers have noted.
func readLogs(t *testing.T, dir string) (lines []LogLine) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	failOn(t, err)
	for _, name := range files {
		f, err := os.Open(name)
		failOn(t, err)
		scanner := bufio.NewScanner(f)
		for scanner.Scan() {
			var l LogLine
			failOn(t, json.Unmarshal(scanner.Bytes(), &l))
			lines = append(lines, l)
		}
		failOn(t, scanner.Err())
		f.Close()
	}
	return lines
}

// runCounts is what the histories say together.
type runCounts struct{ runs, succeeded, failed, abandoned, late, unknown int }

// checkHistories checks that each event has succeeded once, at last, and that the histories are complete and agree with
// what the workers have noted.
func checkHistories(t *testing.T, hub *Hub, histories map[string][]holdfast.RunInfo, logs []LogLine) (sum runCounts) {
	byID := map[string]holdfast.RunInfo{}
	for key, runs := range histories {
		var token int64
		for i, r := range runs {
			byID[r.ID] = r
			sum.runs++
			switch isLast := i == len(runs)-1; {
			case r.Attempt != int64(i+1):
				t.Errorf("%s: run %d has the number %d", key, i+1, r.Attempt)
			case r.Token <= token:
				t.Errorf("%s: token %d after %d", key, r.Token, token)
			case (r.State == holdfast.RunSucceeded) != isLast:
				t.Errorf("%s: run %d of %d is %s", key, r.Attempt, len(runs), r.State)
			case isLast && (string(r.Result) != r.ID || hub.Writer(key) != r.ID):
				t.Errorf("%s: run %s has succeeded, with the result %q, and the last write was that of %s", key, r.ID,
					r.Result, hub.Writer(key))
			}
			token = r.Token
			switch r.State {
			case holdfast.RunSucceeded:
				sum.succeeded++
			case holdfast.RunFailed:
				sum.failed++
			case holdfast.RunAbandoned:
				sum.abandoned++
			default:
				t.Errorf("%s: run %d is %s", key, r.Attempt, r.State)
			}
		}
		if len(runs) == 0 {
			t.Errorf("%s was never run", key)
		}
	}
	for _, l := range logs {
		r, ok := byID[l.Run]
		switch {
		case !ok || r.Key != l.Key || r.Attempt != l.Attempt || r.Token != l.Token:
			t.Errorf("a worker had run %d of %s under token %d, and the history has %+v", l.Attempt, l.Key, l.Token, r)
		case l.Op == opReport && l.Err == "" && r.State != l.State:
			t.Errorf("run %d of %s was acknowledged as %s, and is %s", l.Attempt, l.Key, l.State, r.State)
		case l.Op == opReport && l.Err == errLost:
			sum.late++
			if r.State == holdfast.RunSucceeded {
				t.Errorf("the success of run %d of %s was refused, and is in the history", l.Attempt, l.Key)
			}
		case l.Op == opReport && l.Err != "":
			sum.unknown++
			t.Logf("run %d of %s is %s; its report as %s returned: %s", r.Attempt, l.Key, r.State, l.State, l.Err)
		}
	}
	return sum
}

// checkValidTimes checks that no two runs of one event were valid to their workers at the same time.
func checkValidTimes(t *testing.T, logs []LogLine) {
	type period struct {
		key, run    string
		first, last time.Duration
	}
	byRun := map[string]*period{}
	for _, l := range logs {
		if l.Op != opValid {
			continue
		}
		p := byRun[l.Run]
		if p == nil {
			p = &period{l.Key, l.Run, l.At, l.At}
			byRun[l.Run] = p
		}
		p.first, p.last = min(p.first, l.At), max(p.last, l.At)
	}
	all := slices.SortedFunc(maps.Values(byRun), func(a, b *period) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.first, b.first))
	})
	overlaps := 0
	for i, p := range all {
		if i == 0 || all[i-1].key != p.key || p.first > all[i-1].last {
			continue
		}
		overlaps++
		t.Errorf("%s: run %s was valid at %v, and run %s from %v on", p.key, all[i-1].run, all[i-1].last, p.run, p.first)
	}
	t.Logf("%d runs in which a worker believed, %d of them at the same time as another of the event", len(all),
		overlaps)
}
