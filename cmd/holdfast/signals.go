package main

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// signalQueue are those that were sent to this program, in order.
type signalQueue struct {
	ch chan os.Signal
}

// uncaughtSignals are signals that stay as they are everywhere: those that cannot be caught, those that tell of a fault of this
// very process, and those that the system sends for reasons of its own (a child ended; a preemption by the Go runtime).
var uncaughtSignals = map[syscall.Signal]bool{
	unix.SIGKILL: true, unix.SIGSTOP: true,
	unix.SIGSEGV: true, unix.SIGBUS: true, unix.SIGFPE: true, unix.SIGILL: true, unix.SIGTRAP: true, unix.SIGSYS: true,
	unix.SIGCHLD: true, unix.SIGURG: true,
}

// notForwarded are others that this program does not hand on.
var notForwarded = map[syscall.Signal]bool{
	unix.SIGTTIN: true, unix.SIGTTOU: true, // using the terminal in the background, which stops the whole group anyway
	unix.SIGTSTP: true,                     // only while a command runs: see forwardStops
	unix.SIGPIPE: true, unix.SIGXFSZ: true, // dropped
}

// droppedSignals are caught and come to nothing: a write of this program failed, and that must not end it under a running
// command. They are not ignored, since the command would inherit that.
var droppedSignals = []syscall.Signal{unix.SIGPIPE, unix.SIGXFSZ}

// catchSignals catches what can be caught. SIGHUP and SIGINT that were ignored when this program began (by nohup, or by a
// shell that runs it in the background) stay ignored, here and in the command. Of others the Go runtime does not tell.
func catchSignals() *signalQueue {
	s := &signalQueue{ch: make(chan os.Signal, 256)}
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if !uncaughtSignals[n] && !notForwarded[n] && !signal.Ignored(n) {
			signal.Notify(s.ch, n)
		}
	}
	for _, n := range droppedSignals {
		if !signal.Ignored(n) {
			signal.Notify(make(chan os.Signal, 1), n)
		}
	}
	return s
}

// exitOnQuit makes SIGQUIT, which Ctrl-\ sends, end this program with the exit code of any signal. The Go runtime would
// print the stacks of all goroutines and exit 2.
func exitOnQuit() {
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, unix.SIGQUIT)
	go func() {
		<-quit
		dieBySignal(unix.SIGQUIT)
	}()
}

// watchDuringWait calls end at the first signal that would end a program that catches none. The others mean nothing before
// there is a command. stop ends that and returns the signal that came, if one did.
func (s *signalQueue) watchDuringWait(end func(syscall.Signal)) (stop func() *signalError) {
	quit := make(chan struct{})
	var came *signalError
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case sig := <-s.ch:
				if n, ok := sig.(syscall.Signal); ok && !harmlessSignals[n] && came == nil {
					came = &signalError{n}
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
		return came
	}
}

// harmlessSignals are the signals that do nothing to a program that does not care.
var harmlessSignals = map[syscall.Signal]bool{unix.SIGCONT: true, unix.SIGWINCH: true}

// forwardStops begins to catch SIGTSTP, which Ctrl-Z sends, so that the command stops along with this program also when
// only this program was told to: it must not run on with nobody to renew its lock.
func (s *signalQueue) forwardStops() {
	if !signal.Ignored(unix.SIGTSTP) {
		signal.Notify(s.ch, unix.SIGTSTP)
	}
}

// stopMyself does what SIGTSTP does to a program that does not catch it: it stops, until SIGCONT, unless there is no shell
// that could make it go on. The Go runtime does not give SIGTSTP its own meaning back once it was caught, so this sends a
// signal of the same meaning that never is.
func stopMyself() { _ = unix.Kill(os.Getpid(), unix.SIGTTOU) }

// dieBySignal ends this program by a signal, as if it had never caught it. The first process of a container cannot die so: it
// exits with the code that a shell would make of it.
func dieBySignal(sig syscall.Signal) {
	if os.Getpid() != 1 && resetSignal(sig) {
		_ = unix.Kill(os.Getpid(), sig)
		time.Sleep(deathTimeout)
	}
	os.Exit(exitSignal + int(sig))
}

// deathTimeout is how long a signal may take to end this program.
const deathTimeout = time.Second

// isTerminalSignal reports whether a signal probably came from the terminal. Then the command, which is in the same process
// group, has had it too and must not get it twice. That this group is the one that the terminal talks to is the next best
// thing.
func isTerminalSignal(sig syscall.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGWINCH:
		return isForeground()
	}
	return false
}

// isForeground reports whether this program belongs to the terminal's foreground process group.
func isForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// parseSignal finds a signal that can end something: TERM, SIGTERM or 15.
func parseSignal(name string) (syscall.Signal, error) {
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if number, err := strconv.Atoi(name); err == nil && number > 0 && number <= int(lastSignal) {
		sig = syscall.Signal(number)
	}
	switch sig {
	case 0:
		return 0, usageError("--signal: %q is no signal", name)
	case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCONT:
		return 0, usageError("--signal: %s ends nothing", unix.SignalName(sig))
	}
	return sig, nil
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
