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
	leftNotice   = 200 * time.Millisecond // how long descendants may outlive the command without a word
	firstKillGap = 10 * time.Millisecond  // between two rounds of SIGKILL
	lastKillGap  = time.Second            //
	blindRounds  = 100                    // of SIGKILL, without longer gaps, where only children can be found
	forever      = time.Hour
)

var (
	// errOrphaned ends a tree whose wrapper is gone.
	errOrphaned = errors.New("the program that held it is gone")
	// errUnguarded ends a tree whose guard is gone.
	errUnguarded = errors.New("the guard of the command is gone")
)

// tenure is how long the tree may live. A lease is one.
type tenure interface {
	Remaining() time.Duration
	Context() context.Context // its cause says why it ended
	Name() string
}

// supervisor keeps the command's tree from outliving the lock: it tells all processes to end when the lock is about to be
// lost, and kills them before anybody else can have it. Until then it hands signals on. It uses nothing of a store, and
// nothing that it does can block: what it says and reports is written by others.
type supervisor struct {
	tree   *tree
	tenure tenure
	clock  driver.Clock
	terms  terms
	wishes <-chan wish                      // of the user, for the tree
	say    func(format string, args ...any) // must not block
	report func(report)                     // must not block

	lost     <-chan struct{} // nil once it has been seen to
	trustEnd driver.Instant  // when the tenure ends, as of the last look
	ending   error           // why the tree is being ended
	killAt   driver.Instant  // once the tenure has ended: when SIGKILL is due
	killing  bool            // the user wants it killed
	killGap  time.Duration   // once SIGKILL has been sent

	killRounds int

	status    syscall.WaitStatus
	overAt    time.Time // when the command itself ended
	leftTold  bool
	stuckTold bool
}

// terms are how a tree is ended.
type terms struct {
	Signal  syscall.Signal `json:"signal"`             // tells it to end
	Grace   time.Duration  `json:"grace"`              // how long before SIGKILL
	Pulse   time.Duration  `json:"pulse"`              // between two looks at the clock; timers stand still while the machine sleeps
	HoldEnd time.Duration  `json:"hold_end,omitempty"` // when --max-hold is over, by the clock that processes share
}

// wish is a signal for the tree.
type wish struct {
	signal syscall.Signal
	group  bool // the process group that the tree began in has had it
	kill   bool // no signal, but the end of all
}

func newSupervisor(t *tree, l tenure, how terms, wishes <-chan wish, say func(string, ...any), tell func(report)) *supervisor {
	s := &supervisor{tree: t, tenure: l, clock: driver.SystemClock, terms: how, wishes: wishes, say: say, report: tell}
	s.trustEnd = s.clock.Now().Add(l.Remaining())
	return s
}

// run returns when the last process of the tree is gone: how the command ended, and why the tree was ended if it was.
func (s *supervisor) run() (status syscall.WaitStatus, loss error) {
	s.lost = s.tenure.Context().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case w := <-s.wishes:
			s.follow(w)
		case s.status = <-s.tree.exited:
			s.over()
		case <-s.tree.gone:
			if s.overAt.IsZero() {
				s.status = <-s.tree.exited
				s.over()
			}
			return s.status, s.ending
		case <-s.lost: // left sees to it
		case <-timer.C:
		}
		timer.Reset(min(s.step(), s.tellLeft()))
	}
}

func (s *supervisor) over() {
	s.overAt = time.Now()
	s.report(report{Event: reportExited, Status: s.status})
}

// step does what the clock says, and returns how long it will say nothing new.
func (s *supervisor) step() time.Duration {
	left := s.left()
	switch {
	case left <= 0 || s.killing:
		return min(s.kill(), max(left, firstKillGap))
	case s.ending != nil:
		s.tree.signalNew(s.terms.Signal)
		return min(left, s.terms.Pulse)
	case left <= s.terms.Grace:
		s.warn(left)
		return min(left, s.terms.Pulse)
	}
	return min(left-s.terms.Grace, s.terms.Pulse)
}

// warn tells the tree that its time is nearly over.
func (s *supervisor) warn(left time.Duration) {
	what := "cannot be renewed and"
	if s.terms.HoldEnd > 0 && s.trustEnd.Boottime >= s.terms.HoldEnd-s.terms.Pulse {
		what = "has been held for as long as --max-hold allows, and"
	}
	s.end(errors.New(what + " is lost"))
	s.say("%s %s will be lost in %v; the command is told to end", shown(s.tenure.Name()), what, left.Round(10*time.Millisecond))
}

// left is how long the tree may live.
func (s *supervisor) left() time.Duration {
	if s.lost != nil {
		if left := s.tenure.Remaining(); left > 0 {
			s.trustEnd = s.clock.Now().Add(left)
			return left
		}
		<-s.lost // by now, or in a moment
		s.lost = nil
		s.lose(context.Cause(s.tenure.Context()))
	}
	return -s.clock.Since(s.killAt)
}

// lose sees to it that the tree goes now that the lock is lost. Where nobody else can have the lock before it has run
// out there may be time to end in good order; in all other cases somebody else may have it already.
func (s *supervisor) lose(cause error) {
	now := s.clock.Now()
	s.killAt = now
	if standsOn(cause) {
		s.killAt = now.Add(min(s.terms.Grace, -s.clock.Since(s.trustEnd)))
	}
	why := lossReason(cause)
	known := s.ending != nil && lossReason(s.ending) == why // a guard has said it, and told the tree, before it was replaced
	s.end(cause)
	if !known {
		s.say("%s is lost: %s; the command is ended", shown(s.tenure.Name()), why)
	}
}

// standsOn reports whether a claim that is lost keeps others out until its TTL is over: one that was marked as broken,
// one whose wrapper is gone but whose presence is kept, and one whose guard is gone.
func standsOn(cause error) bool {
	var loss *holdfast.LossError
	return errors.As(cause, &loss) && loss.Cause == holdfast.LossBroken || errors.Is(cause, errOrphaned) || errors.Is(cause, errUnguarded)
}

// end tells all processes of the tree to end. Those that are stopped cannot hear it before they go on.
func (s *supervisor) end(why error) {
	first := s.ending == nil
	s.ending = why
	if first {
		s.tree.signalAll(s.terms.Signal)
		s.tree.signalAll(unix.SIGCONT)
		s.report(report{Event: reportTold, Why: lossReason(why)})
		if why := s.tree.blind(); why != nil {
			s.say("not all of the command can be seen (%s): what it has started is told to end after it", why)
			s.report(report{Event: reportUnseen, Why: why.Error()})
		}
	}
}

// kill kills all that is there, and again: a process may start another while they are being counted.
func (s *supervisor) kill() time.Duration {
	s.tree.signalAll(unix.SIGKILL)
	if s.killGap == 0 {
		s.report(report{Event: reportKilled})
	}
	var left []process // that cannot be killed
	if s.killGap == lastKillGap && !s.stuckTold {
		if left = s.tree.running(); len(left) == 0 { // children there are, or this would be over
			left = []process{{Name: "a process that cannot be seen"}}
		}
	}
	if len(left) > 0 {
		s.stuckTold = true
		what := "and another holder may run beside it"
		if s.lost != nil { // the user wants it killed
			what = "and the lock is kept until that is gone"
		}
		s.say("not all of the command can be killed, %s: %s", what, strings.Join(names(left), ", "))
		s.report(report{Event: reportStuck, Left: left})
	}
	s.killGap = min(max(2*s.killGap, firstKillGap), lastKillGap)
	if s.killRounds++; s.killRounds < blindRounds && s.tree.blind() != nil { // each round reaches only one generation
		s.killGap = firstKillGap
	}
	return s.killGap
}

// tellLeft says once that the command has ended and the lock has not. It returns when to ask again.
func (s *supervisor) tellLeft() time.Duration {
	if s.overAt.IsZero() || s.leftTold {
		return forever
	}
	if wait := leftNotice - time.Since(s.overAt); wait > 0 {
		return wait
	}
	s.leftTold = true
	if left := s.tree.running(); len(left) > 0 {
		s.say("the command has ended, but not all that it started; %s is kept until that is gone: %s",
			shown(s.tenure.Name()), strings.Join(names(left), ", "))
		s.report(report{Event: reportLeft, Left: left})
	}
	return forever
}

// follow hands a signal on: to the command, and once that has ended to what is left of its tree.
func (s *supervisor) follow(w wish) {
	switch {
	case w.kill:
		s.killing = true
	case !s.overAt.IsZero():
		s.tree.signalLeft(w.signal, w.group)
	case !w.group:
		s.tree.signalCommand(w.signal)
	}
}

// lossReason is why a lock was lost, in a few words.
func lossReason(err error) string {
	var loss *holdfast.LossError
	if !errors.As(err, &loss) {
		return reason(err)
	}
	if loss.Err != nil {
		return string(loss.Cause) + ": " + reason(loss.Err)
	}
	return string(loss.Cause)
}

// ownCode is what the command's end makes of this program's.
func ownCode(status syscall.WaitStatus) error {
	switch {
	case status.Signaled():
		return &exitError{code: exitSignal + int(status.Signal()), outcome: outcomeKilled, why: signalName(status.Signal())}
	case status.ExitStatus() != 0:
		return &exitError{code: status.ExitStatus(), outcome: outcomeExited}
	}
	return nil
}
