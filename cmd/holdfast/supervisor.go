package main

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

const (
	leftoverNotice = 200 * time.Millisecond // how long descendants may outlive the command without a word
	minKillGap     = 10 * time.Millisecond  // between two rounds of SIGKILL
	maxKillGap     = time.Second            //
	shortGapRounds = 100                    // of SIGKILL, without longer gaps, where only children can be found
	forever        = time.Hour
)

var (
	// errWrapperGone ends a tree whose wrapper is gone.
	errWrapperGone = errors.New("the program that held it is gone")
	// errGuardGone ends a tree whose guard is gone.
	errGuardGone = errors.New("the guard of the command is gone")
)

// leaseView is how long the tree may live. A lease is one.
type leaseView interface {
	Remaining() time.Duration
	Context() context.Context // its cause says why it ended
	Name() string
}

// supervisor keeps the command's tree from outliving the lock: it tells all processes to end when the lock is about to be
// lost, and kills them before anybody else can have it. Until then it hands signals on. It uses nothing of a store, and
// nothing that it does can block: what it says and reports is written by others.
type supervisor struct {
	tree     *tree
	lease    leaseView
	clock    driver.Clock
	policy   killPolicy
	requests <-chan signalRequest             // of the user, for the tree
	say      func(format string, args ...any) // must not block
	report   func(guardReport)                // must not block

	lost          <-chan struct{} // nil once it has been seen to
	expiry        driver.Instant  // when the tenure ends, as of the last look
	loss          error           // why the tree is being ended
	killAt        driver.Instant  // once the tenure has ended: when SIGKILL is due
	killRequested bool            // the user wants it killed
	killGap       time.Duration   // once SIGKILL has been sent

	killRounds int

	status             syscall.WaitStatus
	exitedAt           time.Time // when the command itself ended
	leftoverReported   bool
	unkillableReported bool
}

// killPolicy are how a tree is ended.
type killPolicy struct {
	Signal        syscall.Signal `json:"signal"`             // tells it to end
	Grace         time.Duration  `json:"grace"`              // how long before SIGKILL
	CheckInterval time.Duration  `json:"pulse"`              // between two looks at the clock; timers stand still while the machine sleeps
	MaxHoldEnd    time.Duration  `json:"hold_end,omitempty"` // when --max-hold is over, by the clock that processes share
}

// signalRequest is a signal for the tree.
type signalRequest struct {
	signal        syscall.Signal
	groupSignaled bool // the process group that the tree began in has had it
	kill          bool // no signal, but the end of all
}

func newSupervisor(t *tree, l leaseView, how killPolicy, wishes <-chan signalRequest, say func(string, ...any), tell func(guardReport)) *supervisor {
	s := &supervisor{tree: t, lease: l, clock: driver.SystemClock, policy: how, requests: wishes, say: say, report: tell}
	s.expiry = s.clock.Now().Add(l.Remaining())
	return s
}

// run returns when the last process of the tree is gone: how the command ended, and why the tree was ended if it was.
func (s *supervisor) run() (status syscall.WaitStatus, loss error) {
	s.lost = s.lease.Context().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case w := <-s.requests:
			s.handleRequest(w)
		case s.status = <-s.tree.exited:
			s.recordExit()
		case <-s.tree.gone:
			if s.exitedAt.IsZero() {
				s.status = <-s.tree.exited
				s.recordExit()
			}
			return s.status, s.loss
		case <-s.lost: // left sees to it
		case <-timer.C:
		}
		timer.Reset(min(s.checkDeadline(), s.reportLeftover()))
	}
}

func (s *supervisor) recordExit() {
	s.exitedAt = time.Now()
	s.report(guardReport{Event: reportExited, Status: s.status})
}

// checkDeadline does what the clock says, and returns how long it will say nothing new.
func (s *supervisor) checkDeadline() time.Duration {
	left := s.timeLeft()
	switch {
	case left <= 0 || s.killRequested:
		return min(s.killTree(), max(left, minKillGap))
	case s.loss != nil:
		s.tree.signalNewChildren(s.policy.Signal)
		return min(left, s.policy.CheckInterval)
	case left <= s.policy.Grace:
		s.warnAndTerminate(left)
		return min(left, s.policy.CheckInterval)
	}
	return min(left-s.policy.Grace, s.policy.CheckInterval)
}

// warnAndTerminate tells the tree that its time is nearly over.
func (s *supervisor) warnAndTerminate(left time.Duration) {
	what := "cannot be renewed and"
	if s.policy.MaxHoldEnd > 0 && s.expiry.Boottime >= s.policy.MaxHoldEnd-s.policy.CheckInterval {
		what = "has been held for as long as --max-hold allows, and"
	}
	s.terminateTree(errors.New(what + " is lost"))
	s.say("%s %s will be lost in %v; the command is told to end", quoteName(s.lease.Name()), what, left.Round(10*time.Millisecond))
}

// timeLeft is how long the tree may live.
func (s *supervisor) timeLeft() time.Duration {
	if s.lost != nil {
		if left := s.lease.Remaining(); left > 0 {
			s.expiry = s.clock.Now().Add(left)
			return left
		}
		<-s.lost // by now, or in a moment
		s.lost = nil
		s.handleLoss(context.Cause(s.lease.Context()))
	}
	return -s.clock.Since(s.killAt)
}

// handleLoss sees to it that the tree goes now that the lock is lost. Where nobody else can have the lock before it has run
// out there may be time to end in good order; in all other cases somebody else may have it already.
func (s *supervisor) handleLoss(cause error) {
	now := s.clock.Now()
	s.killAt = now
	if staysHeld(cause) {
		s.killAt = now.Add(min(s.policy.Grace, -s.clock.Since(s.expiry)))
	}
	why := lossText(cause)
	known := s.loss != nil && lossText(s.loss) == why // a guard has said it, and told the tree, before it was replaced
	s.terminateTree(cause)
	if !known {
		s.say("%s is lost: %s; the command is ended", quoteName(s.lease.Name()), why)
	}
}

// staysHeld reports whether a claim that is lost keeps others out until its TTL is over: one that was marked as broken,
// one whose wrapper is gone but whose presence is kept, and one whose guard is gone.
func staysHeld(cause error) bool {
	var loss *holdfast.LossError
	return errors.As(cause, &loss) && loss.Cause == holdfast.LossBroken || errors.Is(cause, errWrapperGone) || errors.Is(cause, errGuardGone)
}

// terminateTree tells all processes of the tree to end. Those that are stopped cannot hear it before they go on.
func (s *supervisor) terminateTree(why error) {
	first := s.loss == nil
	s.loss = why
	if first {
		s.tree.signalAll(s.policy.Signal)
		s.tree.signalAll(unix.SIGCONT)
		s.report(guardReport{Event: reportTerminating, Why: lossText(why)})
		if why := s.tree.whyPartlyHidden(); why != nil {
			s.say("not all of the command can be seen (%s): what it has started is told to end after it", why)
			s.report(guardReport{Event: reportPartlyHidden, Why: why.Error()})
		}
	}
}

// killTree kills all that is there, and again: a process may start another while they are being counted.
func (s *supervisor) killTree() time.Duration {
	s.tree.signalAll(unix.SIGKILL)
	if s.killGap == 0 {
		s.report(guardReport{Event: reportKilled})
	}
	var left []process // that cannot be killed
	if s.killGap == maxKillGap && !s.unkillableReported {
		if left = s.tree.listRunning(); len(left) == 0 { // children there are, or this would be over
			left = []process{{Name: "a process that cannot be seen"}}
		}
	}
	if len(left) > 0 {
		s.unkillableReported = true
		what := "and another holder may run beside it"
		if s.lost != nil { // the user wants it killed
			what = "and the lock is kept until that is gone"
		}
		s.say("not all of the command can be killed, %s: %s", what, strings.Join(processNames(left), ", "))
		s.report(guardReport{Event: reportUnkillable, Left: left})
	}
	s.killGap = min(max(2*s.killGap, minKillGap), maxKillGap)
	if s.killRounds++; s.killRounds < shortGapRounds && s.tree.whyPartlyHidden() != nil { // each round reaches only one generation
		s.killGap = minKillGap
	}
	return s.killGap
}

// reportLeftover says once that the command has ended and the lock has not. It returns when to ask again.
func (s *supervisor) reportLeftover() time.Duration {
	if s.exitedAt.IsZero() || s.leftoverReported {
		return forever
	}
	if wait := leftoverNotice - time.Since(s.exitedAt); wait > 0 {
		return wait
	}
	s.leftoverReported = true
	if left := s.tree.listRunning(); len(left) > 0 {
		s.say("the command has ended, but not all that it started; %s is kept until that is gone: %s",
			quoteName(s.lease.Name()), strings.Join(processNames(left), ", "))
		s.report(guardReport{Event: reportLeft, Left: left})
	}
	return forever
}

// handleRequest hands a signal on: to the command, and once that has ended to what is left of its tree.
func (s *supervisor) handleRequest(w signalRequest) {
	switch {
	case w.kill:
		s.killRequested = true
	case !s.exitedAt.IsZero():
		s.tree.signalMembers(w.signal, w.groupSignaled)
	case !w.groupSignaled:
		s.tree.signalCommand(w.signal)
	}
}

// lossText is why a lock was lost, in a few words.
func lossText(err error) string {
	var loss *holdfast.LossError
	if !errors.As(err, &loss) {
		return errorText(err)
	}
	if loss.Err != nil {
		return loss.Cause.Description() + ": " + errorText(loss.Err)
	}
	return loss.Cause.Description()
}

// commandExitError is what the command's end makes of this program's.
func commandExitError(status syscall.WaitStatus) error {
	switch {
	case status.Signaled():
		return &exitError{code: exitSignal + int(status.Signal()), outcome: outcomeKilled, reason: signalName(status.Signal())}
	case status.ExitStatus() != 0:
		return &exitError{code: status.ExitStatus(), outcome: outcomeExited}
	}
	return nil
}

// lossCode is the code of why a lock was lost, for the record of --json.
func lossCode(err error) holdfast.LossCause {
	var loss *holdfast.LossError
	if errors.As(err, &loss) {
		return loss.Cause
	}
	return ""
}
