package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
)

// Exit codes besides the command's own. They are those of sysexits.h and of shells where these have one.
const (
	exitNoHolder     = 1   // break: nothing stands there
	exitUsage        = 64  // the command line, or the way a lock is used, is wrong
	exitUnavailable  = 69  // the store cannot be reached, refuses, or cannot be read
	exitOutputFailed = 74  // what is to be printed cannot be written
	exitNotAcquired  = 75  // held by others, or not granted in time
	exitLost         = 76  // the lock was lost while the command ran
	exitCannotRun    = 126 // the command is there but cannot be run
	exitNotFound     = 127 // there is no such command
	exitSignal       = 128 // plus the signal's number
)

// exitError ends the program with a code. Without err nothing is left to say.
type exitError struct {
	code    int
	err     error
	hint    bool    // point to the help
	outcome outcome // for the record; told from the code if empty
	reason  string  // for the record, if there is no err
}

func (e *exitError) Error() string {
	if e.err == nil {
		return "exit " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// fatalSignal is the signal that this program dies of in the end, so that whoever started it sees what a shell needs to see to end
// a loop at Ctrl-C: that its child did not exit, but died. The exit code is the same to a shell.
func (e *exitError) fatalSignal() syscall.Signal {
	if e.outcome == outcomeKilled || e.outcomeOrDefault() == outcomeInterrupted {
		switch sig := syscall.Signal(e.code - exitSignal); sig {
		case unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM:
			return sig
		}
	}
	return 0
}

func exitWith(code int, format string, args ...any) *exitError {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

func usageError(format string, args ...any) *exitError {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...), hint: true}
}

// storeError is what an error of the library ends the program with, unless that has been settled.
func storeError(err error) *exitError {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit
	}
	code := exitUnavailable
	var signalled *signalError
	switch {
	case errors.As(err, &signalled):
		code = exitSignal + int(signalled.signal)
	case errors.Is(err, holdfast.ErrHeld), errors.Is(err, holdfast.ErrQueueFull):
		code = exitNotAcquired
	case errors.Is(err, holdfast.ErrInvalid), errors.Is(err, holdfast.ErrUnsupported), errors.Is(err, holdfast.ErrMismatch):
		code = exitUsage
	case errors.Is(err, holdfast.ErrLost): // break: it ended by itself
		code = exitNoHolder
	}
	return &exitError{code: code, err: err}
}

// signalError is a wait, or a look at a store, that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "ended by " + signalName(e.signal) }

// Is makes it a cancellation, which it is.
func (e *signalError) Is(target error) bool { return target == context.Canceled }

// printMessage writes one line on stderr. Nothing that others wrote into a store can break the line or steer the terminal.
func printMessage(format string, args ...any) {
	fmt.Fprint(os.Stderr, formatMessage(format, args...))
}

func formatMessage(format string, args ...any) string {
	return "holdfast: " + oneLine(fmt.Sprintf(format, args...)) + "\n"
}

// errorText is an error's text without the library's prefix, which say writes itself.
func errorText(err error) string { return strings.TrimPrefix(err.Error(), "holdfast: ") }

// flagErrorText is reason for a flag's value, without the words that only say that it is invalid.
func flagErrorText(err error) string {
	var number *strconv.NumError
	if errors.As(err, &number) {
		return "not a number that fits here"
	}
	return strings.TrimPrefix(errorText(err), "time: ")
}

func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
