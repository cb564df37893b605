package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

const (
	controlWriteTimeout = 100 * time.Millisecond // for one order: the pipe is full only if the guard does not read
	escapeTimeout       = 5 * time.Second        // how long the wrapper waits for what cannot be killed, once the lock is lost
	secondCtrlCWindow   = 5 * time.Second        // a Ctrl-C so soon after another one kills
	sameCtrlCWindow     = 200 * time.Millisecond // but not so soon: who sends one signal twice, to a process and to its group, means one
	groupSignalDelay    = 20 * time.Millisecond  // between the first and the last process of a group to get a signal
	guardSignalWindow   = 5 * time.Second        // within which the guard got the same signal
	guardExitTimeout    = time.Second            // for the guard to end after its last word
	minCheckInterval    = 5 * time.Millisecond   //
)

// wrapper is the wrapper while the command runs. It tells the guard what becomes of the lease, hands signals on, and steps
// in for a guard that died or does not act in time.
type wrapper struct {
	lease   *holdfast.Lease
	clock   driver.Clock
	ttl     time.Duration
	policy  killPolicy
	signals *signalQueue
	record  *runRecord

	tree    *tree // the guard, and all that is left if it dies
	control *os.File
	reports chan guardReport

	commandStarted bool            // the command
	sentExpiry     time.Duration   // as the guard knows it
	lost           <-chan struct{} // nil once the guard has been told
	reactBy        driver.Instant  // when a loss must have been acted upon
	terminating    bool            // the guard has told the tree to end
	killing        bool            // the guard has begun to kill
	listener       *signalListener
	unclassified   chan receivedSignal // signals of which it is not known yet how they were sent
	classified     chan receivedSignal
	firstCtrlC     time.Time
	groupSignalAt  map[syscall.Signal]time.Time // the group with this program
	guardSignalAt  map[syscall.Signal]time.Time // the guard, which is in another group
	escapeTimer    <-chan time.Time
	result         runResult
}

// receivedSignal is a signal that this program got.
type receivedSignal struct {
	signal        syscall.Signal
	receivedAt    time.Time
	beforeStart   bool // before the command was known to run
	groupSignaled bool // the whole group had it
}

// runResult is what became of a command.
type runResult struct {
	startError  error // it could not be started
	status      syscall.WaitStatus
	loss        error          // why its tree was ended
	escaped     []process      // what could not be ended
	earlySignal syscall.Signal // that came before the command was there
}

// openLivenessFile opens a file that keeps the lock held until the guard has ended as well, where the store would otherwise
// end the claims of a killed program at once; nil where it does not.
func openLivenessFile(store driver.Store) (*os.File, error) {
	filer, ok := store.(driver.LivenessFiler)
	if !ok {
		return nil, nil
	}
	f, err := filer.LivenessFile()
	if errors.Is(err, holdfast.ErrUnsupported) {
		return nil, nil
	}
	return f, err
}

// startGuard starts the guard, which starts the command. hold is how long the lease lasts at most, 0 if it has no bound.
func (k *wrapper) startGuard(store driver.Store, hold time.Duration, path string, argv, env []string) error {
	program, err := ownProgram()
	if err != nil {
		return err
	}
	k.listener = startListener(program) // first, so that it gets none of the guard's descriptors
	ordersIn, orders, err1 := os.Pipe()
	reports, reportsOut, err2 := os.Pipe()
	liveness, err3 := openLivenessFile(store)
	defer closeAll(ordersIn, reportsOut, liveness)
	if err := errors.Join(err1, err2, err3); err != nil {
		closeAll(orders, reports)
		return err
	}
	guard := []string{guardName}
	for _, f := range []*os.File{ordersIn, reportsOut, liveness} {
		number, err := passToGuard(f)
		if err != nil {
			return err
		}
		guard = append(guard, strconv.Itoa(number))
	}
	t, err := startTree(program, append(append(guard, path), argv...), env, false)
	if err != nil {
		closeAll(orders, reports)
		return err
	}
	k.tree, k.control = t, orders
	k.sentExpiry = k.leaseExpiry()
	if hold > 0 {
		k.policy.MaxHoldEnd = boottimeNow() + hold
	}
	k.reports = make(chan guardReport, 16)
	k.groupSignalAt, k.guardSignalAt = map[syscall.Signal]time.Time{}, map[syscall.Signal]time.Time{}
	k.sendControl(controlMessage{Start: &startMessage{Lock: k.lease.Name(), Until: k.sentExpiry, Policy: k.policy}})
	go k.readReports(reports)
	return nil
}

// passToGuard makes a descriptor go on to the guard, under its own number: those that this program was given are the
// command's, under theirs. Nothing else is started here that it could go on to.
func passToGuard(f *os.File) (int, error) {
	if f == nil {
		return -1, nil
	}
	fd := int(f.Fd())
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	return fd, err
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// readReports passes on what the guard reports until the guard is gone.
func (k *wrapper) readReports(from *os.File) {
	defer close(k.reports)
	defer from.Close()
	for d := json.NewDecoder(bufio.NewReader(from)); ; {
		var r guardReport
		if d.Decode(&r) != nil {
			return
		}
		k.reports <- r
	}
}

// sendControl gives the guard an order. A guard that reads none is found out by what it does not do.
func (k *wrapper) sendControl(o controlMessage) {
	line, err := json.Marshal(o)
	if err != nil {
		return
	}
	for range 2 { // this program may have been stopped between the two calls, so that nothing was tried
		_ = k.control.SetWriteDeadline(time.Now().Add(controlWriteTimeout))
		if n, err := k.control.Write(append(line, '\n')); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// leaseExpiry reads the clock before it asks the lease, so that it can only be too early.
func (k *wrapper) leaseExpiry() time.Duration {
	now := boottimeNow()
	return now + k.lease.Remaining()
}

// run returns when nothing of the command is left, or nothing more can be done about what is.
func (k *wrapper) run() {
	k.signals.forwardStops()
	k.lost = k.lease.Context().Done()
	k.unclassified, k.classified = make(chan receivedSignal, 256), make(chan receivedSignal, 256)
	defer close(k.unclassified)
	go k.classifySignals()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case sig := <-k.signals.ch:
			k.unclassified <- k.recordSignal(sig.(syscall.Signal))
		case c := <-k.classified:
			k.forwardSignal(c)
		case r, ok := <-k.reports:
			if !ok {
				k.takeOverTree()
				return
			}
			if k.handleReport(r) {
				return
			}
		case <-k.lost:
			k.sendLoss()
		case <-k.escapeTimer:
			return
		case <-timer.C:
		}
		timer.Reset(k.checkLease())
	}
}

// closeGuard waits for the guard's end, which has nothing more to do.
func (k *wrapper) closeGuard() {
	if k.tree == nil {
		return
	}
	_ = k.control.Close()
	select {
	case <-k.tree.gone:
	case <-time.After(guardExitTimeout):
	}
}

// checkLease passes renewals on, and returns when the next is to be expected.
func (k *wrapper) checkLease() time.Duration {
	left := k.lease.Remaining()
	if k.lost != nil && k.lease.Context().Err() != nil {
		k.sendLoss() // before the guard is judged by what is left, which it has not heard of
	}
	if k.lost == nil {
		return k.checkReaction()
	}
	if until := k.leaseExpiry(); until > k.sentExpiry+time.Millisecond {
		k.sentExpiry = until
		k.sendControl(controlMessage{Until: until})
	}
	if left < k.policy.Grace/2 && !k.terminating { // it should have told the tree to end when all of the grace was left
		k.killGuard()
		return forever
	}
	soon := max(k.ttl/50, minCheckInterval)
	// A renewal is due when a third of the TTL has gone by.
	if due := left - (k.ttl - k.ttl/3 - driver.Margin(k.ttl)); due > soon {
		return due
	}
	return soon
}

// sendLoss tells the guard that the lease is lost, and why.
func (k *wrapper) sendLoss() {
	k.lost = nil
	cause := context.Cause(k.lease.Context())
	lost := &lossMessage{Cause: holdfast.LossExpired}
	var loss *holdfast.LossError
	if errors.As(cause, &loss) {
		lost.Cause = loss.Cause
		if loss.Err != nil {
			lost.Why = errorText(loss.Err)
		}
	}
	k.record.addEvent("lost", fields{"cause": lossCode(cause), "reason": lossText(cause)})
	k.sendControl(controlMessage{Lost: lost})
	grace := time.Duration(0)
	if staysHeld(cause) { // nobody else can start yet, so the guard may also be late
		grace = max(0, min(k.policy.Grace*3/2, k.sentExpiry-boottimeNow()))
	}
	k.reactBy = k.clock.Now().Add(grace + driver.Margin(k.ttl)/2)
}

// checkReaction replaces a guard that has not acted on a loss in time.
func (k *wrapper) checkReaction() time.Duration {
	late := k.clock.Since(k.reactBy)
	switch {
	case k.killing:
		return forever
	case late < 0:
		return max(-late, minCheckInterval)
	}
	k.killGuard()
	return forever
}

// killGuard kills a guard that was stopped. What it leaves is then this program's to end.
func (k *wrapper) killGuard() {
	k.killing, k.terminating = true, true
	k.tree.signalCommand(unix.SIGKILL)
}

// handleReport notes what the guard reports, and tells whether it was the last.
func (k *wrapper) handleReport(r guardReport) (last bool) {
	switch r.Event {
	case reportStarted:
		k.commandStarted = true
		k.tree.addGuardedCommand(r.PID)
		k.record.addEvent("started", fields{"pid": r.PID})
	case reportFailed:
		k.result.startError = r.Errno
		if r.Errno == 0 {
			k.result.startError = errors.New(r.Why)
		}
		return true
	case reportExited:
		k.recordExit(r.Status)
	case reportSignal:
		k.guardSignalAt[r.Signal] = time.Now()
	case reportLeft:
		k.record.addEvent("left", fields{"processes": r.Left})
	case reportTerminating:
		k.terminating = true
		k.result.loss = errors.New(r.Why)
		k.record.addEvent("told to end", fields{"reason": r.Why, "signal": signalName(k.policy.Signal)})
	case reportKilled:
		k.killing = true
		k.record.addEvent("killed", nil)
	case reportPartlyHidden:
		k.record.addEvent("not all can be seen", fields{"reason": r.Why})
	case reportUnkillable:
		k.recordUnkillable(r.Left)
	case reportFinished:
		if k.result.escaped = nil; r.Why != "" {
			k.result.loss = errors.New(r.Why)
		}
		return true
	}
	return false
}

func (k *wrapper) recordExit(status syscall.WaitStatus) {
	k.result.status = status
	if status.Signaled() {
		k.record.addFields(fields{"command_signal": signalName(status.Signal())})
	} else {
		k.record.addFields(fields{"command_exit_code": status.ExitStatus()})
	}
	k.record.addEvent("exited", nil)
}

// recordUnkillable notes what cannot be killed. Once the lock is lost there is nothing to wait for but a miracle.
func (k *wrapper) recordUnkillable(left []process) {
	k.record.addEvent("cannot be killed", fields{"processes": left})
	if k.result.loss != nil {
		k.result.escaped = left
		k.escapeTimer = time.After(escapeTimeout)
	}
}

// takeOverTree ends what a guard has left behind that ended before its time, and waits for it. As a rule the lease is good, so
// that there is time to end in good order for whoever is not killed along with the guard.
func (k *wrapper) takeOverTree() {
	k.listener.closePipes() // without it this program has no children but what the guard has left
	ended := "its guard closed its reports"
	select { // its children are this program's when it has been reaped
	case status := <-k.tree.exited:
		if ended = "its guard was killed by " + signalName(status.Signal()); !status.Signaled() {
			ended = "its guard ended with status " + strconv.Itoa(status.ExitStatus())
		}
	case <-time.After(guardExitTimeout):
	}
	// A guard that dies may have started the command without a word.
	if !k.commandStarted && len(k.tree.listRunning()) == 0 {
		if k.result.startError = errors.New(ended); k.result.earlySignal == 0 {
			k.awaitEarlySignal()
		}
		return
	}
	k.record.addEvent("guard gone", nil)
	out, reports := newAsyncWriter(io.Discard), make(chan guardReport, 16)
	defer out.close()
	why := errGuardGone
	if k.lost == nil { // it was lost before, and its guard has not acted on that
		why = context.Cause(k.lease.Context())
	}
	lease := newLeaseMirror(k.lease.Name(), k.sentExpiry)
	lease.markLost(why)
	s := newSupervisor(k.tree, lease, k.policy, nil, out.sendMessage, func(r guardReport) { reports <- r })
	s.expiry, s.loss, s.exitedAt, s.leftoverReported = lease.expiry, k.result.loss, time.Now(), true
	done := make(chan struct{})
	go func() { s.run(); close(done) }()
	for {
		select {
		case r := <-reports:
			k.handleReport(r)
		case <-k.escapeTimer:
			return
		case <-done:
			k.result.escaped, k.result.loss = nil, cmp.Or(s.loss, why) // nothing may have been left; how the command ended is not known
			return
		}
	}
}

// awaitEarlySignal finds out whether a signal has ended the guard before it was ready: one of the terminal's, which this
// program gets, too.
func (k *wrapper) awaitEarlySignal() {
	select {
	case sig := <-k.signals.ch:
		k.recordSignal(sig.(syscall.Signal))
	case <-time.After(controlWriteTimeout):
	}
}

// recordSignal takes in a signal.
func (k *wrapper) recordSignal(sig syscall.Signal) receivedSignal {
	if !k.commandStarted && !harmlessSignals[sig] {
		k.result.earlySignal = sig
	}
	k.record.addEvent("signal", fields{"signal": signalName(sig)})
	return receivedSignal{signal: sig, receivedAt: time.Now(), beforeStart: !k.commandStarted}
}

// classifySignals finds out of each signal how it was sent, when the rest of the group must have had it, too. It keeps nobody waiting but
// the signals.
func (k *wrapper) classifySignals() {
	defer k.listener.closePipes()
	for c := range k.unclassified {
		time.Sleep(groupSignalDelay - time.Since(c.receivedAt))
		known := false
		if c.groupSignaled, known = k.listener.groupHadSignal(c.signal); !known {
			c.groupSignaled = isTerminalSignal(c.signal)
		}
		k.classified <- c
	}
}

// forwardSignal hands a signal on to the command, by way of the guard, unless the command has had it with the rest of the group. A
// second Ctrl-C soon after the first kills.
func (k *wrapper) forwardSignal(c receivedSignal) {
	sig := c.signal
	terminal := isTerminalSignal(sig) // also if the listener is late: whoever types Ctrl-C twice wants an end
	if c.groupSignaled = c.groupSignaled && !c.beforeStart && (terminal || !k.sentToOurProcesses(sig)); c.groupSignaled {
		k.groupSignalAt[sig] = c.receivedAt
	} else if c.receivedAt.Sub(k.groupSignalAt[sig]) < sameCtrlCWindow { // it was sent to this program as well
		c.groupSignaled = true
	}
	o := controlMessage{Signal: sig, GroupSignaled: c.groupSignaled}
	if sig == unix.SIGINT && terminal && k.isSecondCtrlC(c.receivedAt) {
		o = controlMessage{Kill: true}
	}
	k.sendControl(o)
	if sig == unix.SIGTSTP {
		stopMyself()
	}
}

// sentToOurProcesses reports whether a signal was sent to the processes of this program, by the name of its file, rather than to the
// group: the guard, which is in another one, got it too. systemd signals all processes of a unit so, but the command as well.
func (k *wrapper) sentToOurProcesses(sig syscall.Signal) bool {
	at, both := k.guardSignalAt[sig]
	return both && time.Since(at) < guardSignalWindow && !isSystemd(os.Getppid())
}

// isSecondCtrlC reports whether a Ctrl-C follows another one, and is not the same one once more.
func (k *wrapper) isSecondCtrlC(at time.Time) bool {
	gap := at.Sub(k.firstCtrlC)
	if k.firstCtrlC.IsZero() || gap >= secondCtrlCWindow {
		k.firstCtrlC = at
		return false
	}
	return gap >= sameCtrlCWindow
}
