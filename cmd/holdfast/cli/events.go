package cli

import (
	"errors"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// The kinds of lines in the record of run, hold or once that the library has no event for. Its own kinds have their
// codes in the record as well: those of a lock or a run that the program acquires, keeps and ends.
const (
	eventRunWaiting         holdfast.EventKind = "run_waiting"         // once: a run of the key is in progress
	eventSlotWaiting        holdfast.EventKind = "slot_waiting"        // once: another slot of the job is run, and is waited for
	eventSlotEarly          holdfast.EventKind = "slot_early"          // once: the next slot starts soon, and is waited for
	eventCommandStarted     holdfast.EventKind = "command_started"     //
	eventCommandExited      holdfast.EventKind = "command_exited"      // what it has started may still run
	eventCommandTerminating holdfast.EventKind = "command_terminating" // it and what it has started were signaled to end
	eventCommandKilled      holdfast.EventKind = "command_killed"      // the first SIGKILL
	eventSignalReceived     holdfast.EventKind = "signal_received"     // by this program
	eventProcessesLeft      holdfast.EventKind = "processes_left"      // they outlive the command
	eventProcessesHidden    holdfast.EventKind = "processes_hidden"    // not all can be seen
	eventProcessesUnkilled  holdfast.EventKind = "processes_unkilled"  // SIGKILL did not end them
	eventGuardGone          holdfast.EventKind = "guard_gone"          // the guard has ended before the command
	eventScriptStarted      holdfast.EventKind = "script_started"      // that of --on-request
	eventScriptFailed       holdfast.EventKind = "script_failed"       // it could not be started
	eventReleaseUnconfirmed holdfast.EventKind = "release_unconfirmed" // the lock stays held until its TTL has passed
	eventReportUnconfirmed  holdfast.EventKind = "report_unconfirmed"  // once: the store has not confirmed the end of the run
	eventOutcome            holdfast.EventKind = "outcome"             // the last line
)

// failureReasonOf is why a lock was not acquired or a run not begun, as a code, or empty: for what says nothing about
// the lock or the run, and for what the caller of the program decides, such as how long to wait.
func failureReasonOf(err error) holdfast.FailureReason {
	switch reason := holdfast.FailureReasonOf(err); reason {
	case holdfast.FailureStore, holdfast.FailureTimeout, holdfast.FailureCanceled, holdfast.FailureClosed,
		holdfast.FailureLost:
		return ""
	default:
		return reason
	}
}

// failureReason is why nothing was run, as a code; empty if something was run, or if the outcome says it all.
func (e *exitError) failureReason() holdfast.FailureReason {
	switch e.outcomeOrDefault() {
	case outcomeNotAcquired, outcomeUnavailable, outcomeUsage:
	default:
		return ""
	}
	switch code := failureReasonOf(e.err); {
	case e.reason != "":
		return e.reason
	case code != "":
		return code
	case e.outcomeOrDefault() == outcomeUnavailable:
		return holdfast.FailureStore
	}
	return ""
}

// endCause is why a command was ended, or why a lock or a run was lost: a holdfast.LossCause, or one of those of the
// guard.
type endCause string

// endCauseOf is the code of an error; empty if it has none.
func endCauseOf(err error) endCause {
	if loss := (*guard.Loss)(nil); errors.As(err, &loss) {
		return endCause(loss.Code)
	}
	return endCause(lossCode(err))
}

// causeFields are the cause of an end as a code, if it has one, and for people.
func causeFields(err error) fields {
	f := fields{"message": lossText(err)}
	if cause := endCauseOf(err); cause != "" {
		f["cause"] = cause
	}
	return f
}

// lostError is the end of a run whose lock was lost.
func lostError(err error) *exitError {
	return &exitError{code: exitLost, outcome: outcomeLost, cause: endCauseOf(err), message: lossText(err)}
}
