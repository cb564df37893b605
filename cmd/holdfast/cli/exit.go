package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// Exit codes besides the command's own. Where sysexits.h or shells have a code for it, it is the same.
const (
	exitNoHolder     = failure.ExitGone // break, request-release: nobody holds the lock
	exitNoRun        = failure.ExitGone // runs: the key has no run that could be printed, retried or forgotten
	exitUsage        = failure.ExitUsage
	exitUnavailable  = failure.ExitUnavailable
	exitNotAcquired  = failure.ExitNotAcquired
	exitAttemptsUsed = failure.ExitAttemptsUsed
	exitNotRecorded  = 73 // once: the command has succeeded, and the store has not confirmed that
	exitOutputFailed = 74 // the output cannot be written
	exitLost         = 76 // the lock was lost while the command ran
	exitMissed       = failure.ExitMissed
	exitSuperseded   = failure.ExitSuperseded
	exitOnRequest    = 79  // the lock was released because somebody asked for it: --on-request release
	exitCannotRun    = 126 // the command is there but cannot be run
	exitNotFound     = 127 // there is no such command
	exitSignal       = 128 // plus the signal's number
)

// exitError ends the program with a code. If err is nil, no message is printed.
type exitError struct {
	code    int
	err     error
	hint    bool    // the message points to the help
	outcome outcome // for the record; if empty, outcomeOrDefault finds it
	message string  // for the record, if there is no err
	silent  bool    // err is for the record alone

	reason holdfast.FailureReason // for the record; if empty, failureReason finds it
	cause  endCause               // for the record: why the command was ended
	run    *holdfast.RunInfo      // for the record of once: the run that is in the way
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "exit " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// fatalSignal is the signal by which this program must die instead of exiting, or 0. A shell ends a loop at Ctrl-C
// only if its child died of the signal. The exit code that the shell shows is the same.
func (e *exitError) fatalSignal() syscall.Signal {
	if e.outcome == outcomeKilled || e.outcomeOrDefault() == outcomeInterrupted {
		switch sig := syscall.Signal(e.code - exitSignal); sig {
		case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
			return sig
		}
	}
	return 0
}

func exitWith(code int, format string, args ...any) *exitError {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// usageError is wrong usage. Its message points to the help.
func usageError(format string, args ...any) *exitError {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...), hint: true}
}

// storeError gives an error of the library its exit code, unless it has one.
func storeError(err error) *exitError {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit
	}
	code := failure.Of(err).Exit
	var signaled *signalError
	fault := findLocalFault(err)
	switch {
	case errors.As(err, &signaled):
		code = exitSignal + int(signaled.signal)
	case fault != nil: // also where a library takes it for a wrong option, such as a file that cannot be read
		if !strings.Contains(err.Error(), fault.words) {
			err = fmt.Errorf("%w; %s", err, fault.words)
		}
		code = exitUnavailable
	}
	return &exitError{code: code, err: err}
}

// localFault is what this process or this machine lacks. It says nothing about the store.
type localFault struct {
	errno  syscall.Errno
	words  string
	passes bool // without the user: other processes may give back what they have
}

var localFaults = []localFault{
	{syscall.EMFILE, "raise the limit (ulimit -n)", false},
	{syscall.ENFILE, "all programs of this machine together have too many files open", true},
	{syscall.ENOMEM, "this machine has too little memory", true},
}

// findLocalFault finds out whether an error is one of this machine, and returns nil if not. Some libraries keep
// nothing but the text of an error, so that of a socket is looked for as well.
func findLocalFault(err error) *localFault {
	for i, f := range localFaults {
		if text := "socket: " + f.errno.Error(); errors.Is(err, f.errno) || strings.HasSuffix(err.Error(), text) ||
			strings.Contains(err.Error(), text+`"`) {
			return &localFaults[i]
		}
	}
	return nil
}

// ledgerError is storeError for calls to a run ledger.
func ledgerError(err error) *exitError {
	if errors.Is(err, holdfast.ErrUnsupported) {
		return exitWith(exitUsage, "this store, or the layout in its URL, keeps no runs; use another: %s", errorText(err))
	}
	return storeError(err)
}

// signalError is a wait that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "ended by " + signalName(e.signal) }

// Is reports true for context.Canceled, so that callers treat it as a cancellation.
func (e *signalError) Is(target error) bool { return target == context.Canceled }

// printMessage writes one line to stderr, with the time unless stderr is a terminal. Text that others have written into
// a store can neither break the line nor control the terminal.
func printMessage(format string, args ...any) {
	fmt.Fprint(os.Stderr, text.StderrMessage(format, args...))
}

// errorText is an error's text without the library's prefix, which printMessage writes.
func errorText(err error) string { return strings.TrimPrefix(err.Error(), "holdfast: ") }

// flagErrorText is errorText for a flag's value, without the words that only repeat that it is invalid.
func flagErrorText(err error) string {
	var number *strconv.NumError
	switch {
	case errors.As(err, &number) && number.Func == "ParseBool":
		return "give true or false, or the flag alone"
	case number != nil:
		return "not a number, or too large"
	}
	return durationErrorText(strings.TrimPrefix(errorText(err), "time: "))
}

var badDuration = regexp.MustCompile(`^(?:missing unit in duration "(\d+)"|unknown unit "d" in duration "(\d{1,4})d")$`)

// durationErrorText says what was probably meant by a number without a unit, and by days, which have no unit.
func durationErrorText(text string) string {
	m := badDuration.FindStringSubmatch(text)
	switch {
	case m == nil:
		return text
	case m[1] != "":
		return fmt.Sprintf("give a unit: did you mean %ss?", m[1])
	}
	days, _ := strconv.Atoi(m[2])
	return fmt.Sprintf("the largest unit is the hour: did you mean %dh?", 24*days)
}

// rootCause is the innermost error: that of the system, without the operation and the file, which our own message
// names.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// lossText describes why a lock was lost, in a few words.
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

// lossCode is the code of why a lock was lost; empty if it has none.
func lossCode(err error) holdfast.LossCause {
	var loss *holdfast.LossError
	if errors.As(err, &loss) {
		return loss.Cause
	}
	return ""
}
