package zookeeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// order is what a worker process of the tests is told.
type order struct {
	Do        string // "hold" or "queue"
	Endpoints []string
	Locks     []string
	TTL       time.Duration
	Clients   int
	For       time.Duration
	File      string
}

// worker is a process of ours that carries out an order.
type worker struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func startWorker(t *testing.T, o order) *worker {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{Cmd: exec.Command(os.Args[0])}
	w.Env = append(os.Environ(), "ZOOKEEPER_STORE_WORKER="+string(text))
	w.Stderr = os.Stderr
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.lines = bufio.NewScanner(out)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Process.Kill(); _ = w.Wait() })
	return w
}

// until reads lines until one of them is want.
func (w *worker) until(t *testing.T, want string) {
	t.Helper()
	for w.lines.Scan() {
		if w.lines.Text() == want {
			return
		}
	}
	t.Fatalf("the worker ended before it said %q", want)
}

func work(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	switch o.Do {
	case "hold":
		return o.hold()
	case "queue":
		return o.queue()
	}
	return fmt.Errorf("no order %q", o.Do)
}

func (o order) client() (*holdfast.Client, error) {
	return holdfast.Open(context.Background(), "zookeeper://"+strings.Join(o.Endpoints, ","), &holdfast.Options{TTL: o.TTL})
}

// belief is when a holder last believed, in nanoseconds since 1970.
type belief struct {
	Lock string
	Last int64
}

// hold takes each lock by a client of its own, says so, and reports for each when it last believed in it.
func (o order) hold() error {
	ctx := context.Background()
	var leases []*holdfast.Lease
	for _, name := range o.Locks {
		c, err := o.client()
		if err != nil {
			return err
		}
		l, err := c.Mutex(name, nil).Lock(ctx)
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
			b := believe(o.Locks[i], l.Valid)
			line, _ := json.Marshal(b)
			out.Lock()
			defer out.Unlock()
			fmt.Println(string(line))
		})
	}
	all.Wait()
	return nil
}

// believe looks at a lease until it is lost, as a holder does. The moment is read before the look, so that a process that is
// stopped between the two has not believed any longer.
func believe(name string, look func() bool) belief {
	b := belief{Lock: name}
	for {
		now := time.Now().UnixNano()
		if !look() {
			return b
		}
		b.Last = now
		time.Sleep(500 * time.Microsecond)
	}
}

// queue has clients come for one lock again and again, of which a quarter of the waits are given up, and notes each hold
// in a file.
func (o order) queue() error {
	file, err := os.OpenFile(o.File, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.For)
	defer cancel()
	var all sync.WaitGroup
	failures := make(chan error, o.Clients)
	for range o.Clients {
		all.Go(func() {
			c, err := o.client()
			if err != nil {
				failures <- err
				return
			}
			defer c.Close()
			mu := c.Mutex(o.Locks[0], &holdfast.LockOptions{Fair: true})
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
					_ = l.Unlock()
				case wait.Err() != nil:
					fmt.Fprintf(file, "cancelled\n")
				case !errors.Is(err, holdfast.ErrLost) && !errors.Is(err, holdfast.ErrUncertain):
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
