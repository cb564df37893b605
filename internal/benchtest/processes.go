package benchtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// workerVariable has the task of a process that runs the same benchmark as a worker.
const workerVariable = "BENCHTEST_WORKER"

// workerTask is what a worker does.
type workerTask struct {
	Locker, Address string
	Counter         string // a file that all processes map, with how many turns are left
}

// worker is a process that takes turns when it is told to.
type worker struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner
	said    bytes.Buffer
}

// runProcesses measures the cycles of several processes that want one lock.
func runProcesses(b *testing.B, l Locker, address string) {
	counter := b.TempDir() + "/counter"
	todo := mapCounter(b, counter)
	var workers []*worker
	parent := b
	b.Run(l.Name, func(b *testing.B) {
		if workers == nil { // this function is called several times
			task := workerTask{Locker: l.Name, Address: address, Counter: counter}
			workers = startWorkers(lasting{b, parent}, parent.Name(), task)
		}
		var pids []int
		for _, w := range workers {
			pids = append(pids, w.cmd.Process.Pid)
		}
		todo.Store(int64(b.N))
		stop := startMeter(pids...)
		b.ResetTimer()
		for _, w := range workers {
			if _, err := fmt.Fprintln(w.in, "go"); err != nil {
				b.Fatal(err)
			}
		}
		var turns []int
		for _, w := range workers {
			var n int
			if err := w.await(&n); err != nil {
				b.Fatal(err)
			}
			turns = append(turns, n)
		}
		b.StopTimer()
		reportCycles(b, stop())
		reportFairness(b, turns)
	})
}

// startWorkers starts processes that are ready to take turns. They run the benchmark that has a setup of that name.
func startWorkers(b testing.TB, setup string, task workerTask) []*worker {
	text, err := json.Marshal(task)
	if err != nil {
		b.Fatal(err)
	}
	names := strings.Split(setup, "/")
	pattern := "^" + strings.Join(names[:len(names)-1], "$/^") + "$"
	var workers []*worker
	for range processes {
		w := &worker{cmd: exec.Command(os.Args[0], "-test.run=^$", "-test.bench="+pattern, "-test.benchtime=1x")}
		w.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
		w.cmd.Stdout, w.cmd.Stderr = &w.said, &w.said
		read, write, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		w.answers, w.cmd.ExtraFiles = bufio.NewScanner(read), []*os.File{write}
		if w.in, err = w.cmd.StdinPipe(); err == nil {
			err = servertest.StartProcess(w.cmd)
		}
		write.Close()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			w.in.Close() // which ends it
			if err := w.cmd.Wait(); err != nil {
				b.Errorf("a worker: %v: %s", err, &w.said)
			}
			read.Close()
		})
		workers = append(workers, w)
	}
	for _, w := range workers {
		if err := w.await(new(int)); err != nil {
			b.Fatal(err)
		}
	}
	return workers
}

// await waits for the worker's next answer, which is a number.
func (w *worker) await(n *int) error {
	if !w.answers.Scan() {
		return errors.New("a worker has ended")
	}
	_, err := fmt.Sscan(w.answers.Text(), n)
	return err
}

// runWorker is the worker process. It answers with its number of turns.
func runWorker(b *testing.B, lockers []Locker, text string) {
	var task workerTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		b.Fatal(err)
	}
	i := slices.IndexFunc(lockers, func(l Locker) bool { return l.Name == task.Locker })
	lock, todo, answers := lockers[i].Open(b, task.Address), mapCounter(b, task.Counter), os.NewFile(3, "answers")
	take := func(name string, todo *atomic.Int64) {
		turns, err := takeTurns(b.Context(), lock, 1, func(int) string { return task.Locker + "-" + name }, todo, nil)
		if err != nil {
			b.Fatal(err)
		}
		fmt.Fprintln(answers, turns[0])
	}
	var one atomic.Int64
	one.Store(1)
	take(fmt.Sprint("warm", os.Getpid()), &one)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		take("processes", todo)
	}
	os.Exit(0) // before a TestMain stops servers, which some start for that
}

// mapCounter maps a file with a number that several processes change.
func mapCounter(b *testing.B, path string) *atomic.Int64 {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = f.Truncate(8)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	data, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = syscall.Munmap(data) })
	return (*atomic.Int64)(unsafe.Pointer(&data[0]))
}
