package cli

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/appendfile"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// eventFile is the file of --events: a line of JSON per event, the last of which has the outcome. It must never
// change what happens to the command, so a goroutine writes the lines, and a line that cannot be written only causes
// a warning. A nil eventFile ignores everything.
type eventFile struct {
	file  *appendfile.File // nil if there is none to write to
	lines chan []byte
	done  chan struct{}
	warn  sync.Once

	mu     sync.Mutex
	base   fields // of every line
	closed bool
}

// eventFlushTimeout is how long the last lines may take to be written: the reader may have stopped.
const eventFlushTimeout = 2 * time.Second

// openEventFile opens a file for appending, or fd:N. A wrong name is a usage error. A full disk or a closed descriptor
// is not: the command runs without the file.
func openEventFile(where string) (*eventFile, error) {
	if where == "" {
		return nil, nil
	}
	r := &eventFile{base: fields{}, lines: make(chan []byte, 256), done: make(chan struct{})}
	file, err := appendfile.Open(where, 0o666)
	switch {
	case err == nil:
		r.file = file
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EBADF):
		r.warnIncomplete(err)
	default:
		return nil, usageError("--events: %s cannot be written: %s", quoteName(where), rootCause(err))
	}
	go r.writeQueued()
	return r, nil
}

// writeQueued writes the lines, in a goroutine of its own. It reads the queue to the end even if nothing can be
// written, so that close does not have to wait.
func (r *eventFile) writeQueued() {
	defer close(r.done)
	for line := range r.lines {
		if r.file == nil {
			continue
		}
		if err := r.file.Append(line, false); err != nil {
			r.warnIncomplete(err)
		}
	}
}

// warnIncomplete warns once: the file is not worth more than one line on stderr.
func (r *eventFile) warnIncomplete(err error) {
	r.warn.Do(func() { printMessage("the file of --events is not complete: %s", rootCause(err)) })
}

// addFields adds fields to all following lines.
func (r *eventFile) addFields(f fields) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.base, f)
}

// addEvent adds a line. It never waits: if the queue is full, it drops the line and warns.
func (r *eventFile) addEvent(kind holdfast.EventKind, f fields) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	line := fields{"type": recordEvent, "time": shown.FormatTime(time.Now()), "event": kind}
	maps.Copy(line, r.base)
	maps.Copy(line, f)
	data, err := json.Marshal(line)
	if err != nil {
		r.warnIncomplete(err)
		return
	}
	select {
	case r.lines <- append(data, '\n'):
	default:
		r.warnIncomplete(errors.New("its reader does not read"))
	}
}

// close waits until everything is written, at most eventFlushTimeout.
func (r *eventFile) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	close(r.lines)
	r.mu.Unlock()
	select {
	case <-r.done:
	case <-time.After(eventFlushTimeout):
		r.warnIncomplete(errors.New("its reader does not read"))
	}
}

// outcome is how a run ended. It is needed besides the exit code, because a command may exit with one of this
// program's codes.
type outcome string

const (
	outcomeExited      outcome = "exited"       // the command exited on its own, with the exit code
	outcomeKilled      outcome = "killed"       // the command died of a signal
	outcomeLost        outcome = "lost"         // the lock was lost, and the command was ended
	outcomeNotAcquired outcome = "not-acquired" // held by others, or not granted in time
	outcomeInterrupted outcome = "interrupted"  // a signal ended the wait
	outcomeCannotRun   outcome = "cannot-run"   // the command cannot be started
	outcomeUnavailable outcome = "unavailable"  // the store cannot be reached, or refuses
	outcomeUsage       outcome = "usage"        // wrong usage
	outcomeNotPrinted  outcome = "not-printed"  // hold: the token could not be printed
	outcomeReleased    outcome = "released"     // hold: a signal ended it

	// run, hold: the command or the hold was ended because somebody asked for the lock
	outcomeReleasedOnRequest outcome = "released-on-request"

	outcomeDone         outcome = "done-before"   // once: the key has succeeded before
	outcomeMissed       outcome = "missed"        // once: the slot started too long ago, or another one was run meanwhile
	outcomeAttemptsUsed outcome = "attempts-used" // once: the key has had as many runs as it may have
	outcomeNotRecorded  outcome = "not-recorded"  // once: the command has succeeded, which the store has not confirmed
)

func addEventsFlag(c *cobra.Command, where *string) {
	c.Flags().Var(nonEmptyString{where}, "events", "append events and the outcome to `FILE`, or fd:N, as lines of JSON")
}

// withEventFile runs f with the file of --events, and ends it with the outcome. All lines have the fields of base.
func withEventFile(where string, base fields, f func(*eventFile) error) error {
	r, err := openEventFile(where)
	if err != nil {
		return err
	}
	if r != nil {
		r.addFields(base)
		r.addFields(originFields())
	}
	err = f(r)
	r.addOutcome(err)
	r.close()
	return err
}

// addOutcome adds the last line. err is what the run ended with; nil means that the command exited with 0.
func (r *eventFile) addOutcome(err error) {
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{outcome: outcomeExited}
	}
	last := fields{"outcome": exit.outcomeOrDefault(), "exit_code": exit.code}
	if reason := exit.failureReason(); reason != "" {
		last["reason"] = reason
	}
	if exit.cause != "" {
		last["cause"] = exit.cause
	}
	var held *holdfast.HeldError
	if errors.As(exit.err, &held) && len(held.Holders) > 0 {
		last["holders"] = shown.NewClaims(held.Holders, shown.PlainRef)
	}
	if silent := silenceOf(exit.err); silent > 0 {
		last["silent_ms"] = shown.Millis(silent)
	}
	if exit.run != nil {
		last["run"] = runAsJSON(*exit.run)
	}
	switch {
	case exit.err != nil:
		last["message"] = oneLine(errorText(exit.err))
	case exit.message != "":
		last["message"] = oneLine(exit.message)
	}
	r.addEvent(eventOutcome, last)
}

// outcomeOrDefault is the outcome for the file. Most errors come from the library and have none set.
func (e *exitError) outcomeOrDefault() outcome {
	var signaled *signalError
	switch {
	case e.outcome != "":
		return e.outcome
	case errors.As(e.err, &signaled):
		return outcomeInterrupted
	case e.err != nil && slices.Contains([]int{exitNotAcquired, exitSuperseded}, failure.Of(e.err).Exit):
		return outcomeNotAcquired
	case e.code == exitUsage:
		return outcomeUsage
	}
	return outcomeUnavailable
}
