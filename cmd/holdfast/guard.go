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

// order is what the wrapper tells the guard. Exactly one part is set.
type order struct {
	Begin  *mission       `json:"begin,omitempty"` // the first
	Until  time.Duration  `json:"until,omitempty"` // until when the lease may be believed in, by the clock that processes share
	Lost   *lossOrder     `json:"lost,omitempty"`
	Signal syscall.Signal `json:"signal,omitempty"`
	Group  bool           `json:"group,omitempty"` // with Signal: the process group has had it
	Kill   bool           `json:"kill,omitempty"`
}

// mission is what the guard is there for.
type mission struct {
	Lock  string        `json:"lock"`
	Until time.Duration `json:"until"`
	Terms terms         `json:"terms"`
}

type lossOrder struct {
	Loss holdfast.LossCause `json:"loss"`
	Why  string             `json:"why,omitempty"`
}

// report is what the guard tells the wrapper.
type report struct {
	Event  string             `json:"event"`
	PID    int                `json:"pid,omitempty"`
	Errno  syscall.Errno      `json:"errno,omitempty"`
	Status syscall.WaitStatus `json:"status,omitempty"`
	Why    string             `json:"why,omitempty"`
	Left   []process          `json:"left,omitempty"`
	Signal syscall.Signal     `json:"signal,omitempty"`
}

const (
	reportStarted = "started" // PID
	reportFailed  = "failed"  // Errno; the last
	reportExited  = "exited"  // Status, of the command
	reportSignal  = "signal"  // Signal, which the guard got
	reportLeft    = "left"    // Left, after the command
	reportTold    = "told"    // Why; the tree was told to end
	reportKilled  = "killed"  // for the first time
	reportStuck   = "stuck"   // Left, though killed
	reportUnseen  = "unseen"  // Why; only children can be found
	reportGone    = "gone"    // nothing is left; Why, if the tree was ended; the last
)

// sharedNow is the hand of the clock that reads the same in all processes of the machine.
func sharedNow() time.Duration { return driver.SystemClock.Boottime() }

// runGuard is the guard's whole life. args are the descriptors of orders, reports and heirloom, or -1, and the command.
func runGuard(args []string) int {
	got := deafen()
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
	var first order
	if err := orders.Decode(&first); err != nil || first.Begin == nil {
		return exitUnavailable // the wrapper is gone already
	}
	out := newTeller(files[1])
	told := tellSignals(got, out)
	code := guardCommand(first.Begin, orders, out, args[3], args[4:])
	signal.Stop(got)
	close(got)
	<-told
	out.close()
	_ = files[2].Close()
	return code
}

func guardCommand(m *mission, orders *json.Decoder, out *teller, path string, argv []string) int {
	lease := newBelief(m.Lock, m.Until)
	if lease.Remaining() == 0 { // the wrapper was stopped meanwhile, and the lock may be somebody else's
		why := lossReason(context.Cause(lease.ctx))
		out.say("%s is lost: %s; the command was not started", shown(m.Lock), why)
		out.report(report{Event: reportGone, Why: why})
		return 0
	}
	t, err := startTree(path, argv, os.Environ(), true)
	if err != nil {
		failed := report{Event: reportFailed, Why: bareReason(err)}
		errors.As(err, &failed.Errno)
		out.report(failed)
		return exitCannotRun
	}
	// The command belongs to the session and the group that the wrapper is in, where the terminal and its shell expect it.
	// Only the guard leaves them.
	_, _ = unix.Setsid()
	out.report(report{Event: reportStarted, PID: t.command})
	wishes := make(chan wish, 256)
	s := newSupervisor(t, lease, m.Terms, wishes, out.say, out.report)
	go obey(orders, lease, wishes)
	_, loss := s.run()
	last := report{Event: reportGone}
	if loss != nil {
		last.Why = lossReason(loss)
	}
	out.report(last)
	return 0
}

// deafen makes the guard deaf to all signals that can be caught. It does not ignore them, since the command would inherit
// that; SIGHUP and SIGINT that were ignored before stay so.
func deafen() chan os.Signal {
	ch := make(chan os.Signal, 16)
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if !faults[n] && !signal.Ignored(n) {
			signal.Notify(ch, n)
		}
	}
	return ch
}

// tellSignals tells the wrapper which signals the guard got, and closes the channel that it returns after the last.
func tellSignals(got <-chan os.Signal, out *teller) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sig := range got {
			if n, ok := sig.(syscall.Signal); ok {
				out.report(report{Event: reportSignal, Signal: n})
			}
		}
	}()
	return done
}

// obey follows the wrapper until that is gone.
func obey(orders *json.Decoder, lease *belief, wishes chan<- wish) {
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			lease.end(errOrphaned)
			return
		}
		switch {
		case o.Until > 0:
			lease.renew(o.Until)
		case o.Lost != nil && o.Lost.Why != "":
			lease.end(&holdfast.LossError{Cause: o.Lost.Loss, Err: errors.New(o.Lost.Why)})
		case o.Lost != nil:
			lease.end(&holdfast.LossError{Cause: o.Lost.Loss})
		default:
			wishes <- wish{signal: o.Signal, group: o.Group, kill: o.Kill}
		}
	}
}

// belief is the lease as the guard knows it.
type belief struct {
	lock   string
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	until driver.Instant
}

func newBelief(lock string, until time.Duration) *belief {
	b := &belief{lock: lock}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.renew(until)
	return b
}

// renew takes a moment on the hand that processes share, and from then on believes in neither hand alone.
func (b *belief) renew(until time.Duration) {
	now := driver.SystemClock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = now.Add(until - now.Boottime)
}

func (b *belief) end(cause error) { b.cancel(cause) }

func (b *belief) Name() string             { return b.lock }
func (b *belief) Context() context.Context { return b.ctx }

// Remaining is 0 for ever once it has been.
func (b *belief) Remaining() time.Duration {
	b.mu.Lock()
	left := -driver.SystemClock.Since(b.until)
	b.mu.Unlock()
	if left <= 0 {
		b.end(&holdfast.LossError{Cause: holdfast.LossExpired})
	}
	if b.ctx.Err() != nil {
		return 0
	}
	return left
}

// teller writes reports to the wrapper and messages to stderr without keeping anybody waiting: a stopped wrapper reads no
// reports, and a pager no messages.
type teller struct {
	reports, messages chan string
	reported, said    <-chan struct{} // closed when all has been written
}

// How long the last words may take. Reports fit into the pipe whether or not the wrapper reads them, so only a machine that is too busy
// keeps them waiting; without the last of them the wrapper would believe that its guard was killed.
const (
	lastReports  = 10 * time.Second
	lastMessages = time.Second
)

func newTeller(reports io.Writer) *teller {
	t := &teller{reports: make(chan string, 64), messages: make(chan string, 64)}
	t.reported, t.said = writeLines(reports, t.reports), writeLines(os.Stderr, t.messages)
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

func (t *teller) report(r report) {
	line, err := json.Marshal(r)
	if err != nil {
		return
	}
	offer(t.reports, string(line)+"\n")
}

func (t *teller) say(format string, args ...any) { offer(t.messages, message(format, args...)) }

func offer(ch chan<- string, line string) {
	select {
	case ch <- line:
	default:
	}
}

// close waits for what has been said, for as long as that is worth it.
func (t *teller) close() {
	close(t.reports)
	close(t.messages)
	waitAtMost(t.reported, lastReports)
	waitAtMost(t.said, lastMessages)
}

func waitAtMost(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
