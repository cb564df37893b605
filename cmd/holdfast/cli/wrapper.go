package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
	"github.com/holdfast-go/holdfast/driver"
)

const (
	controlWriteTimeout = 100 * time.Millisecond // per message: the pipe is full only if the guard does not read
	startWriteTimeout   = 10 * time.Second       // for the first message, which must not be dropped
	earlySignalTimeout  = time.Second            // for a signal to arrive here that has killed the guard at its start
	escapeTimeout       = 5 * time.Second        // for processes that cannot be killed, once the lock is lost
	guardExitTimeout    = time.Second            // for the guard to end after its last report
	minCheckInterval    = 5 * time.Millisecond   // between two looks at the lease
	forever             = time.Hour              // between two looks when nothing is to be looked for

	// A Ctrl-C within secondCtrlCWindow of another one kills. One within sameCtrlCWindow is the same one: some programs
	// send a signal to a process and to its group, and mean one signal.
	secondCtrlCWindow = 5 * time.Second
	sameCtrlCWindow   = 200 * time.Millisecond

	// A command that ends sooner needs no listener. It would cost as much as the guard.
	listenerStartDelay = 50 * time.Millisecond

	groupSignalDelay  = 20 * time.Millisecond // between the first and the last process of a group to receive a signal
	guardSignalWindow = 5 * time.Second       // within which the guard received the same signal
)

// heldLease is what the wrapper needs of what it holds: the lease of a lock (*holdfast.Lease), or a run of a ledger's
// key (*holdfast.Run).
type heldLease interface {
	Remaining() time.Duration
	Progress() bool
	Context() context.Context // its cause says why the lease ended
}

// guardedCommand is the command that the guard is to start.
type guardedCommand struct {
	path   string
	argv   []string
	env    []string
	output *outputCopy // nil: the command gets the output of this program
}

// wrapper is this program while the command runs. It sends the guard what becomes of the lease, forwards signals, and
// takes over from a guard that died or does not act in time.
type wrapper struct {
	name             string // of the lock, or the key
	lease            heldLease
	lostEvent        holdfast.EventKind // what the file of --events calls a loss of the lease
	releaseRequested <-chan struct{}    // closed by a request; nil for once, and when it is answered
	onRequest        requestAction
	clock            driver.Clock
	ttl              time.Duration
	policy           guard.KillPolicy
	maxHoldEnd       time.Duration // when --max-hold ends, as guard.BoottimeNow counts; 0 without it
	watched          progressFlags
	progress         *progressWatch // nil without --progress
	signals          *signalQueue
	events           *eventFile

	program string      // the path of this program, for the listener
	tree    *guard.Tree // the guard, and if it dies all that it has left
	control *os.File
	reports chan guard.Report

	commandStarted bool
	sentExpiry     time.Duration   // the lease's expiry as the guard knows it
	lost           <-chan struct{} // nil once the loss was sent to the guard, or the guard has died
	reactBy        driver.Instant  // by when the guard must have acted on a loss
	terminating    bool            // the guard has asked the tree to end
	killing        bool            // the guard has begun to kill
	overdue        *guard.Loss     // what the guard had to act on when it was killed for being late; nil if it was not
	listener       atomic.Pointer[guard.Listener]
	unclassified   chan receivedSignal // signals of which it is not known yet whether the whole group received them
	classified     chan receivedSignal
	firstCtrlC     time.Time
	groupSignalAt  map[syscall.Signal]time.Time // when the group received it
	guardSignalAt  map[syscall.Signal]time.Time // when the guard received it, which is in another group
	escapeTimer    <-chan time.Time
	result         runResult
}

// receivedSignal is a signal that this program received.
type receivedSignal struct {
	signal        syscall.Signal
	receivedAt    time.Time
	beforeStart   bool // before the command was known to run
	groupSignaled bool // the whole group received it
}

// guardEndedError is the end of a guard that has reported no command. Probably it has started none.
type guardEndedError string

func (e guardEndedError) Error() string { return string(e) }

// guardStartError is the reason why no guard was started, and so certainly no command.
type guardStartError struct{ err error }

func (e *guardStartError) Error() string { return "start the guard: " + e.err.Error() }
func (e *guardStartError) Unwrap() error { return e.err }

// runResult is what became of a command.
type runResult struct {
	startError  error // the command could not be started
	status      syscall.WaitStatus
	loss        error           // why its tree was ended, if the lease was lost
	exited      bool            // it has ended, and status is known
	requested   bool            // it was ended because somebody asked for the lock
	escaped     []guard.Process // what cannot be ended; once the command has ended, what has not been
	earlySignal syscall.Signal  // received before the command ran
}

// nothingRan reports whether it is certain that the command was not started.
func (e *runResult) nothingRan() bool {
	return e.startError != nil && !errors.As(e.startError, new(guardEndedError))
}

// openLivenessFile opens the file that keeps the claims of this program alive until the guard has ended too, in a
// store that would otherwise end the claims of a killed program at once. It returns nil for other stores.
func openLivenessFile(store driver.Store) (*os.File, error) {
	f, err := store.LivenessFile()
	if errors.Is(err, holdfast.ErrUnsupported) {
		return nil, nil
	}
	return f, err
}

// superviseCommand starts the command under a guard. It returns when nothing of the command is left, or when nothing
// more can be done about what is left. store is the lease's.
func (w *wrapper) superviseCommand(store driver.Store, command guardedCommand) {
	var err error
	if w.progress, err = newProgressWatch(w.watched); err == nil {
		err = w.startGuard(store, command)
	}
	if err != nil {
		w.result.startError = &guardStartError{err}
		return
	}
	w.run()
}

// startGuard starts the guard, which starts the command.
func (w *wrapper) startGuard(store driver.Store, command guardedCommand) error {
	program, err := guard.OwnProgram()
	if err != nil {
		return err
	}
	controlRead, control, err1 := os.Pipe()
	reports, reportsWrite, err2 := os.Pipe()
	liveness, err3 := openLivenessFile(store)
	stdout, stderr := command.output.writeEnds()
	defer guard.CloseAll(controlRead, reportsWrite, liveness, stdout, stderr)
	if err := errors.Join(err1, err2, err3); err != nil {
		guard.CloseAll(control, reports)
		return err
	}
	defer w.progress.closeWrite()
	if command.env, err = w.progress.passTo(command.env); err != nil {
		return err
	}
	argv := []string{guard.Name}
	for _, f := range []*os.File{controlRead, reportsWrite, liveness, stdout, stderr} {
		number, err := guard.PassOn(f)
		if err != nil {
			return err
		}
		argv = append(argv, strconv.Itoa(number))
	}
	argv = append(append(argv, command.path), command.argv...)
	w.policy.LossNote = storeNote("")
	t, err := guard.StartTree(program, argv, command.env, guard.OwnFiles(), false)
	if err != nil {
		guard.CloseAll(control, reports)
		return err
	}
	w.program, w.tree, w.control = program, t, control
	w.sentExpiry = w.leaseExpiry()
	w.reports = make(chan guard.Report, 16)
	w.groupSignalAt, w.guardSignalAt = map[syscall.Signal]time.Time{}, map[syscall.Signal]time.Time{}
	go w.readReports(reports)
	start := &guard.StartMessage{Lock: w.name, Until: w.sentExpiry, EndsBy: w.endsBy(w.sentExpiry), Policy: w.policy}
	// The pipe is empty and has room for this, so only a guard that is stopped can make it fail. Then nothing was
	// started.
	if err := w.writeControl(guard.ControlMessage{Start: start}, startWriteTimeout); err != nil {
		return errors.New("its guard could not be reached to start it")
	}
	return nil
}

// readReports passes on the guard's reports until the guard ends.
func (w *wrapper) readReports(from *os.File) {
	defer close(w.reports)
	defer from.Close()
	for d := json.NewDecoder(bufio.NewReader(from)); ; {
		var r guard.Report
		if d.Decode(&r) != nil {
			return
		}
		w.reports <- r
	}
}

// sendControl sends the guard a message. It reports no error: a guard that does not read is found by what it does not
// do.
func (w *wrapper) sendControl(m guard.ControlMessage) { _ = w.writeControl(m, controlWriteTimeout) }

// writeControl writes a message to the guard. It waits for the timeout at most, if the pipe is full.
func (w *wrapper) writeControl(m guard.ControlMessage, timeout time.Duration) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return writeWithin(w.control, append(line, '\n'), timeout)
}

// leaseExpiry is when the lease expires, as guard.BoottimeNow counts. It reads the clock before it asks the lease, so
// that the result can only be too early.
func (w *wrapper) leaseExpiry() time.Duration {
	now := guard.BoottimeNow()
	return now + w.lease.Remaining()
}

// run returns when nothing of the command is left, or when nothing more can be done about what is left.
func (w *wrapper) run() {
	w.signals.forwardStops()
	w.lost = w.lease.Context().Done()
	w.unclassified, w.classified = make(chan receivedSignal, 256), make(chan receivedSignal, 256)
	defer close(w.unclassified)
	go w.classifySignals()
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer w.progress.start(func() { w.lease.Progress() })()
	listenerDue := time.NewTimer(listenerStartDelay)
	defer listenerDue.Stop()
	for {
		select {
		case <-listenerDue.C:
			w.listener.Store(w.tree.StartListener(w.program))
			releaseStartPages()
		case sig := <-w.signals.ch:
			w.recordSignal(sig.(syscall.Signal))
		case s := <-w.classified:
			w.forwardSignal(s)
		case r, ok := <-w.reports:
			if !ok {
				w.takeOverTree()
				return
			}
			if w.handleReport(r) {
				return
			}
		case <-w.lost:
			w.sendLoss()
		case <-w.releaseRequested:
			w.releaseRequested = nil
			if m, ok := w.onRequest.controlMessage(); ok {
				w.sendControl(m)
			}
		case <-w.escapeTimer:
			return
		case <-w.progress.changes(): // checkLease tells the guard
		case <-timer.C:
		}
		timer.Reset(w.checkLease())
	}
}

// closeGuard lets the guard end, which has nothing more to do, and waits for it.
func (w *wrapper) closeGuard() {
	if w.tree == nil {
		return
	}
	_ = w.control.Close()
	select {
	case <-w.tree.Exited:
	case <-w.tree.Gone: // the guard's exit was seen before
	case <-time.After(guardExitTimeout):
	}
}

// checkLease sends the guard the lease's new expiry after a renewal. It returns when to call it again.
func (w *wrapper) checkLease() time.Duration {
	left := w.lease.Remaining()
	if w.lost != nil && w.lease.Context().Err() != nil {
		w.sendLoss() // before the guard is judged by a time that it does not know
	}
	if w.lost == nil {
		return w.checkReaction()
	}
	if expiry := w.leaseExpiry(); expiry > w.sentExpiry+time.Millisecond {
		w.sentExpiry = expiry
		w.sendControl(guard.ControlMessage{Until: expiry, EndsBy: w.endsBy(expiry)})
	}
	if left < w.policy.Grace/2 && !w.terminating { // the guard should have asked the tree to end at Grace
		w.overdue = w.comingLoss()
		w.killGuard()
		return forever
	}
	soon := max(w.ttl/50, minCheckInterval)
	// The next renewal is due when a third of the TTL has passed.
	if due := left - (w.ttl - w.ttl/3 - driver.Margin(w.ttl)); due > soon {
		return due
	}
	return soon
}

// endsBy is why the lease ends if it does so at that time, as guard.BoottimeNow counts: the code of a loss.
func (w *wrapper) endsBy(expiry time.Duration) string {
	switch {
	case w.maxHoldEnd > 0 && expiry >= w.maxHoldEnd-w.policy.CheckInterval:
		return guard.CodeMaxHold
	case w.progress.endsAt(expiry, w.policy.CheckInterval):
		return guard.CodeNoProgress
	}
	return guard.CodeExpired
}

// comingLoss is why the lease is about to end. Nobody else can have it before it does.
func (w *wrapper) comingLoss() *guard.Loss {
	cause := holdfast.LossCause(w.endsBy(w.sentExpiry))
	return &guard.Loss{Code: string(cause), Why: cause.Description(), StaysHeld: true}
}

// sendLoss sends the guard the loss of the lease and its cause, and sets the time by which the guard must act on it.
func (w *wrapper) sendLoss() {
	w.lost = nil
	cause := context.Cause(w.lease.Context())
	lost := w.describeLoss(cause)
	w.events.addEvent(w.lostEvent, causeFields(cause))
	w.sendControl(guard.ControlMessage{Lost: lost})
	grace := time.Duration(0)
	if lost.StaysHeld { // nobody else can have the lock yet, so the guard may be late
		grace = max(0, min(w.policy.Grace*3/2, w.sentExpiry-guard.BoottimeNow()))
	}
	w.reactBy = w.clock.Now().Add(grace + driver.Margin(w.ttl)/2)
	if len(w.result.escaped) > 0 { // it was to be killed before the loss, and that is not reported again
		w.result.loss, w.escapeTimer = lost, time.After(escapeTimeout)
	}
}

// describeLoss is the loss of a lease as the guard knows it.
func (w *wrapper) describeLoss(cause error) *guard.Loss {
	lost := &guard.Loss{Code: string(lossCode(cause)), Why: lossText(cause)}
	if name := lockOf(cause, w.name); name != w.name && !strings.HasSuffix(name, "/"+w.name) { // so is that of a run
		lost.Why = text.QuoteName(name) + ", which is held with it, is lost: " + lost.Why
	}
	if loss := (*holdfast.LossError)(nil); errors.As(cause, &loss) {
		lost.StaysHeld = loss.StaysHeld
	}
	return lost
}

// checkReaction kills a guard that has not acted on a loss in time.
func (w *wrapper) checkReaction() time.Duration {
	late := w.clock.Since(w.reactBy)
	switch {
	case w.killing:
		return forever
	case late < 0:
		return max(-late, minCheckInterval)
	}
	w.killGuard()
	return forever
}

// killGuard kills a guard that does not act, because it is stopped for instance. The reports then end, and run calls
// takeOverTree.
func (w *wrapper) killGuard() {
	w.killing, w.terminating = true, true
	w.tree.SignalCommand(syscall.SIGKILL)
}

// handleReport notes what the guard reports, and returns whether it was the last report.
func (w *wrapper) handleReport(r guard.Report) (last bool) {
	switch r.Event {
	case guard.ReportStarted:
		w.commandStarted = true
		w.tree.AddGuardedCommand(r.PID)
		w.events.addEvent(eventCommandStarted, fields{"pid": r.PID})
	case guard.ReportFailed:
		w.result.startError = r.Errno
		if r.Errno == 0 {
			w.result.startError = errors.New(r.Why)
		}
		return true
	case guard.ReportExited:
		w.recordExit(r.Status)
	case guard.ReportSignal:
		w.guardSignalAt[r.Signal] = time.Now()
	case guard.ReportLeft:
		w.events.addEvent(eventProcessesLeft, fields{"processes": r.Left})
	case guard.ReportTerminating:
		w.terminating = true
		w.noteEnd(r)
		terminating := causeFields(&guard.Loss{Code: r.Code, Why: r.Why})
		terminating["signal"] = signalName(w.policy.Signal)
		w.events.addEvent(eventCommandTerminating, terminating)
	case guard.ReportKilled:
		w.killing, w.terminating = true, true
		w.events.addEvent(eventCommandKilled, nil)
	case guard.ReportBeside:
		if r.Why != "" {
			w.events.addEvent(eventScriptFailed, fields{"message": r.Why})
		} else {
			w.events.addEvent(eventScriptStarted, fields{"pid": r.PID})
		}
	case guard.ReportPartlyHidden:
		w.events.addEvent(eventProcessesHidden, fields{"message": r.Why})
	case guard.ReportUnkillable:
		w.recordUnkillable(r.Left)
	case guard.ReportFinished:
		if !w.result.exited && (w.commandStarted || r.Why == "") { // in a flood of reports that one was dropped
			w.recordExit(r.Status)
		}
		if w.result.escaped = nil; r.Why != "" {
			w.noteEnd(r)
		}
		return true
	}
	return false
}

// noteEnd notes why the guard ends the tree: because of a loss, or without one. A request does not change the exit code
// of a command that had ended before: its work is done, and only what it has left is ended.
func (w *wrapper) noteEnd(r guard.Report) {
	if r.Code == guard.CodeReleaseRequested {
		w.result.requested = w.result.requested || !w.result.exited
		return
	}
	w.result.loss = &guard.Loss{Code: r.Code, Why: r.Why}
}

// recordExit notes how the command itself ended. Its descendants may still run.
func (w *wrapper) recordExit(status syscall.WaitStatus) {
	w.result.status, w.result.exited = status, true
	if status.Signaled() {
		w.events.addFields(fields{"command_signal": signalName(status.Signal())})
	} else {
		w.events.addFields(fields{"command_exit_code": status.ExitStatus()})
	}
	w.events.addEvent(eventCommandExited, nil)
}

// recordUnkillable notes processes that cannot be killed. Once the lease is lost it makes no sense to wait for them for
// long; until then they keep the lock.
func (w *wrapper) recordUnkillable(left []guard.Process) {
	w.events.addEvent(eventProcessesUnkilled, fields{"processes": left})
	w.result.escaped = left
	if w.lost == nil {
		w.escapeTimer = time.After(escapeTimeout)
	}
}

// takeOverTree ends what is left by a guard that ended before its tree, and waits for it. Usually the lease is still
// valid, so that processes that were not killed along with the guard have time to clean up.
func (w *wrapper) takeOverTree() {
	w.listener.Load().ClosePipes()
	w.tree.KillListener() // so that this program has no children but those that the guard left
	ended := "its guard closed its reports"
	select { // once the guard has been reaped, its children are this program's
	case status := <-w.tree.Exited:
		if ended = "its guard was killed by " + signalName(status.Signal()); !status.Signaled() {
			ended = "its guard ended with status " + strconv.Itoa(status.ExitStatus())
		}
	case <-time.After(guardExitTimeout):
	}
	// A guard may die after it has started the command and before it could report that.
	if !w.commandStarted && w.nothingIsLeft() {
		if w.result.startError = guardEndedError(ended); w.result.earlySignal == 0 {
			w.awaitEarlySignal()
		}
		return
	}
	w.events.addEvent(eventGuardGone, nil)
	why := guard.ErrGuardGone
	switch { // this run is lost either way
	case w.lease.Context().Err() != nil: // the guard has not acted on it
		why = w.describeLoss(context.Cause(w.lease.Context()))
	case w.overdue != nil:
		why = w.overdue
	}
	w.lost = nil
	reports, done := make(chan guard.Report, 16), make(chan error, 1)
	s := guard.NewSuccessor(w.tree, w.name, w.sentExpiry, w.policy, why, w.result.loss,
		func(r guard.Report) { reports <- r })
	go func() { done <- s.Run() }()
	for {
		select {
		case r := <-reports:
			w.handleReport(r)
		case <-w.escapeTimer:
			return
		case loss := <-done:
			s.Close()
			// The kernel may have killed the command with its guard, before anybody could say why.
			if loss == nil && w.result.loss == nil {
				printWhileHeld("%s is lost: %s; its command has ended%s", text.QuoteName(w.name), why, w.policy.LossNote)
			}
			// Possibly nothing was left to end; but how the command ended is not known, so this run is lost.
			w.result.escaped, w.result.loss = nil, cmp.Or(loss, error(why))
			return
		}
	}
}

// nothingIsLeft reports whether a guard that has ended has left nothing, which only the kernel knows. If that takes
// long, something is left.
func (w *wrapper) nothingIsLeft() bool {
	if len(w.tree.ListRunning()) > 0 {
		return false
	}
	select {
	case <-w.tree.Gone:
		return true
	case <-time.After(guardExitTimeout):
		return false
	}
}

// awaitEarlySignal finds out whether a signal killed the guard before it was ready to catch it: one to the whole group,
// which this program receives too.
func (w *wrapper) awaitEarlySignal() {
	select {
	case sig := <-w.signals.ch:
		w.recordSignal(sig.(syscall.Signal))
	case <-time.After(earlySignalTimeout):
	}
}

// recordSignal notes a signal that this program received, and lets it be classified. In a flood of signals some are
// dropped: classifySignals may be waiting for the caller to read.
func (w *wrapper) recordSignal(sig syscall.Signal) {
	if !w.commandStarted && !harmlessSignals[sig] {
		w.result.earlySignal = sig
	}
	w.events.addEvent(eventSignalReceived, fields{"signal": signalName(sig)})
	select {
	case w.unclassified <- receivedSignal{signal: sig, receivedAt: time.Now(), beforeStart: !w.commandStarted}:
	default:
	}
}

// classifySignals finds out of each signal whether the whole group received it, as soon as the rest of the group must
// have. It runs in a goroutine of its own and delays nothing but the signals.
func (w *wrapper) classifySignals() {
	defer func() { w.listener.Load().ClosePipes() }()
	for s := range w.unclassified {
		time.Sleep(groupSignalDelay - time.Since(s.receivedAt))
		known := false
		if s.groupSignaled, known = w.listener.Load().GroupHadSignal(s.signal); !known {
			s.groupSignaled = isTerminalSignal(s.signal)
		}
		w.classified <- s
	}
}

// forwardSignal forwards a signal to the command, by way of the guard, unless the command has received it with the
// rest of the group. A second Ctrl-C soon after the first one kills.
//
// SIGCONT is always forwarded: the guard may be late with a SIGTSTP that was sent before it, and stop the command after
// the group has continued it. A second SIGCONT does no harm.
func (w *wrapper) forwardSignal(s receivedSignal) {
	sig := s.signal
	// Even if the listener is late: a user who types Ctrl-C twice wants the command to end.
	terminal := isTerminalSignal(sig)
	s.groupSignaled = s.groupSignaled && !s.beforeStart && (terminal || !w.sentToOurProcesses(sig))
	if s.groupSignaled {
		w.groupSignalAt[sig] = s.receivedAt
	} else if s.receivedAt.Sub(w.groupSignalAt[sig]) < sameCtrlCWindow { // it was sent to this program as well
		s.groupSignaled = true
	}
	m := guard.ControlMessage{Signal: sig, GroupSignaled: s.groupSignaled && sig != system.SIGCONT}
	if sig == syscall.SIGINT && terminal && w.noteCtrlC(s.receivedAt) {
		m = guard.ControlMessage{Kill: true}
	}
	w.sendControl(m)
	if sig == system.SIGTSTP {
		stopMyself()
	}
}

// sentToOurProcesses reports whether a signal was sent to each process of this program, by the name of its file, rather
// than to the group: then the guard received it too, which is in another group. systemd signals all processes of a unit
// that way, but those include the command.
func (w *wrapper) sentToOurProcesses(sig syscall.Signal) bool {
	at, both := w.guardSignalAt[sig]
	return both && time.Since(at) < guardSignalWindow && !isSystemd(os.Getppid())
}

// noteCtrlC notes a Ctrl-C, and reports whether it follows another one, and is not the same one received twice.
func (w *wrapper) noteCtrlC(at time.Time) bool {
	gap := at.Sub(w.firstCtrlC)
	if w.firstCtrlC.IsZero() || gap >= secondCtrlCWindow {
		w.firstCtrlC = at
		return false
	}
	return gap >= sameCtrlCWindow
}
