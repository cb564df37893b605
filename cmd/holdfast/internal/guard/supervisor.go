package guard

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
	"github.com/holdfast-go/holdfast/driver/clock"
)

const (
	// how long descendants may outlive the command before a message reports them
	leftoverNotice = 200 * time.Millisecond
	minKillGap     = 10 * time.Millisecond // between two rounds of SIGKILL, at first
	maxKillGap     = time.Second           // between two rounds of SIGKILL, later
	shortGapRounds = 100                   // rounds of SIGKILL with minKillGap where only children can be found
	forever        = time.Hour
)

// ExpiredText is why a lease was lost that nobody renewed in time.
const ExpiredText = "its TTL passed without a renewal"

// expiryTexts say of a lease that is about to end by the clock how it comes to that, by the code of the loss.
var expiryTexts = map[string]string{
	CodeExpired:    "cannot be renewed and",
	CodeMaxHold:    "has been held for as long as --max-hold allows, and",
	CodeNoProgress: "has seen no progress for nearly as long as --progress allows, and",
}

// newExpiry is the loss of a lease that has ended by the clock.
func newExpiry(code string) *Loss {
	if code == CodeExpired {
		return &Loss{Code: code, Why: ExpiredText}
	}
	return &Loss{Code: code, Why: expiryTexts[code] + " is lost"}
}

// Reasons to end a tree although its lease may still be valid.
var (
	// ErrWrapperGone ends a tree whose wrapper has ended.
	ErrWrapperGone = &Loss{CodeWrapperGone, "the program that held it has ended", true}
	// ErrGuardGone ends a tree whose guard has ended.
	ErrGuardGone = &Loss{CodeGuardGone, "the guard of the command has ended", true}
	// errReleaseRequested ends a tree whose lock somebody else wants, and whose user gives it away.
	errReleaseRequested = &Loss{Code: CodeReleaseRequested, Why: "its release was requested"}
)

// leaseView is what a supervisor needs of a lease. In both of its processes that is a leaseMirror.
type leaseView interface {
	Remaining() time.Duration
	EndsBy() string           // why it ends when that time has passed: the code of a Loss
	Context() context.Context // its cause says why the lease ended
	Name() string
}

// supervisor keeps the command's tree from outliving the lock: it signals all processes when the lock is about to be
// lost, and kills them before anybody else can have it. Until then it forwards signals. It makes no call to a store,
// and nothing that it does can block: its messages and reports are written by other goroutines.
type supervisor struct {
	tree     *Tree
	lease    leaseView
	clock    clock.Clock
	policy   KillPolicy
	requests <-chan treeRequest
	say      func(format string, args ...any) // must not block
	report   func(Report)                     // must not block

	lost          <-chan struct{} // nil once the loss has been handled
	expiry        clock.Instant   // of the lease, as of the last look
	loss          error           // why the tree is being ended; nil if it is not
	endBy         clock.Instant   // then: when SIGKILL is due, whatever becomes of the lease; only moved to sooner
	killRequested bool            // by the user
	killGap       time.Duration   // 0 until SIGKILL is sent
	killRounds    int

	status             syscall.WaitStatus
	exitedAt           time.Time // when the command itself ended
	leftoverReported   bool
	unkillableReported bool
}

// treeRequest makes the supervisor do something with the tree on the user's behalf.
type treeRequest struct {
	signal        syscall.Signal
	groupSignaled bool     // the process group in which the tree began has received it
	kill          bool     // no signal: the whole tree is to be killed
	end           bool     // no signal: the tree is to be ended, with a grace
	beside        []string // no signal: the path and the argv of a program to start in the tree
}

func newSupervisor(t *Tree, l leaseView, policy KillPolicy, requests <-chan treeRequest,
	say func(string, ...any), report func(Report)) *supervisor {
	s := &supervisor{
		tree: t, lease: l, clock: clock.System, policy: policy, requests: requests, say: say, report: report,
	}
	s.expiry = s.clock.Now().Add(l.Remaining())
	return s
}

// run returns when the last process of the tree has ended. It returns how the command ended, and why the tree was
// ended, if it was.
func (s *supervisor) run() (status syscall.WaitStatus, loss error) {
	s.lost = s.lease.Context().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case r := <-s.requests:
			s.handleRequest(r)
		case s.status = <-s.tree.Exited:
			s.recordExit()
		case <-s.tree.Gone:
			if s.exitedAt.IsZero() {
				s.status = <-s.tree.Exited
				s.recordExit()
			}
			return s.status, s.loss
		case <-s.lost: // timeLeft handles it
		case <-timer.C:
		}
		timer.Reset(min(s.checkDeadline(), s.reportLeftover()))
	}
}

// recordExit notes and reports the end of the command itself. Its descendants may still run.
func (s *supervisor) recordExit() {
	s.exitedAt = time.Now()
	s.report(Report{Event: ReportExited, Status: s.status})
}

// checkDeadline does what is due now, and returns when to call it again.
func (s *supervisor) checkDeadline() time.Duration {
	left := s.timeLeft()
	switch {
	case left <= 0:
		return s.killTree()
	case s.killRequested:
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

// warnAndTerminate signals the tree to end because the lease is about to expire. A renewal that succeeds after that
// does not spare what is left of the tree: a command that was told to end has begun to.
func (s *supervisor) warnAndTerminate(left time.Duration) {
	code := s.lease.EndsBy()
	what := expiryTexts[code]
	s.terminateTree(&Loss{Code: code, Why: what + " is lost"}, left)
	s.say("%s %s will be lost in %v; the command was signaled to end%s",
		text.QuoteName(s.lease.Name()), what, left.Round(10*time.Millisecond), s.policy.LossNote)
}

// timeLeft is how long the tree may still run.
func (s *supervisor) timeLeft() time.Duration {
	if s.lost != nil {
		if left := s.lease.Remaining(); left > 0 {
			s.expiry = s.clock.Now().Add(left)
			if s.loss == nil {
				return left
			}
			return min(left, -s.clock.Since(s.endBy))
		}
		<-s.lost // closed already, or in a moment
		s.lost = nil
		s.handleLoss(context.Cause(s.lease.Context()))
	}
	return -s.clock.Since(s.endBy)
}

// handleLoss ends the tree because the lock is lost. If nobody else can have the lock before it expires, the tree may
// have time to clean up. In all other cases somebody else may have the lock already.
func (s *supervisor) handleLoss(cause error) {
	left := time.Duration(0)
	if staysHeld(cause) {
		left = min(s.policy.Grace, -s.clock.Since(s.expiry))
	}
	why := cause.Error()
	known := s.loss != nil && s.loss.Error() == why // a guard reported it before it was replaced
	s.terminateTree(cause, left)
	if !known {
		s.say("%s is lost: %s; ending the command%s", text.QuoteName(s.lease.Name()), why, s.policy.LossNote)
	}
}

// staysHeld reports whether a claim that is lost keeps others out until its TTL has passed: one that was marked as
// broken, one whose wrapper has ended while its liveness file is still open, and one whose guard has ended.
func staysHeld(cause error) bool {
	var loss *Loss
	return errors.As(cause, &loss) && loss.StaysHeld
}

// terminateTree signals all processes of the tree to end, once; what is left after that time is killed. Stopped
// processes get SIGCONT, because they cannot handle the signal before they continue.
func (s *supervisor) terminateTree(why error, left time.Duration) {
	first := s.loss == nil
	s.loss = why
	if !first {
		left = min(left, -s.clock.Since(s.endBy))
	}
	s.endBy = s.clock.Now().Add(left)
	if !first {
		return
	}
	s.tree.signalAll(s.policy.Signal, system.SIGCONT)
	s.report(newReport(ReportTerminating, why))
	if why := s.tree.whyPartlyHidden(); why != nil {
		s.say("not all processes of the command can be seen (%s): those it started are signaled after it", why)
		s.report(Report{Event: ReportPartlyHidden, Why: why.Error()})
	}
}

// killTree kills all that can be found. It is called again until nothing is left, because a process may start another
// while they are being listed. It returns when to call it again.
func (s *supervisor) killTree() time.Duration {
	s.tree.signalAll(syscall.SIGKILL)
	if s.killGap == 0 {
		s.report(Report{Event: ReportKilled})
	}
	if s.killGap == maxKillGap && !s.unkillableReported {
		s.reportUnkillable()
	}
	s.killGap = min(max(2*s.killGap, minKillGap), maxKillGap)
	// Where only children can be found, each round reaches only one generation.
	if s.killRounds++; s.killRounds < shortGapRounds && s.tree.whyPartlyHidden() != nil {
		s.killGap = minKillGap
	}
	return s.killGap
}

// reportUnkillable reports once which processes are left after many rounds of SIGKILL.
func (s *supervisor) reportUnkillable() {
	left := s.tree.ListRunning()
	if len(left) == 0 { // there are some, or the tree would be gone
		left = []Process{{Name: "a process that cannot be seen"}}
	}
	s.unkillableReported = true
	what := "and another holder may run next to it"
	if s.lost != nil { // a user or another caller wants it ended
		what = "and " + text.QuoteName(s.lease.Name()) + " stays held until that has ended"
	}
	s.say("not all of the command can be killed, %s: %s", what, strings.Join(processNames(left), ", "))
	s.report(Report{Event: ReportUnkillable, Left: left})
}

// reportLeftover reports once that the command has ended and some of its descendants have not, which keeps the lock. It
// returns when to call it again.
func (s *supervisor) reportLeftover() time.Duration {
	if s.exitedAt.IsZero() || s.leftoverReported || s.lost == nil {
		return forever
	}
	if wait := leftoverNotice - time.Since(s.exitedAt); wait > 0 {
		return wait
	}
	s.leftoverReported = true
	if left := s.tree.ListRunning(); len(left) > 0 {
		s.say("the command has ended, but not everything it started; %s stays held until that has ended: %s",
			text.QuoteName(s.lease.Name()), strings.Join(processNames(left), ", "))
		s.report(Report{Event: ReportLeft, Left: left})
	}
	return forever
}

// endTree ends the tree while the lease is valid: it signals it, and kills what is left after the grace. It does
// nothing if the tree is being ended already.
func (s *supervisor) endTree() {
	if s.loss != nil {
		return
	}
	s.terminateTree(errReleaseRequested, s.policy.Grace)
	s.say("the release of %s was requested; the command was signaled to end, and is killed in %v",
		text.QuoteName(s.lease.Name()), s.policy.Grace)
}

// startBeside starts a program in the tree, with no input, and the output of this process. So it is ended when the lock
// is lost, and the lock is kept until it has ended.
func (s *supervisor) startBeside(argv []string) {
	if s.loss != nil {
		return
	}
	pid, err := s.tree.startBeside(argv[0], argv[1:])
	r := Report{Event: ReportBeside, PID: pid}
	if err != nil {
		r.Why = err.Error()
		s.say("%s cannot be run: %s", argv[0], err)
	}
	s.report(r)
}

// handleRequest forwards a signal to the command, or to what is left of its tree once the command has ended.
func (s *supervisor) handleRequest(r treeRequest) {
	switch {
	case r.kill:
		s.killRequested = true
	case r.end:
		s.endTree()
	case len(r.beside) > 0:
		s.startBeside(r.beside)
	case !s.exitedAt.IsZero():
		s.tree.signalMembers(r.groupSignaled, r.signal)
	case !r.groupSignaled:
		s.tree.SignalCommand(r.signal)
	}
}
