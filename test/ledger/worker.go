package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/store/dynamodb"
	_ "github.com/holdfast-go/holdfast/store/etcd"
	_ "github.com/holdfast-go/holdfast/store/file"
	_ "github.com/holdfast-go/holdfast/store/postgres"
	_ "github.com/holdfast-go/holdfast/store/redis"
	_ "github.com/holdfast-go/holdfast/store/zookeeper"
)

// WorkerTask is what a worker process does. It is passed in its environment.
type WorkerTask struct {
	Slot       int    // which of the workers it is
	Store      string // URL
	TTL        time.Duration
	Hub        string // socket of the hub
	Logs       string // folder for the log of this process
	Goroutines int
}

// ledgerName is the ledger of all events.
const ledgerName = "events"

// LogLine is what a worker notes about a run, one JSON object per line. A line is written before anything else is done,
// so those of a process that was killed are complete.
type LogLine struct {
	Op      string // opBegin, opValid or opReport
	Key     string
	Run     string
	Attempt int64
	Token   int64
	At      time.Duration // of a line of opValid: by the boot clock, which all processes of the machine share
	State   holdfast.RunState
	Err     string // "", "lost", or another text: then the outcome is unknown
}

// worker is one worker process.
type worker struct {
	WorkerTask
	ledger *holdfast.Ledger
	log    *os.File
}

// Work is the main function of a worker process. It ends when all events were handled.
func Work(task WorkerTask) error {
	log, err := os.OpenFile(filepath.Join(task.Logs, fmt.Sprint(os.Getpid())),
		os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	client, err := openClient(task)
	if err != nil {
		return err
	}
	w := &worker{WorkerTask: task, ledger: client.Ledger(ledgerName, nil), log: log}
	var all sync.WaitGroup
	errs := make([]error, task.Goroutines)
	for i := range errs {
		all.Go(func() { errs[i] = w.handleDeliveries() })
	}
	all.Wait()
	return errors.Join(append(errs, client.Close())...)
}

// openClient opens the store. Its link may be cut meanwhile.
func openClient(task WorkerTask) (*holdfast.Client, error) {
	var errs []error
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		opts := &holdfast.Options{TTL: task.TTL, Owner: fmt.Sprint("worker ", task.Slot)}
		client, err := holdfast.Open(ctx, task.Store, opts)
		cancel()
		if err == nil {
			return client, nil
		}
		errs = append(errs, err)
		if unexpected(err) != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (w *worker) handleDeliveries() error {
	conn, err := net.Dial("unix", w.Hub)
	if err != nil {
		return err
	}
	defer conn.Close()
	hub := &hubClient{conn: conn, lines: bufio.NewReader(conn), slot: w.Slot}
	for {
		next, err := hub.send(Request{Op: opNext})
		if err != nil || next.Done {
			return err
		}
		handled, err := w.handleEvent(hub, next.Key)
		if err != nil {
			return fmt.Errorf("%s: %w", next.Key, err)
		}
		op := opAgain
		if handled {
			op = opAck
		}
		if _, err := hub.send(Request{Op: op, Delivery: next.Delivery}); err != nil {
			return err
		}
	}
}

// handleEvent begins a run of an event, works, and reports. It returns true if the event has succeeded, now or earlier.
func (w *worker) handleEvent(hub *hubClient, key string) (handled bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*w.TTL)
	defer cancel()
	run, err := w.ledger.Begin(ctx, key, &holdfast.RunOptions{Fingerprint: "payload of " + key, Wait: rand.N(2) == 0})
	var refused *holdfast.RunError
	switch {
	case errors.Is(err, holdfast.ErrSucceeded) && errors.As(err, &refused):
		if got := string(refused.Run.Result); got != refused.Run.ID {
			return false, fmt.Errorf("the stored result is %q, and the run has stored %q", got, refused.Run.ID)
		}
		return true, nil
	case err != nil:
		return false, unexpected(err)
	}
	w.writeLog(newLine(opBegin, run, 0))
	w.noteValid(run)
	for range rand.N(10) {
		time.Sleep(time.Millisecond)
		w.noteValid(run)
	}
	if rand.N(30) == 0 {
		return false, w.report(run, holdfast.RunFailed)
	}
	// A worker that has lost its run goes on nevertheless: the resource must refuse it.
	reply, err := w.write(hub, run, false)
	if err != nil {
		return false, err
	}
	if reply.Stopped { // until another run of the event had written
		if _, err := w.write(hub, run, true); err != nil {
			return false, err
		}
	}
	return false, w.report(run, holdfast.RunSucceeded) // its event counts as handled when the ledger says so
}

// write writes to the resource.
func (w *worker) write(hub *hubClient, run *holdfast.Run, late bool) (Reply, error) {
	w.noteValid(run)
	r, err := hub.send(Request{Op: opWrite, Key: run.Key(), Token: run.Token(), Run: run.ID(), Late: late})
	if err == nil && r.Refused && run.Valid() {
		err = fmt.Errorf("a larger token than %d has written while this run is valid", run.Token())
	}
	return r, err
}

// noteValid notes that the run is valid now, if it is. The clock is read first: a run that is valid was valid before.
func (w *worker) noteValid(run *holdfast.Run) {
	at := driver.SystemClock.Boottime()
	if run.Valid() {
		w.writeLog(newLine(opValid, run, at))
	}
}

func newLine(op string, run *holdfast.Run, at time.Duration) LogLine {
	return LogLine{Op: op, Key: run.Key(), Run: run.ID(), Attempt: run.Attempt(), Token: run.Token(), At: at}
}

const (
	opBegin  = "begin"  // the worker got the run
	opValid  = "valid"  // the worker believed in its run at this moment
	opReport = "report" // what Succeed or Fail has returned
)

// report reports the end of a run, and notes what that has returned. A worker that was stopped for long reports, too.
func (w *worker) report(run *holdfast.Run, state holdfast.RunState) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*w.TTL)
	defer cancel()
	var err error
	if state == holdfast.RunSucceeded {
		err = run.Succeed(ctx, []byte(run.ID()))
	} else {
		err = run.Fail(ctx, errors.New("the work has failed"))
	}
	line := newLine(opReport, run, 0)
	line.State = state
	switch {
	case err == nil:
	case errors.Is(err, holdfast.ErrLost):
		line.Err = errLost
	default:
		line.Err = err.Error()
	}
	w.writeLog(line)
	return unexpected(err)
}

const errLost = "lost"

func (w *worker) writeLog(line LogLine) {
	data, err := json.Marshal(line)
	if err == nil {
		_, err = w.log.Write(append(data, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

// unexpected returns an error that must not occur. It returns nil for any other, and for nil.
func unexpected(err error) error {
	for _, lasting := range []error{
		holdfast.ErrInvalid, holdfast.ErrMismatch, holdfast.ErrCorrupt, holdfast.ErrDenied, holdfast.ErrUnsupported,
		holdfast.ErrClosed, holdfast.ErrReleased, holdfast.ErrTooSoon, holdfast.ErrAttemptsUsed,
	} {
		if errors.Is(err, lasting) {
			return err
		}
	}
	return nil
}

// hubClient is a worker's connection to the hub.
type hubClient struct {
	conn  net.Conn
	lines *bufio.Reader
	slot  int
}

func (h *hubClient) send(r Request) (reply Reply, err error) {
	r.Slot = h.slot
	line, err := json.Marshal(r)
	if err != nil {
		return reply, err
	}
	if _, err := h.conn.Write(append(line, '\n')); err != nil {
		return reply, err
	}
	answer, err := h.lines.ReadBytes('\n')
	if err != nil {
		return reply, err
	}
	return reply, json.Unmarshal(answer, &reply)
}
