package guard

import (
	"cmp"
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

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
	"github.com/holdfast-go/holdfast/driver/clock"
)

// The guard is a process between the wrapper and the command. It knows the lease's expiry and ends the command's tree
// in time, even if the wrapper is stopped, killed, or stuck in a call to the store. So it asks the wrapper for
// nothing, waits for no write, and keeps the file open that keeps the wrapper's claim alive (driver.Store.LivenessFile)
// until the last process of the tree has ended. It shares no process group and no session with the wrapper, so that a
// signal to those does not reach it.

// Name is the guard's name in process lists. A process of this binary that was started under it is a guard. Like
// ListenerName it does not contain this program's name: "pkill -9 holdfast" must not kill the guard along with the
// wrapper, because nobody would be left to end what the command has started.
const Name = "lock-guard"

// runGuard is the guard's whole life. args are the numbers of five descriptors (control, reports, liveness file, the
// command's output and error output; -1 for none), the path of the command, and its argv. It returns the exit code.
func runGuard(args []string) int {
	received := catchAllSignals()
	var files [5]*os.File
	if len(args) < len(files)+2 {
		fmt.Fprintln(os.Stderr, Name+" is started only by holdfast run")
		return exitUsage
	}
	for i := range files {
		fd, err := strconv.Atoi(args[i])
		if err != nil {
			return exitUsage
		}
		if fd >= 0 {
			keepToItself(fd) // the command must not inherit any of them
			files[i] = os.NewFile(uintptr(fd), Name)
		}
	}
	NameProcess(Name)
	control := json.NewDecoder(files[0])
	var first ControlMessage
	if err := control.Decode(&first); err != nil || first.Start == nil {
		return exitUnavailable // the wrapper has ended
	}
	out := newAsyncWriter(files[1])
	stopReporting := reportSignals(received, out)
	c := command{path: args[len(files)], argv: args[len(files)+1:], env: os.Environ()}
	code := superviseCommand(first.Start, control, out, c, files[3:])
	// All signals stay caught until this process exits. One that ended it now, or the SIGPIPE of a message to a
	// stderr that nobody reads, would keep the last report from the wrapper, which would take the guard for killed
	// and the lock for lost.
	stopReporting()
	out.close()
	_ = files[2].Close()
	return code
}

// command is the command that the guard starts.
type command struct {
	path      string
	argv, env []string
}

// superviseCommand starts the command and returns when the last process of its tree has ended. output are the files of
// its output and its error output, which are nil if the command gets those of this process.
func superviseCommand(
	m *StartMessage, control *json.Decoder, out *asyncWriter, c command, output []*os.File,
) int {
	lease := newLeaseMirror(m.Lock, m.Until, m.EndsBy)
	if lease.Remaining() == 0 { // the wrapper was stopped meanwhile, and somebody else may hold the lock
		why := context.Cause(lease.ctx)
		out.sendMessage("%s is lost: %s; the command was not started%s", text.QuoteName(m.Lock), why, m.Policy.LossNote)
		out.sendLastReport(newReport(ReportFinished, why))
		return 0
	}
	files := OwnFiles()
	for i, f := range output {
		if f != nil {
			files[i+1] = f.Fd()
		}
	}
	t, err := StartTree(c.path, c.argv, c.env, files, true)
	CloseAll(output...)
	if err != nil {
		failed := Report{Event: ReportFailed, Why: err.Error()}
		errors.As(err, &failed.Errno)
		out.sendLastReport(failed)
		return exitCannotRun
	}
	// The command stays in the wrapper's session and group, where the terminal and its shell expect it. Only the guard
	// leaves them, and only now, because a child starts in its parent's.
	leaveSession()
	out.sendReport(Report{Event: ReportStarted, PID: t.command})
	requests := make(chan treeRequest, 256)
	s := newSupervisor(t, lease, m.Policy, requests, out.sendMessage, out.sendReport)
	go receiveControl(control, lease, requests)
	status, loss := s.run()
	last := newReport(ReportFinished, loss)
	last.Status = status
	out.sendLastReport(last)
	return 0
}

// catchAllSignals makes the guard survive all signals that can be caught. It does not ignore them, because the command
// would inherit that. SIGHUP and SIGINT that were ignored before stay ignored.
func catchAllSignals() chan os.Signal {
	ch := make(chan os.Signal, 16)
	for n := syscall.Signal(1); n <= LastSignal; n++ {
		if !UncaughtSignals[n] && !signal.Ignored(n) {
			signal.Notify(ch, n)
		}
	}
	return ch
}

// reportSignals reports to the wrapper which signals the guard received, until stop has returned.
func reportSignals(received <-chan os.Signal, out *asyncWriter) (stop func()) {
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case sig := <-received:
				if n, ok := sig.(syscall.Signal); ok {
					out.sendReport(Report{Event: ReportSignal, Signal: n})
				}
			case <-quit:
				return
			}
		}
	})
	return func() {
		close(quit)
		done.Wait()
	}
}

// receiveControl carries out the wrapper's messages until the wrapper ends.
func receiveControl(control *json.Decoder, lease *leaseMirror, requests chan<- treeRequest) {
	for {
		var m ControlMessage
		if err := control.Decode(&m); err != nil {
			lease.markLost(ErrWrapperGone)
			return
		}
		switch {
		case m.Until > 0:
			lease.setExpiry(m.Until, m.EndsBy)
		case m.Lost != nil:
			lease.markLost(m.Lost)
		default:
			requests <- treeRequest{signal: m.Signal, groupSignaled: m.GroupSignaled, kill: m.Kill, end: m.End,
				beside: m.Beside}
		}
	}
}

// leaseMirror is the wrapper's lease as the guard knows it: its expiry and the reason for that, and whether it is lost.
type leaseMirror struct {
	lock   string
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	expiry clock.Instant
	endsBy string
}

// newLeaseMirror makes a lease that expires at until, as BoottimeNow counts. endsBy is why.
func newLeaseMirror(lock string, until time.Duration, endsBy string) *leaseMirror {
	l := &leaseMirror{lock: lock}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.setExpiry(until, endsBy)
	return l
}

// setExpiry takes an expiry on the clock that processes share, and turns it into an instant of both clocks of this
// process, so that Remaining trusts neither clock alone.
func (l *leaseMirror) setExpiry(until time.Duration, endsBy string) {
	now := clock.System.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiry, l.endsBy = now.Add(until-now.Boottime), endsBy
}

// EndsBy is why the lease ends if nothing changes: the code of a Loss.
func (l *leaseMirror) EndsBy() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.endsBy, CodeExpired)
}

// markLost ends the lease. Only the first cause counts.
func (l *leaseMirror) markLost(cause error) { l.cancel(cause) }

func (l *leaseMirror) Name() string             { return l.lock }
func (l *leaseMirror) Context() context.Context { return l.ctx }

// Remaining is how long the lease is valid. Once it has returned 0 it always does.
func (l *leaseMirror) Remaining() time.Duration {
	l.mu.Lock()
	left := -clock.System.Since(l.expiry)
	l.mu.Unlock()
	if left <= 0 {
		l.markLost(newExpiry(l.EndsBy()))
	}
	if l.ctx.Err() != nil {
		return 0
	}
	return left
}

// asyncWriter writes reports to the wrapper and messages to stderr without making the caller wait: a wrapper that is
// stopped reads no reports, and a pager may read no messages.
type asyncWriter struct {
	reports, messages               chan string
	reportsWritten, messagesWritten <-chan struct{} // closed when all has been written
}

// How long the last writes may take. Reports fit into the pipe whether or not the wrapper reads them, so only a machine
// that is too busy delays them. Without the last of them the wrapper would take the guard for killed.
const (
	reportFlushTimeout  = 10 * time.Second
	messageFlushTimeout = time.Second
)

// newAsyncWriter starts the two goroutines that write, one each, so that a full stderr does not delay reports.
func newAsyncWriter(reports io.Writer) *asyncWriter {
	a := &asyncWriter{reports: make(chan string, 64), messages: make(chan string, 64)}
	a.reportsWritten, a.messagesWritten = writeLines(reports, a.reports), writeLines(os.Stderr, a.messages)
	return a
}

// writeLines writes lines in the background until the channel is closed. It closes the channel that it returns after
// that.
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

// sendReport queues a report. It drops the report if the queue is full, so that the caller never waits.
func (a *asyncWriter) sendReport(r Report) {
	if line, err := json.Marshal(r); err == nil {
		trySend(a.reports, string(line)+"\n")
	}
}

// sendLastReport queues the last report. When it is called nothing has to be done in time any more, so it may wait
// until the queue has room: without this report the wrapper would take the guard for killed.
func (a *asyncWriter) sendLastReport(r Report) {
	line, err := json.Marshal(r)
	if err != nil {
		return
	}
	timer := time.NewTimer(reportFlushTimeout)
	defer timer.Stop()
	select {
	case a.reports <- string(line) + "\n":
	case <-timer.C:
	}
}

// sendMessage queues a message for stderr, or drops it if the queue is full.
func (a *asyncWriter) sendMessage(format string, args ...any) {
	trySend(a.messages, text.StderrMessage(format, args...))
}

func trySend(ch chan<- string, line string) {
	select {
	case ch <- line:
	default:
	}
}

// close waits until everything has been written, but not longer than the timeouts.
func (a *asyncWriter) close() {
	close(a.reports)
	close(a.messages)
	WaitWithTimeout(a.reportsWritten, reportFlushTimeout)
	WaitWithTimeout(a.messagesWritten, messageFlushTimeout)
}

// WaitWithTimeout waits until the channel is closed, for d at most.
func WaitWithTimeout(done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// CloseAll closes those of the files that are not nil.
func CloseAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
