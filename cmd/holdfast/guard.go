package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// The guard is a process between this program, the wrapper, and the command. It knows until when the lease may be believed
// in, and ends the command's tree in time whatever has become of the wrapper: that one may be stopped, killed, or hang in a
// call to a store. So it asks the wrapper for nothing, waits for no write, and holds open what keeps the wrapper's claim
// standing (see holdfast.Client.Heirloom) until the last process of the tree is gone. It shares no group and no session
// with the wrapper, so that what is done to those is not done to it.
//
// The two talk by pipes, in lines of JSON. A pipe that closes says that the other side is gone.

// guardName is what the guard is called in process lists, and how this program knows that it is one.
const guardName = "holdfast-guard"

// controlMessage is what the wrapper tells the guard. Exactly one part is set.
type controlMessage struct {
	Start         *startMessage  `json:"begin,omitempty"` // the first
	Until         time.Duration  `json:"until,omitempty"` // until when the lease may be believed in, by the clock that processes share
	Lost          *lossMessage   `json:"lost,omitempty"`
	Signal        syscall.Signal `json:"signal,omitempty"`
	GroupSignaled bool           `json:"group,omitempty"` // with Signal: the process group has had it
	Kill          bool           `json:"kill,omitempty"`
}

// startMessage is what the guard is there for.
type startMessage struct {
	Lock   string        `json:"lock"`
	Until  time.Duration `json:"until"`
	Policy killPolicy    `json:"terms"`
}

type lossMessage struct {
	Cause holdfast.LossCause `json:"loss"`
	Why   string             `json:"why,omitempty"`
}

// guardReport is what the guard tells the wrapper.
type guardReport struct {
	Event  string             `json:"event"`
	PID    int                `json:"pid,omitempty"`
	Errno  syscall.Errno      `json:"errno,omitempty"`
	Status syscall.WaitStatus `json:"status,omitempty"`
	Why    string             `json:"why,omitempty"`
	Left   []process          `json:"left,omitempty"`
	Signal syscall.Signal     `json:"signal,omitempty"`
}

const (
	reportStarted      = "started" // PID
	reportFailed       = "failed"  // Errno; the last
	reportExited       = "exited"  // Status, of the command
	reportSignal       = "signal"  // Signal, which the guard got
	reportLeft         = "left"    // Left, after the command
	reportTerminating  = "told"    // Why; the tree was told to end
	reportKilled       = "killed"  // for the first time
	reportUnkillable   = "stuck"   // Left, though killed
	reportPartlyHidden = "unseen"  // Why; only children can be found
	reportFinished     = "gone"    // nothing is left; Why, if the tree was ended; the last
)

// boottimeNow is the hand of the clock that reads the same in all processes of the machine.
func boottimeNow() time.Duration { return driver.SystemClock.Boottime() }

// runGuard is the guard's whole life. args are the descriptors of orders, reports and heirloom, or -1, and the command.
func runGuard(args []string) int {
	got := catchAllSignals()
	if len(args) < 5 {
		fmt.Fprintln(os.Stderr, guardName+" is started by holdfast run, and by nobody else")
		return exitUsage
	}
	var files [3]*os.File
	for i := range files {
		fd, err := strconv.Atoi(args[i])
		if err != nil {
			return exitUsage
		}
		if fd >= 0 {
			unix.CloseOnExec(fd) // none of them is the command's
			files[i] = os.NewFile(uintptr(fd), guardName)
		}
	}
	nameProcess(guardName)
	orders := json.NewDecoder(files[0])
	var first controlMessage
	if err := orders.Decode(&first); err != nil || first.Start == nil {
		return exitUnavailable // the wrapper is gone already
	}
	out := newAsyncWriter(files[1])
	told := reportSignals(got, out)
	code := superviseCommand(first.Start, orders, out, args[3], args[4:])
	signal.Stop(got)
	close(got)
	<-told
	out.close()
	_ = files[2].Close()
	return code
}

func superviseCommand(m *startMessage, orders *json.Decoder, out *asyncWriter, path string, argv []string) int {
	lease := newLeaseMirror(m.Lock, m.Until)
	if lease.Remaining() == 0 { // the wrapper was stopped meanwhile, and the lock may be somebody else's
		why := lossText(context.Cause(lease.ctx))
		out.sendMessage("%s is lost: %s; the command was not started", quoteName(m.Lock), why)
		out.sendReport(guardReport{Event: reportFinished, Why: why})
		return 0
	}
	t, err := startTree(path, argv, os.Environ(), true)
	if err != nil {
		failed := guardReport{Event: reportFailed, Why: rootCause(err)}
		errors.As(err, &failed.Errno)
		out.sendReport(failed)
		return exitCannotRun
	}
	// The command belongs to the session and the group that the wrapper is in, where the terminal and its shell expect it.
	// Only the guard leaves them.
	_, _ = unix.Setsid()
	out.sendReport(guardReport{Event: reportStarted, PID: t.command})
	wishes := make(chan signalRequest, 256)
	s := newSupervisor(t, lease, m.Policy, wishes, out.sendMessage, out.sendReport)
	go receiveControl(orders, lease, wishes)
	_, loss := s.run()
	last := guardReport{Event: reportFinished}
	if loss != nil {
		last.Why = lossText(loss)
	}
	out.sendReport(last)
	return 0
}

// catchAllSignals makes the guard deaf to all signals that can be caught. It does not ignore them, since the command would inherit
// that; SIGHUP and SIGINT that were ignored before stay so.
func catchAllSignals() chan os.Signal {
	ch := make(chan os.Signal, 16)
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if !uncaughtSignals[n] && !signal.Ignored(n) {
			signal.Notify(ch, n)
		}
	}
	return ch
}

// reportSignals tells the wrapper which signals the guard got, and closes the channel that it returns after the last.
func reportSignals(got <-chan os.Signal, out *asyncWriter) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sig := range got {
			if n, ok := sig.(syscall.Signal); ok {
				out.sendReport(guardReport{Event: reportSignal, Signal: n})
			}
		}
	}()
	return done
}

// receiveControl follows the wrapper until that is gone.
func receiveControl(orders *json.Decoder, lease *leaseMirror, wishes chan<- signalRequest) {
	for {
		var o controlMessage
		if err := orders.Decode(&o); err != nil {
			lease.markLost(errWrapperGone)
			return
		}
		switch {
		case o.Until > 0:
			lease.setExpiry(o.Until)
		case o.Lost != nil && o.Lost.Why != "":
			lease.markLost(&holdfast.LossError{Cause: o.Lost.Cause, Err: errors.New(o.Lost.Why)})
		case o.Lost != nil:
			lease.markLost(&holdfast.LossError{Cause: o.Lost.Cause})
		default:
			wishes <- signalRequest{signal: o.Signal, groupSignaled: o.GroupSignaled, kill: o.Kill}
		}
	}
}

// leaseMirror is the lease as the guard knows it.
type leaseMirror struct {
	lock   string
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	expiry driver.Instant
}

func newLeaseMirror(lock string, until time.Duration) *leaseMirror {
	b := &leaseMirror{lock: lock}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.setExpiry(until)
	return b
}

// setExpiry takes a moment on the hand that processes share, and from then on believes in neither hand alone.
func (b *leaseMirror) setExpiry(until time.Duration) {
	now := driver.SystemClock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expiry = now.Add(until - now.Boottime)
}

func (b *leaseMirror) markLost(cause error) { b.cancel(cause) }

func (b *leaseMirror) Name() string             { return b.lock }
func (b *leaseMirror) Context() context.Context { return b.ctx }

// Remaining is 0 for ever once it has been.
func (b *leaseMirror) Remaining() time.Duration {
	b.mu.Lock()
	left := -driver.SystemClock.Since(b.expiry)
	b.mu.Unlock()
	if left <= 0 {
		b.markLost(&holdfast.LossError{Cause: holdfast.LossExpired})
	}
	if b.ctx.Err() != nil {
		return 0
	}
	return left
}

// asyncWriter writes reports to the wrapper and messages to stderr without keeping anybody waiting: a stopped wrapper reads no
// reports, and a pager no messages.
type asyncWriter struct {
	reports, messages               chan string
	reportsWritten, messagesWritten <-chan struct{} // closed when all has been written
}

// How long the last words may take. Reports fit into the pipe whether or not the wrapper reads them, so only a machine that is too busy
// keeps them waiting; without the last of them the wrapper would believe that its guard was killed.
const (
	reportFlushTimeout  = 10 * time.Second
	messageFlushTimeout = time.Second
)

func newAsyncWriter(reports io.Writer) *asyncWriter {
	t := &asyncWriter{reports: make(chan string, 64), messages: make(chan string, 64)}
	t.reportsWritten, t.messagesWritten = writeLines(reports, t.reports), writeLines(os.Stderr, t.messages)
	return t
}

// writeLines writes lines until there are no more, and then closes the channel that it returns.
func writeLines(to io.Writer, lines <-chan string) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for line := range lines {
			_, _ = io.WriteString(to, line)
		}
	}()
	return done
}

func (t *asyncWriter) sendReport(r guardReport) {
	line, err := json.Marshal(r)
	if err != nil {
		return
	}
	trySend(t.reports, string(line)+"\n")
}

func (t *asyncWriter) sendMessage(format string, args ...any) {
	trySend(t.messages, formatMessage(format, args...))
}

func trySend(ch chan<- string, line string) {
	select {
	case ch <- line:
	default:
	}
}

// close waits for what has been said, for as long as that is worth it.
func (t *asyncWriter) close() {
	close(t.reports)
	close(t.messages)
	waitWithTimeout(t.reportsWritten, reportFlushTimeout)
	waitWithTimeout(t.messagesWritten, messageFlushTimeout)
}

func waitWithTimeout(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
