package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// takers is how many goroutines of a worker open clients or take leases at a time.
const takers = 32

// Worker is a process with clients. The main process calls its methods by net/rpc, over its standard input and output.
type Worker struct {
	clients []*holdfast.Client
	leases  []*holdfast.Lease

	stopWaiting context.CancelFunc
	waiters     sync.WaitGroup
	mu          sync.Mutex
	round       Round
}

// Round is what the waiters of a worker have done in one round.
type Round struct {
	Turns    []time.Duration // when a waiter got the lock, and released it at once, by the clock of the machine
	Refused  int             // waiters that left because the queue was full
	Failures int             // waiters that left because of another error
	LastErr  string          // of the last of them
}

// runWorker serves the main process until that ends.
func runWorker() error {
	server := rpc.NewServer()
	if err := server.Register(&Worker{}); err != nil {
		return err
	}
	server.ServeCodec(jsonrpc.NewServerCodec(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}))
	return nil
}

// OpenArgs are the arguments of Open.
type OpenArgs struct {
	URL     string
	Clients int
}

// Open makes clients. Each of them takes a lock of its own and releases it, so that it has connected, and has made
// what a client makes once.
func (w *Worker) Open(a OpenArgs, _ *struct{}) error {
	w.clients = make([]*holdfast.Client, a.Clients)
	return doAll(a.Clients, func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := holdfast.Open(ctx, a.URL, nil)
		if err != nil {
			return err
		}
		w.clients[i] = c
		return c.Mutex(fmt.Sprintf("scale-warm-%d-%d", os.Getpid(), i), nil).Do(ctx,
			func(context.Context, *holdfast.Lease) error { return nil })
	})
}

// Usage reads what the process uses; see readUsage.
func (w *Worker) Usage(fresh bool, u *Usage) (err error) {
	*u, err = readUsage(fresh)
	return err
}

// CountCalls counts the read and write system calls that the process has made.
func (w *Worker) CountCalls(_ struct{}, n *int64) error {
	reads, err := readProcValue("/proc/self/io", "syscr")
	if err != nil {
		return err
	}
	writes, err := readProcValue("/proc/self/io", "syscw")
	*n = reads + writes
	return err
}

// HoldArgs are the arguments of Hold.
type HoldArgs struct {
	Leases int
	TTL    time.Duration
	Limit  time.Duration // of the time for taking them
}

// HoldReply is the reply of Hold.
type HoldReply struct {
	Taken    int
	Took     time.Duration
	Failures int    // attempts that have failed
	LastErr  string // of the last of them
}

// maxFailures is how many attempts may fail before Hold gives up.
const maxFailures = 100

// Hold takes leases with the first client, each on a lock of its own, and keeps them. An attempt that has failed is
// made again: a busy server may miss a deadline.
func (w *Worker) Hold(a HoldArgs, r *HoldReply) error {
	start := time.Now()
	var mu sync.Mutex
	err := doAll(a.Leases, func(i int) error {
		lock := w.clients[0].Mutex(fmt.Sprint("scale-held-", i), &holdfast.LockOptions{TTL: a.TTL})
		for {
			if time.Since(start) > a.Limit {
				return errGivenUp
			}
			l, err := lock.Lock(context.Background())
			mu.Lock()
			if err == nil {
				w.leases = append(w.leases, l)
			} else {
				r.Failures, r.LastErr = r.Failures+1, err.Error()
			}
			failures := r.Failures
			mu.Unlock()
			if err == nil {
				return nil
			}
			if failures >= maxFailures {
				return errGivenUp
			}
		}
	})
	r.Taken, r.Took = len(w.leases), time.Since(start)
	if errors.Is(err, errGivenUp) {
		return nil
	}
	return err
}

var errGivenUp = errors.New("given up")

// CountValid counts the leases that are still valid.
func (w *Worker) CountValid(_ struct{}, n *int) error {
	for _, l := range w.leases {
		if l.Valid() {
			*n++
		}
	}
	return nil
}

// Cycle takes one lock with the first client and releases it, so many times, and returns how long that took.
func (w *Worker) Cycle(times int, took *time.Duration) error {
	start, mu := time.Now(), w.clients[0].Mutex("scale-cycles", nil)
	defer func() { *took = time.Since(start) }()
	for range times {
		lease, err := mu.Lock(context.Background())
		if err == nil {
			err = lease.Release()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// WaitArgs are the arguments of Wait.
type WaitArgs struct {
	Lock    string
	Fair    bool
	Waiters int // of each client
}

// Wait has goroutines of each client wait for one lock, and returns when all of them have begun. Each releases the
// lock as soon as it has it, and then leaves.
func (w *Worker) Wait(a WaitArgs, _ *struct{}) error {
	ctx, cancel := context.WithCancel(context.Background())
	w.stopWaiting, w.round = cancel, Round{}
	var begun sync.WaitGroup
	for _, c := range w.clients {
		mu := c.Mutex(a.Lock, &holdfast.LockOptions{Fair: a.Fair})
		for range a.Waiters {
			begun.Add(1)
			w.waiters.Go(func() {
				begun.Done()
				w.takeTurn(ctx, mu)
			})
		}
	}
	begun.Wait()
	return nil
}

func (w *Worker) takeTurn(ctx context.Context, mu *holdfast.Mutex) {
	lease, err := mu.Lock(ctx)
	at := machineTime()
	if err == nil {
		err = lease.Release()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if lease != nil {
		w.round.Turns = append(w.round.Turns, at)
	}
	switch {
	case errors.Is(err, holdfast.ErrQueueFull):
		w.round.Refused++
	case err != nil && ctx.Err() == nil:
		w.round.Failures++
		w.round.LastErr = err.Error()
	}
}

// CountRefused counts the waiters that have left because the queue was full.
func (w *Worker) CountRefused(_ struct{}, n *int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n = w.round.Refused
	return nil
}

// AwaitTurns returns when all waiters have left, or after a time, and reports whether they have.
func (w *Worker) AwaitTurns(limit time.Duration, done *bool) error {
	left := make(chan struct{})
	go func() { w.waiters.Wait(); close(left) }()
	select {
	case <-left:
		*done = true
	case <-time.After(limit):
	}
	return nil
}

// EndRound has the last waiters leave, and returns what all of them did.
func (w *Worker) EndRound(_ struct{}, r *Round) error {
	w.stopWaiting()
	w.waiters.Wait()
	*r = w.round
	return nil
}

// Close closes the clients, which releases their leases. That may take as long as it took to take them.
func (w *Worker) Close(limit time.Duration, _ *struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return doAll(len(w.clients), func(i int) error { return w.clients[i].CloseContext(ctx) })
}

// doAll calls do with 0 to n-1, some at a time, until one returns an error.
func doAll(n int, do func(i int) error) error {
	var all sync.WaitGroup
	var next atomic.Int64
	var once sync.Once
	var first error
	for range min(takers, n) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := do(int(i)); err != nil {
					once.Do(func() { first = err })
					next.Store(int64(n))
				}
			}
		})
	}
	all.Wait()
	return first
}

// worker is the main process's end of a Worker.
type worker struct {
	cmd *exec.Cmd
	rpc *rpc.Client
}

// startWorker starts a worker process, which ends with ctx and with this process.
func startWorker(ctx context.Context) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "worker")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := servertest.StartProcess(cmd); err != nil {
		return nil, err
	}
	return &worker{cmd, jsonrpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})}, nil
}

func (w *worker) call(method string, args, reply any) error {
	return w.rpc.Call("Worker."+method, args, reply)
}

func (w *worker) usage(fresh bool) (u Usage, err error) {
	err = w.call("Usage", fresh, &u)
	return u, err
}

// kill ends the process at once.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

// workers are several worker processes.
type workers []*worker

func startWorkers(ctx context.Context, n int) (ws workers, err error) {
	for range n {
		w, err := startWorker(ctx)
		if err != nil {
			ws.kill()
			return nil, err
		}
		ws = append(ws, w)
	}
	return ws, nil
}

// startClient starts one worker, with one client of a server.
func startClient(ctx context.Context, at *server) (workers, error) {
	ws, err := startWorkers(ctx, 1)
	if err != nil {
		return nil, err
	}
	if err := ws[0].call("Open", OpenArgs{URL: at.url, Clients: 1}, nil); err != nil {
		ws.kill()
		return nil, err
	}
	return ws, nil
}

// callAll calls a method of all workers at the same time, and returns their replies.
func callAll[R any](ws workers, method string, args any) ([]R, error) {
	replies, errs := make([]R, len(ws)), make([]error, len(ws))
	var all sync.WaitGroup
	for i, w := range ws {
		all.Go(func() { errs[i] = w.call(method, args, &replies[i]) })
	}
	all.Wait()
	return replies, errors.Join(errs...)
}

// usage adds up what the workers use.
func (ws workers) usage(fresh bool) (sum Usage, err error) {
	all, err := callAll[Usage](ws, "Usage", fresh)
	for _, u := range all {
		sum = sum.add(u)
	}
	return sum, err
}

func (ws workers) kill() {
	for _, w := range ws {
		w.kill()
	}
}
