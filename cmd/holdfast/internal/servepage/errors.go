package servepage

import (
	"errors"
	"net/http"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// describeStoreError says what an error of the store means, and what to do.
func describeStoreError(err error) *pageError {
	means, because := failure.Of(err), text.OneLine(err.Error())
	say := func(format string, args ...any) *pageError { return newPageError(means.Status, format, args...) }
	var run holdfast.RunInfo
	if refused := (*holdfast.RunError)(nil); errors.As(err, &refused) {
		run = refused.Run
	}
	switch means.Reason {
	case holdfast.FailureSucceeded:
		return say("The key has succeeded in attempt %d, so there is nothing to retry.", run.Attempt)
	case holdfast.FailureInProgress:
		return say("A run of the key is in progress: attempt %d by %s. Wait for its end, or "+
			"stop its worker and wait until the run is abandoned. Nothing was changed.",
			run.Attempt, text.Printable(run.Owner))
	case holdfast.FailureLost:
		return say("This claim does not exist any more: it has ended meanwhile. Nothing was changed.")
	case holdfast.FailureUncertain, holdfast.FailureTimeout:
		if means.Reason == holdfast.FailureTimeout { // of a call, not of a wait
			means.Status = http.StatusGatewayTimeout
		}
		return say("The store did not answer in time, so it is not known whether something was changed. Look again. (%s)",
			because)
	case holdfast.FailureUnsupported:
		return say("This store cannot do that. (%s)", because)
	case holdfast.FailureInvalid:
		return say("%s", because)
	case holdfast.FailureClosed, holdfast.FailureCanceled:
		return say("The server is being stopped.")
	}
	return say("The store has reported an error. (%s)", because)
}
