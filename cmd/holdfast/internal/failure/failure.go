// Package failure says what the errors of the library mean for those who call the command or the server: each reason
// of a failure has one row.
package failure

import (
	"errors"
	"net/http"

	"github.com/holdfast-go/holdfast"
)

// Exit codes of the command. Where sysexits.h has one, it is the same.
const (
	ExitGone         = 1  // the claim does not exist any more, or the key has no run that could be changed
	ExitUsage        = 64 // the command line, or the way a lock is used, is wrong
	ExitUnavailable  = 69 // the store cannot be reached, refuses, or cannot be read
	ExitNotAcquired  = 75 // held by others, or not granted in time
	ExitAttemptsUsed = 77 // the key has had as many runs as it may have
	ExitMissed       = 80 // the slot has ended while another slot of its job was run
	ExitSuperseded   = 81 // a newer one waits for the lock
)

// Row is what an error means.
type Row struct {
	Reason   holdfast.FailureReason // in records and metrics; empty for what no lock or run fails with
	Exit     int                    // of the command
	Problem  string                 // the code of the problem that the server answers with
	Status   int                    // of that answer
	Title    string                 // what the code means
	OfOthers bool                   // the text of the error may say what others have done
}

// Rows has one row for each reason.
var Rows = []Row{
	{holdfast.FailureHeld, ExitNotAcquired, "held", http.StatusConflict, "the lock is held", true},
	// The command tells by itself that --wait has passed. So this is a call that the store has not answered in time.
	{holdfast.FailureTimeout, ExitUnavailable, "timeout", http.StatusConflict, "the lock was not granted in time", false},
	{holdfast.FailureCanceled, ExitUnavailable, storeError, http.StatusServiceUnavailable, titleStoreError, true},
	{holdfast.FailureClosed, ExitUnavailable, "shutting-down", http.StatusServiceUnavailable, "the server shuts down", false},
	{holdfast.FailureQueueFull, ExitNotAcquired, "queue-full", http.StatusServiceUnavailable,
		"the lock has as many claims as its store allows", true},
	{holdfast.FailureSuperseded, ExitSuperseded, "superseded", http.StatusConflict, "a newer request for the lock waits", false},
	{holdfast.FailureMismatch, ExitUsage, "mismatch", http.StatusConflict, "the name is in use in another way", true},
	{holdfast.FailureInvalid, ExitUsage, "invalid", http.StatusBadRequest, "the request is wrong", false},
	{holdfast.FailureUnsupported, ExitUsage, "unsupported", http.StatusNotImplemented, "the store cannot do this", false},
	{holdfast.FailureDenied, ExitUnavailable, "denied", http.StatusBadGateway, "the store refuses the server", true},
	{holdfast.FailureCorrupt, ExitUnavailable, "corrupt", http.StatusBadGateway,
		"the data in the store cannot be understood", true},
	{holdfast.FailureLost, ExitGone, "lost", http.StatusGone, "the lock or the run was lost", false},
	{holdfast.FailureUncertain, ExitUnavailable, "uncertain", http.StatusServiceUnavailable,
		"the store gave no answer, so the outcome is not known", true},
	{holdfast.FailureStore, ExitUnavailable, storeError, http.StatusServiceUnavailable, titleStoreError, true},
	{holdfast.FailureSucceeded, ExitGone, "succeeded", http.StatusConflict, "the key has succeeded before", true},
	{holdfast.FailureInProgress, ExitNotAcquired, "in-progress", http.StatusConflict, "a run of the key is in progress", true},
	{holdfast.FailureTooSoon, ExitNotAcquired, "too-soon", http.StatusConflict,
		"the pause since the last run has not passed", true},
	{holdfast.FailureAttemptsUsed, ExitAttemptsUsed, "attempts-used", http.StatusConflict,
		"the key has had as many runs as it may have", true},
	{holdfast.FailureMissed, ExitMissed, "missed", http.StatusConflict,
		"the slot has ended while another slot of its job was run", true},
	released,
}

const (
	storeError      = "store-error"
	titleStoreError = "the store cannot be used"
)

// released is ErrReleased: no lock and no run fails with it.
var released = Row{"", ExitUnavailable, "released", http.StatusGone, "the lock was released before", false}

// Of is the row of an error, which must not be nil.
func Of(err error) Row {
	reason := holdfast.FailureReasonOf(err)
	if reason == holdfast.FailureStore && errors.Is(err, holdfast.ErrReleased) {
		return released
	}
	for _, row := range Rows {
		if row.Reason == reason {
			return row
		}
	}
	return Row{Reason: reason, Exit: ExitUnavailable, Problem: storeError, Status: http.StatusServiceUnavailable,
		Title: titleStoreError, OfOthers: true} // a reason that this program does not know
}
