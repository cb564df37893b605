//go:build unix

package benchtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// workerVariable has the task of a process that runs the same benchmark as a worker.
const workerVariable = "BENCHTEST_WORKER"

// workerTask is what a worker does.
type workerTask struct {
	Setup           Setup
	Locker, Address string
	Board           string        // a file that all processes map
	Callers         int           // how many goroutines each process has
	Hold            time.Duration // how long a goroutine holds the lock
}

// board is what the processes share.
type board struct {
	left atomic.Int64 // how many turns are left
	// released is when the holder before called its release, in nanoseconds since 1970; 0: there was none.
	released atomic.Int64
}

// workerAnswer is what a worker has done.
type workerAnswer struct {
	Turns []int           // of each goroutine
	Gaps  []time.Duration // from the call of a release until the next one had the lock, of those that had it here
}

// worker is a process that takes turns when it is told to.
type worker struct {
	cmd         *exec.Cmd
	in          io.WriteCloser
	answers     *json.Decoder
	answersFrom io.Closer
	said        bytes.Buffer
}

// runProcesses measures the cycles of several processes that want one lock.
func (s *Store) runProcesses(b *testing.B, l Locker, task workerTask) {
	task.Locker, task.Board = l.Name, b.TempDir()+"/board"
	shared := mapBoard(b, task.Board)
	var workers []*worker
	parent := b
	defer func() {
		for _, w := range workers {
			w.end(parent)
		}
	}()
	b.Run(l.Name, func(b *testing.B) {
		if workers == nil { // this function is called several times
			startWorkers(b, parent.Name(), task, &workers)
		}
		var pids []int
		for _, w := range workers {
			pids = append(pids, w.cmd.Process.Pid)
		}
		shared.left.Store(int64(b.N))
		shared.released.Store(0)
		requests, stop := s.countRequests(b), startMeter(pids...)
		b.ResetTimer()
		for _, w := range workers {
			if _, err := fmt.Fprintln(w.in, "go"); err != nil {
				b.Fatal(err)
			}
		}
		var all workerAnswer
		for _, w := range workers {
			done, err := w.await()
			if err != nil {
				b.Fatal(err)
			}
			all.Turns, all.Gaps = append(all.Turns, done.Turns...), append(all.Gaps, done.Gaps...)
		}
		b.StopTimer()
		reportCycles(b, stop())
		reportFairness(b, all.Turns)
		if s.Requests != nil {
			b.ReportMetric(float64(s.countRequests(b)-requests)/float64(b.N), "requests/turn")
		}
		if task.Hold > 0 {
			reportGaps(b, all.Gaps)
		}
	})
}

// reportGaps reports how long a lock was on its way from one holder to the next.
func reportGaps(b *testing.B, gaps []time.Duration) {
	if len(gaps) == 0 { // of a single turn
		return
	}
	slices.Sort(gaps)
	b.ReportMetric(float64(gaps[len(gaps)/2].Nanoseconds())/1e3, "gap-us")
	b.ReportMetric(float64(gaps[len(gaps)*99/100].Nanoseconds())/1e3, "gap-p99-us")
}

// startWorkers starts processes that are ready to take turns. They run the benchmark that has a setup of that name.
func startWorkers(b *testing.B, setup string, task workerTask, workers *[]*worker) {
	text, err := json.Marshal(task)
	if err != nil {
		b.Fatal(err)
	}
	names := strings.Split(setup, "/")
	pattern := "^" + strings.Join(names[:len(names)-1], "$/^") + "$"
	for range processes {
		w := &worker{cmd: exec.Command(os.Args[0], "-test.run=^$", "-test.bench="+pattern, "-test.benchtime=1x")}
		w.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
		w.cmd.Stdout, w.cmd.Stderr = &w.said, &w.said
		read, write, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		w.answers, w.cmd.ExtraFiles = json.NewDecoder(read), []*os.File{write}
		if w.in, err = w.cmd.StdinPipe(); err == nil {
			err = servertest.StartProcess(w.cmd)
		}
		write.Close()
		if err != nil {
			b.Fatal(err)
		}
		w.answersFrom = read
		*workers = append(*workers, w)
	}
	for _, w := range *workers {
		if _, err := w.await(); err != nil {
			b.Fatal(err)
		}
	}
}

// end ends the worker, and with it its connections.
func (w *worker) end(b *testing.B) {
	w.in.Close()
	if err := w.cmd.Wait(); err != nil {
		b.Errorf("a worker: %v: %s", err, &w.said)
	}
	w.answersFrom.Close()
}

// await waits for the worker's next answer.
func (w *worker) await() (a workerAnswer, err error) {
	if err = w.answers.Decode(&a); err != nil {
		err = fmt.Errorf("a worker has ended: %w", err)
	}
	return a, err
}

// runWorker is the worker process.
func runWorker(b *testing.B, lockers []Locker, text string) {
	var task workerTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		b.Fatal(err)
	}
	i := slices.IndexFunc(lockers, func(l Locker) bool { return l.Name == task.Locker && l.isIn(task.Setup) })
	lock, shared, answers := lockers[i].Open(b, task.Address), mapBoard(b, task.Board), os.NewFile(3, "answers")
	take := func(lock Lock, callers int, name string, todo *atomic.Int64) []int {
		turns, err := takeTurns(b.Context(), lock, callers, func(int) string { return task.Locker + "-" + name }, todo, nil)
		if err != nil {
			b.Fatal(err)
		}
		return turns
	}
	var one atomic.Int64
	one.Store(1)
	take(lock, 1, fmt.Sprint("warm", os.Getpid()), &one)
	answer := json.NewEncoder(answers)
	_ = answer.Encode(workerAnswer{})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var done workerAnswer
		lock := lock
		if task.Hold > 0 {
			lock = measureGaps(lock, task.Hold, shared, &done.Gaps)
		}
		done.Turns = take(lock, task.Callers, string(task.Setup), &shared.left)
		_ = answer.Encode(done)
	}
	os.Exit(0) // before a TestMain stops servers, which some start for that
}

// measureGaps makes a lock that is held for some time, and that notes how long it was on its way from each holder to
// the next.
func measureGaps(lock Lock, hold time.Duration, shared *board, gaps *[]time.Duration) Lock {
	var mu sync.Mutex // for a locker that lets two have the lock at a time, as some peers do
	return func(ctx context.Context, name string, caller int) (Lease, error) {
		lease, err := lock(ctx, name, caller)
		if err != nil {
			return lease, err
		}
		if from := shared.released.Load(); from != 0 {
			gap := time.Duration(time.Now().UnixNano() - from)
			mu.Lock()
			*gaps = append(*gaps, gap)
			mu.Unlock()
		}
		time.Sleep(hold)
		release := lease.Release
		lease.Release = func() error {
			shared.released.Store(time.Now().UnixNano())
			return release()
		}
		return lease, nil
	}
}

// mapBoard maps a file that several processes change.
func mapBoard(b *testing.B, path string) *board {
	const size = int(unsafe.Sizeof(board{}))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = f.Truncate(int64(size))
	}
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	data, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = syscall.Munmap(data) })
	return (*board)(unsafe.Pointer(&data[0]))
}
