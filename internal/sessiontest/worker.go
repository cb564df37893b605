//go:build unix

package sessiontest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

const taskVariable = "SESSIONTEST_ORDER"

// WorkerTask is what a worker process of the tests does. It is passed in an environment variable.
type WorkerTask struct {
	Do        string // "hold", "wait", "queue", "run", or one of the rig's Work
	Endpoints []string
	Lock      string
	Locks     []string // of "hold", or keys of "run"
	TTL       time.Duration
	Clients   int // of "queue"
	Rounds    int
	File      string
	URL       string // set by StartWorker
}

// Worker is a process of the test's own program that does a task.
type Worker struct {
	*exec.Cmd
	lines *bufio.Scanner
	in    io.Closer
}

// Finish ends a worker whose task runs until then.
func (w *Worker) Finish() { _ = w.in.Close() }

// StartWorker starts a worker. It ends at the end of the test at the latest.
func (h *Harness[C, P]) StartWorker(t *testing.T, o WorkerTask) *Worker {
	t.Helper()
	o.URL = h.clusterURL(o.Endpoints...)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &Worker{Cmd: exec.Command(os.Args[0])}
	w.Env = append(os.Environ(), taskVariable+"="+string(text))
	w.Stderr = os.Stderr
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.lines = bufio.NewScanner(out)
	if w.in, err = w.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := servertest.StartProcess(w.Cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Process.Kill(); _ = w.Wait() })
	return w
}

// awaitLine reads the worker's output until a line is want.
func (w *Worker) awaitLine(t *testing.T, want string) {
	t.Helper()
	for w.lines.Scan() {
		if w.lines.Text() == want {
			return
		}
	}
	t.Fatalf("the worker ended before it said %q", want)
}

func (h *Harness[C, P]) runWorker(text string) error {
	var o WorkerTask
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	switch o.Do {
	case "hold":
		return o.holdLocks()
	case "wait":
		return o.waitForLock()
	case "queue":
		return o.contendFairly()
	case "run":
		return o.beginRuns()
	}
	if do := h.WorkerTasks[o.Do]; do != nil {
		return do(o)
	}
	return fmt.Errorf("no order %q", o.Do)
}

func (o WorkerTask) openClient() (*holdfast.Client, error) {
	return holdfast.Open(context.Background(), o.URL, &holdfast.Options{TTL: o.TTL})
}

// lastValid is when a holder last believed in its lock, in nanoseconds since 1970.
type lastValid struct {
	Lock string
	Last int64
}

// watchLease checks a lease until it is lost, as a holder does. It reads the time before each check, so that a
// process that is stopped between the two does not seem to have believed for longer than it did.
func watchLease(name string, look func() bool) lastValid {
	b := lastValid{Lock: name}
	for {
		now := time.Now().UnixNano()
		if !look() {
			return b
		}
		b.Last = now
		time.Sleep(500 * time.Microsecond)
	}
}

// holdLocks takes each lock by a client of its own, prints "held", and prints for each lock when it last believed in
// it.
func (o WorkerTask) holdLocks() error {
	ctx := context.Background()
	var leases []*holdfast.Lease
	for _, name := range o.Locks {
		c, err := o.openClient()
		if err != nil {
			return err
		}
		l, err := lockWithRetries(ctx, c, name)
		if err != nil {
			return err
		}
		leases = append(leases, l)
	}
	fmt.Println("held")
	var all sync.WaitGroup
	var out sync.Mutex
	for i, l := range leases {
		all.Go(func() {
			b := watchLease(o.Locks[i], l.Valid)
			line, _ := json.Marshal(b)
			out.Lock()
			defer out.Unlock()
			fmt.Println(string(line))
		})
	}
	all.Wait()
	return nil
}

// waitForLock waits for a lock once, and prints "in" when it is granted.
func (o WorkerTask) waitForLock() error {
	c, err := o.openClient()
	if err != nil {
		return err
	}
	l, err := c.Mutex(o.Lock, nil).Lock(context.Background())
	if err != nil {
		return err
	}
	fmt.Println("in")
	return l.Release()
}

// contendFairly has clients take one lock again and again, with a quarter of the waits canceled, and notes each hold
// in a file. If a client was stopped for so long that its lease was not valid any more when it had noted its hold, it
// notes that, too.
func (o WorkerTask) contendFairly() error {
	file, err := os.OpenFile(o.File, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var all sync.WaitGroup
	failures := make(chan error, o.Clients)
	for range o.Clients {
		all.Go(func() {
			c, err := o.openClient()
			if err != nil {
				failures <- err
				return
			}
			defer c.Close()
			mu := c.Mutex(o.Lock, &holdfast.LockOptions{Fair: true})
			for ctx.Err() == nil {
				wait, cancel := context.WithCancel(ctx)
				if rand.N(4) == 0 {
					time.AfterFunc(rand.N(300*time.Millisecond), cancel)
				}
				l, err := mu.Lock(wait)
				cancel()
				switch {
				case err == nil:
					fmt.Fprintf(file, "hold %d\n", l.Token())
					fmt.Fprintf(file, "free %d\n", l.Token())
					if !l.Valid() {
						fmt.Fprintf(file, "late %d\n", l.Token())
					}
					_ = l.Release()
				case wait.Err() != nil:
					fmt.Fprintf(file, "canceled\n")
				case !isPassing(err):
					failures <- err
					return
				}
			}
		})
	}
	all.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}
