package cli

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// signalQueue has the signals that this program received, in order.
type signalQueue struct {
	ch chan os.Signal
}

// notForwarded are other signals that this program does not forward.
var notForwarded = map[syscall.Signal]bool{
	system.SIGTTIN: true, system.SIGTTOU: true, // for using the terminal in the background; sent to the whole group
	system.SIGTSTP:  true,                       // only while a command runs: see forwardStops
	syscall.SIGPIPE: true, system.SIGXFSZ: true, // dropped
}

// dropWriteSignals catches and drops the signals that mean that a write of this program failed, which must not end it
// while a command runs, or while it holds locks for others. They are not ignored, because the command would inherit
// that.
func dropWriteSignals() {
	for _, n := range []syscall.Signal{syscall.SIGPIPE, system.SIGXFSZ} {
		if !signal.Ignored(n) {
			signal.Notify(make(chan os.Signal, 1), n)
		}
	}
}

// catchSignals catches the signals to be forwarded. SIGHUP and SIGINT that were ignored when this program started (by
// nohup, or by a shell that runs it in the background) stay ignored, here and in the command. For other signals the
// Go runtime does not report whether they were ignored.
func catchSignals() *signalQueue {
	s := &signalQueue{ch: make(chan os.Signal, 256)}
	for n := syscall.Signal(1); n <= guard.LastSignal; n++ {
		if !guard.UncaughtSignals[n] && !notForwarded[n] && !signal.Ignored(n) {
			signal.Notify(s.ch, n)
		}
	}
	dropWriteSignals()
	signal.Stop(quitSignals)
	return s
}

// quitSignals gets SIGQUIT until something else is done about that signal.
var quitSignals = make(chan os.Signal, 1)

// exitOnQuit makes this program die of SIGQUIT, which Ctrl-\ sends. Otherwise the Go runtime would print the stacks
// of all goroutines and exit 2.
func exitOnQuit() {
	signal.Notify(quitSignals, syscall.SIGQUIT)
	go func() {
		<-quitSignals
		dieBySignal(syscall.SIGQUIT)
	}()
}

// showStacksOnQuit makes SIGQUIT do what it does to other servers in Go: they print the stacks of all goroutines and
// end.
func showStacksOnQuit() { signal.Stop(quitSignals) }

// watchDuringWait calls end at the first signal that would end a program by default. The others mean nothing before
// there is a command. stop ends the watching and returns that signal, if there was one.
func (s *signalQueue) watchDuringWait(end func(syscall.Signal)) (stop func() *signalError) {
	quit := make(chan struct{})
	var received *signalError
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case sig := <-s.ch:
				if n, ok := sig.(syscall.Signal); ok && !harmlessSignals[n] && received == nil {
					received = &signalError{n}
					end(n)
				}
			case <-quit:
				return
			}
		}
	})
	return func() *signalError {
		close(quit)
		done.Wait()
		return received
	}
}

// harmlessSignals do nothing to a program that does not catch them.
var harmlessSignals = map[syscall.Signal]bool{system.SIGCONT: true, system.SIGWINCH: true}

// forwardStops begins to catch SIGTSTP, which Ctrl-Z sends, so that the command stops along with this program even if
// only this program received it: the command must not continue while nobody renews its lock.
func (s *signalQueue) forwardStops() {
	if !signal.Ignored(system.SIGTSTP) {
		signal.Notify(s.ch, system.SIGTSTP)
	}
}

// stopMyself does what SIGTSTP does by default: it stops this program until SIGCONT, unless there is no shell that
// could continue it. The Go runtime cannot restore the default of SIGTSTP once it was caught, so this sends SIGTTOU,
// which has the same default and is never caught.
func stopMyself() { system.SignalSelf(system.SIGTTOU) }

// dieBySignal ends this program by a signal, as if it had never caught it. The first process of a container cannot
// die of one; it exits with the code that a shell would show.
func dieBySignal(sig syscall.Signal) {
	if os.Getpid() != 1 && resetSignal(sig) {
		system.SignalSelf(sig)
		time.Sleep(deathTimeout)
	}
	os.Exit(exitSignal + int(sig))
}

// deathTimeout is how long a signal may take to end this program.
const deathTimeout = time.Second

// isTerminalSignal guesses whether a signal came from the terminal: it is one that a terminal sends, and this process
// group is the one that the terminal sends signals to. Then the command, which is in the same group, has received it
// too and must not receive it twice.
func isTerminalSignal(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT, system.SIGTSTP, system.SIGWINCH:
		return guard.IsForeground()
	}
	return false
}

func isTerminal(f *os.File) bool {
	_, ok := system.TerminalWidth(f.Fd())
	return ok
}

// parseSignal finds a signal by its name or number (TERM, SIGTERM or 15). It refuses signals that cannot end a process.
func parseSignal(name string) (syscall.Signal, error) {
	sig := system.SignalNumber("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if number, err := strconv.Atoi(name); err == nil && number > 0 && number <= int(guard.LastSignal) {
		sig = syscall.Signal(number)
	}
	switch sig {
	case 0:
		return 0, usageError("--signal: %q is not a signal", name)
	case system.SIGSTOP, system.SIGTSTP, system.SIGTTIN, system.SIGTTOU, system.SIGCONT:
		return 0, usageError("--signal: %s does not end a process", system.SignalName(sig))
	}
	return sig, nil
}

func signalName(sig syscall.Signal) string {
	if name := system.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
