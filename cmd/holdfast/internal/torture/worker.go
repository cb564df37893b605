package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/proxy"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// openTimeout bounds how long a worker waits until the store is open.
const openTimeout = time.Minute

// beatInterval is how often a worker says that it is alive.
const beatInterval = 500 * time.Millisecond

// Work is the main function of a worker process. It reads its task and its orders from in, and writes reports to out.
// It returns when it was told to stop, or when in has ended.
func Work(in io.Reader, out io.Writer) error { return work(in, out, openOwn) }

// WorkForeign is Work with a foreign client.
func WorkForeign(in io.Reader, out io.Writer, open func(context.Context, ForeignOptions) (ForeignClient, error)) error {
	return work(in, out, func(ctx context.Context, w *worker) (lockClient, error) {
		c, err := open(ctx, ForeignOptions{Store: w.task.Store, TTL: w.task.TTL, Owner: w.task.Owner,
			Dial: driverutil.DialerOf(ctx)})
		return theirClient{c}, err
	})
}

// work is the body of a worker process: its task comes in the first line of in.
func work(in io.Reader, out io.Writer, open func(context.Context, *worker) (lockClient, error)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return errors.New("torture-worker is for holdfast torture; do not call it")
	}
	w := &worker{out: out, clock: shiftClock()}
	if err := json.Unmarshal(lines.Bytes(), &w.task); err != nil {
		return err
	}
	if err := w.run(lines, open); err != nil {
		w.tell(report{Op: opFatal, Text: err.Error()})
	}
	return nil
}

// worker is a worker process.
type worker struct {
	task   task
	clock  *shiftedClock
	marks  *marks
	client lockClient

	calm   atomic.Bool
	nextID atomic.Int64

	renewals atomic.Int64
	longest  atomic.Int64 // nanoseconds

	mu  sync.Mutex // for out
	out io.Writer
}

// tell sends a report.
func (w *worker) tell(r report) {
	line, err := json.Marshal(r)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.out.Write(append(line, '\n')); err != nil {
		os.Exit(1) // the command is gone, and its workers with it
	}
}

// run opens the store and lets one actor per lock work until the orders end.
func (w *worker) run(lines *bufio.Scanner, open func(context.Context, *worker) (lockClient, error)) error {
	var err error
	if w.marks, err = openMarks(w.task.Marks); err != nil {
		return err
	}
	defer w.marks.close()
	opening, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	if w.task.Link != "" {
		opening = driverutil.WithDialer(opening, dialThrough(w.task.Link))
	}
	if w.client, err = open(opening, w); err != nil {
		return err
	}
	w.tell(report{Op: opReady, At: now()})

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var actors []*actor
	var all sync.WaitGroup
	for i, lock := range w.task.Locks {
		a := &actor{worker: w, index: i, lock: lock, replies: make(chan order, 1), key: w.task.Keys[i],
			rnd: rand.New(rand.NewPCG(w.task.Seed, uint64(i)))}
		actors = append(actors, a)
		all.Go(func() { a.run(ctx) })
	}
	all.Go(func() { w.beat(ctx) })
	w.obey(lines, actors)
	stop()
	all.Wait()
	return w.client.Close()
}

// obey carries out orders until it is told to stop, or the command is gone.
func (w *worker) obey(lines *bufio.Scanner, actors []*actor) {
	for lines.Scan() {
		var o order
		if json.Unmarshal(lines.Bytes(), &o) != nil {
			continue
		}
		switch o.Op {
		case "calm":
			w.calm.Store(true)
		case "skew":
			w.clock.skew(o, w.task.BootFit)
		case "reply":
			actors[o.Lock].replies <- o
		case "stop":
			return
		}
	}
}

// beat says from time to time that the worker is alive, and how its renewals went.
func (w *worker) beat(ctx context.Context) {
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.tell(report{Op: opBeat, At: now(), Renewals: int(w.renewals.Swap(0)), Longest: time.Duration(w.longest.Swap(0))})
		}
	}
}

func (w *worker) countRenewal(e holdfast.Event) {
	if e.Kind == holdfast.EventRenewed || e.Kind == holdfast.EventRunRenewed {
		w.renewals.Add(1)
		if took := int64(e.RoundTrip); took > w.longest.Load() {
			w.longest.Store(took) // only this goroutine and beat write it, and a lost maximum does no harm
		}
	}
}

// dialThrough connects through the link at an address. Sockets of this machine's file system cannot be linked.
func dialThrough(link string) driverutil.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if network == "unix" {
			return nil, fmt.Errorf("torture cannot cut the connection to the socket %s; give the store's URL a host and a port", address)
		}
		d, err := proxy.SOCKS5("tcp", link, nil, proxy.Direct)
		if err != nil {
			return nil, err
		}
		return d.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
	}
}
