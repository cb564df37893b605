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
	orderTime    = 100 * time.Millisecond // for one order: the pipe is full only if the guard does not read
	escapeTime   = 5 * time.Second        // how long the wrapper waits for what cannot be killed, once the lock is lost
	secondCtrlC  = 5 * time.Second        // a Ctrl-C so soon after another one kills
	sameCtrlC    = 200 * time.Millisecond // but not so soon: who sends one signal twice, to a process and to its group, means one
	groupLag     = 20 * time.Millisecond  // between the first and the last process of a group to get a signal
	guardLag     = 5 * time.Second        // within which the guard got the same signal
	guardExit    = time.Second            // for the guard to end after its last word
	leastLooking = 5 * time.Millisecond   //
)

// keeper is the wrapper while the command runs. It tells the guard what becomes of the lease, hands signals on, and steps
// in for a guard that died or does not act in time.
type keeper struct {
	lease   *holdfast.Lease
	clock   driver.Clock
	ttl     time.Duration
	terms   terms
	signals *signals
	record  *record

	tree    *tree // the guard, and all that is left if it dies
	orders  *os.File
	reports chan report

	started  bool            // the command
	until    time.Duration   // as the guard knows it
	lost     <-chan struct{} // nil once the guard has been told
	overdue  driver.Instant  // when a loss must have been acted upon
	told     bool            // the guard has told the tree to end
	acted    bool            // the guard has begun to kill
	listener *listener
	asks     chan caught // signals of which it is not known yet how they were sent
	answers  chan caught
	firstInt time.Time
	groupGot map[syscall.Signal]time.Time // the group with this program
	guardGot map[syscall.Signal]time.Time // the guard, which is in another group
	escaping <-chan time.Time
	end      ending
}

// caught is a signal that this program got.
type caught struct {
	signal syscall.Signal
	at     time.Time
	early  bool // before the command was known to run
	group  bool // the whole group had it
}

// ending is what became of a command.
type ending struct {
	failed  error // it could not be started
	status  syscall.WaitStatus
	loss    error          // why its tree was ended
	escaped []process      // what could not be ended
	signal  syscall.Signal // that came before the command was there
}

// start starts the guard, which starts the command. hold is how long the lease lasts at most, 0 if it has no bound.
func (k *keeper) start(client *holdfast.Client, hold time.Duration, path string, argv, env []string) error {
	program, err := ownProgram()
	if err != nil {
		return err
	}
	k.listener = startListener(program) // first, so that it gets none of the guard's descriptors
	ordersIn, orders, err1 := os.Pipe()
	reports, reportsOut, err2 := os.Pipe()
	heirloom, err3 := client.LivenessFile()
	if errors.Is(err3, holdfast.ErrUnsupported) {
		err3 = nil
	}
	defer closeAll(ordersIn, reportsOut, heirloom)
	if err := errors.Join(err1, err2, err3); err != nil {
		closeAll(orders, reports)
		return err
	}
	guard := []string{guardName}
	for _, f := range []*os.File{ordersIn, reportsOut, heirloom} {
		number, err := handDown(f)
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
	k.tree, k.orders = t, orders
	k.until = k.believedUntil()
	if hold > 0 {
		k.terms.HoldEnd = sharedNow() + hold
	}
	k.reports = make(chan report, 16)
	k.groupGot, k.guardGot = map[syscall.Signal]time.Time{}, map[syscall.Signal]time.Time{}
	k.tell(order{Begin: &mission{Lock: k.lease.Name(), Until: k.until, Terms: k.terms}})
	go k.listen(reports)
	return nil
}

// handDown makes a descriptor go on to the guard, under its own number: those that this program was given are the
// command's, under theirs. Nothing else is started here that it could go on to.
func handDown(f *os.File) (int, error) {
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

// listen passes on what the guard reports until the guard is gone.
func (k *keeper) listen(from *os.File) {
	defer close(k.reports)
	defer from.Close()
	for d := json.NewDecoder(bufio.NewReader(from)); ; {
		var r report
		if d.Decode(&r) != nil {
			return
		}
		k.reports <- r
	}
}

// tell gives the guard an order. A guard that reads none is found out by what it does not do.
func (k *keeper) tell(o order) {
	line, err := json.Marshal(o)
	if err != nil {
		return
	}
	for range 2 { // this program may have been stopped between the two calls, so that nothing was tried
		_ = k.orders.SetWriteDeadline(time.Now().Add(orderTime))
		if n, err := k.orders.Write(append(line, '\n')); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// believedUntil reads the clock before it asks the lease, so that it can only be too early.
func (k *keeper) believedUntil() time.Duration {
	now := sharedNow()
	return now + k.lease.Remaining()
}

// run returns when nothing of the command is left, or nothing more can be done about what is.
func (k *keeper) run() {
	k.signals.forwardStops()
	k.lost = k.lease.Context().Done()
	k.asks, k.answers = make(chan caught, 256), make(chan caught, 256)
	defer close(k.asks)
	go k.askListener()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case sig := <-k.signals.ch:
			k.asks <- k.note(sig.(syscall.Signal))
		case c := <-k.answers:
			k.forward(c)
		case r, ok := <-k.reports:
			if !ok {
				k.stepIn()
				return
			}
			if k.hear(r) {
				return
			}
		case <-k.lost:
			k.tellLost()
		case <-k.escaping:
			return
		case <-timer.C:
		}
		timer.Reset(k.look())
	}
}

// leave waits for the guard's end, which has nothing more to do.
func (k *keeper) leave() {
	if k.tree == nil {
		return
	}
	_ = k.orders.Close()
	select {
	case <-k.tree.gone:
	case <-time.After(guardExit):
	}
}

// look passes renewals on, and returns when the next is to be expected.
func (k *keeper) look() time.Duration {
	left := k.lease.Remaining()
	if k.lost != nil && k.lease.Context().Err() != nil {
		k.tellLost() // before the guard is judged by what is left, which it has not heard of
	}
	if k.lost == nil {
		return k.press()
	}
	if until := k.believedUntil(); until > k.until+time.Millisecond {
		k.until = until
		k.tell(order{Until: until})
	}
	if left < k.terms.Grace/2 && !k.told { // it should have told the tree to end when all of the grace was left
		k.replace()
		return forever
	}
	soon := max(k.ttl/50, leastLooking)
	// A renewal is due when a third of the TTL has gone by.
	if due := left - (k.ttl - k.ttl/3 - driver.Margin(k.ttl)); due > soon {
		return due
	}
	return soon
}

// tellLost tells the guard that the lease is lost, and why.
func (k *keeper) tellLost() {
	k.lost = nil
	cause := context.Cause(k.lease.Context())
	lost := &lossOrder{Loss: holdfast.LossExpired}
	var loss *holdfast.LossError
	if errors.As(cause, &loss) {
		lost.Loss = loss.Cause
		if loss.Err != nil {
			lost.Why = reason(loss.Err)
		}
	}
	k.record.event("lost", fields{"reason": lossReason(cause)})
	k.tell(order{Lost: lost})
	grace := time.Duration(0)
	if standsOn(cause) { // nobody else can start yet, so the guard may also be late
		grace = max(0, min(k.terms.Grace*3/2, k.until-sharedNow()))
	}
	k.overdue = k.clock.Now().Add(grace + driver.Margin(k.ttl)/2)
}

// press replaces a guard that has not acted on a loss in time.
func (k *keeper) press() time.Duration {
	late := k.clock.Since(k.overdue)
	switch {
	case k.acted:
		return forever
	case late < 0:
		return max(-late, leastLooking)
	}
	k.replace()
	return forever
}

// replace kills a guard that was stopped. What it leaves is then this program's to end.
func (k *keeper) replace() {
	k.acted, k.told = true, true
	k.tree.signalCommand(unix.SIGKILL)
}

// hear notes what the guard reports, and tells whether it was the last.
func (k *keeper) hear(r report) (last bool) {
	switch r.Event {
	case reportStarted:
		k.started = true
		k.tree.watchOver(r.PID)
		k.record.event("started", fields{"pid": r.PID})
	case reportFailed:
		k.end.failed = r.Errno
		if r.Errno == 0 {
			k.end.failed = errors.New(r.Why)
		}
		return true
	case reportExited:
		k.exited(r.Status)
	case reportSignal:
		k.guardGot[r.Signal] = time.Now()
	case reportLeft:
		k.record.event("left", fields{"processes": r.Left})
	case reportTold:
		k.told = true
		k.end.loss = errors.New(r.Why)
		k.record.event("told to end", fields{"reason": r.Why, "signal": signalName(k.terms.Signal)})
	case reportKilled:
		k.acted = true
		k.record.event("killed", nil)
	case reportUnseen:
		k.record.event("not all can be seen", fields{"reason": r.Why})
	case reportStuck:
		k.stuck(r.Left)
	case reportGone:
		if k.end.escaped = nil; r.Why != "" {
			k.end.loss = errors.New(r.Why)
		}
		return true
	}
	return false
}

func (k *keeper) exited(status syscall.WaitStatus) {
	k.end.status = status
	if status.Signaled() {
		k.record.set(fields{"command_signal": signalName(status.Signal())})
	} else {
		k.record.set(fields{"command_exit_code": status.ExitStatus()})
	}
	k.record.event("exited", nil)
}

// stuck notes what cannot be killed. Once the lock is lost there is nothing to wait for but a miracle.
func (k *keeper) stuck(left []process) {
	k.record.event("cannot be killed", fields{"processes": left})
	if k.end.loss != nil {
		k.end.escaped = left
		k.escaping = time.After(escapeTime)
	}
}

// stepIn ends what a guard has left behind that ended before its time, and waits for it. As a rule the lease is good, so
// that there is time to end in good order for whoever is not killed along with the guard.
func (k *keeper) stepIn() {
	k.listener.end() // without it this program has no children but what the guard has left
	ended := "its guard closed its reports"
	select { // its children are this program's when it has been reaped
	case status := <-k.tree.exited:
		if ended = "its guard was killed by " + signalName(status.Signal()); !status.Signaled() {
			ended = "its guard ended with status " + strconv.Itoa(status.ExitStatus())
		}
	case <-time.After(guardExit):
	}
	// A guard that dies may have started the command without a word.
	if !k.started && len(k.tree.running()) == 0 {
		if k.end.failed = errors.New(ended); k.end.signal == 0 {
			k.awaitSignal()
		}
		return
	}
	k.record.event("guard gone", nil)
	out, reports := newTeller(io.Discard), make(chan report, 16)
	defer out.close()
	why := errUnguarded
	if k.lost == nil { // it was lost before, and its guard has not acted on that
		why = context.Cause(k.lease.Context())
	}
	lease := newBelief(k.lease.Name(), k.until)
	lease.end(why)
	s := newSupervisor(k.tree, lease, k.terms, nil, out.say, func(r report) { reports <- r })
	s.trustEnd, s.ending, s.overAt, s.leftTold = lease.until, k.end.loss, time.Now(), true
	done := make(chan struct{})
	go func() { s.run(); close(done) }()
	for {
		select {
		case r := <-reports:
			k.hear(r)
		case <-k.escaping:
			return
		case <-done:
			k.end.escaped, k.end.loss = nil, cmp.Or(s.ending, why) // nothing may have been left; how the command ended is not known
			return
		}
	}
}

// awaitSignal finds out whether a signal has ended the guard before it was ready: one of the terminal's, which this
// program gets, too.
func (k *keeper) awaitSignal() {
	select {
	case sig := <-k.signals.ch:
		k.note(sig.(syscall.Signal))
	case <-time.After(orderTime):
	}
}

// note takes in a signal.
func (k *keeper) note(sig syscall.Signal) caught {
	if !k.started && !harmless[sig] {
		k.end.signal = sig
	}
	k.record.event("signal", fields{"signal": signalName(sig)})
	return caught{signal: sig, at: time.Now(), early: !k.started}
}

// askListener finds out of each signal how it was sent, when the rest of the group must have had it, too. It keeps nobody waiting but
// the signals.
func (k *keeper) askListener() {
	defer k.listener.end()
	for c := range k.asks {
		time.Sleep(groupLag - time.Since(c.at))
		known := false
		if c.group, known = k.listener.ask(c.signal); !known {
			c.group = fromTerminal(c.signal)
		}
		k.answers <- c
	}
}

// forward hands a signal on to the command, by way of the guard, unless the command has had it with the rest of the group. A
// second Ctrl-C soon after the first kills.
func (k *keeper) forward(c caught) {
	sig := c.signal
	terminal := fromTerminal(sig) // also if the listener is late: whoever types Ctrl-C twice wants an end
	if c.group = c.group && !c.early && (terminal || !k.onlyOurs(sig)); c.group {
		k.groupGot[sig] = c.at
	} else if c.at.Sub(k.groupGot[sig]) < sameCtrlC { // it was sent to this program as well
		c.group = true
	}
	o := order{Signal: sig, Group: c.group}
	if sig == unix.SIGINT && terminal && k.isSecondCtrlC(c.at) {
		o = order{Kill: true}
	}
	k.tell(o)
	if sig == unix.SIGTSTP {
		stopMyself()
	}
}

// onlyOurs reports whether a signal was sent to the processes of this program, by the name of its file, rather than to the
// group: the guard, which is in another one, got it too. systemd signals all processes of a unit so, but the command as well.
func (k *keeper) onlyOurs(sig syscall.Signal) bool {
	at, both := k.guardGot[sig]
	return both && time.Since(at) < guardLag && !isSystemd(os.Getppid())
}

// isSecondCtrlC reports whether a Ctrl-C follows another one, and is not the same one once more.
func (k *keeper) isSecondCtrlC(at time.Time) bool {
	gap := at.Sub(k.firstInt)
	if k.firstInt.IsZero() || gap >= secondCtrlC {
		k.firstInt = at
		return false
	}
	return gap >= sameCtrlC
}
