package servepage

import (
	"context"
	"errors"
	"net/http"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// describeStoreError says what an error of the store means, and what to do.
func describeStoreError(err error) *pageError {
	because := text.OneLine(err.Error())
	var refused *holdfast.RunError
	switch {
	case errors.As(err, &refused) && errors.Is(err, holdfast.ErrSucceeded):
		return newPageError(http.StatusConflict, "The key has succeeded in attempt %d, so there is nothing to retry.",
			refused.Run.Attempt)
	case errors.As(err, &refused) && errors.Is(err, holdfast.ErrInProgress):
		return newPageError(http.StatusConflict,
			"A run of the key is in progress: attempt %d by %s. Wait for its end, or "+
				"stop its worker and wait until the run is abandoned. Nothing was changed.",
			refused.Run.Attempt, text.Printable(refused.Run.Owner))
	case errors.Is(err, holdfast.ErrLost):
		return newPageError(http.StatusConflict,
			"This claim does not exist any more: it has ended meanwhile. Nothing was changed.")
	case errors.Is(err, holdfast.ErrUncertain), errors.Is(err, context.DeadlineExceeded):
		return newPageError(http.StatusGatewayTimeout,
			"The store did not answer in time, so it is not known whether something was changed. Look again. (%s)", because)
	case errors.Is(err, holdfast.ErrUnsupported):
		return newPageError(http.StatusUnprocessableEntity, "This store cannot do that. (%s)", because)
	case errors.Is(err, holdfast.ErrInvalid):
		return newPageError(http.StatusBadRequest, "%s", because)
	case errors.Is(err, holdfast.ErrClosed), errors.Is(err, context.Canceled):
		return newPageError(http.StatusServiceUnavailable, "The server is being stopped.")
	}
	return newPageError(http.StatusBadGateway, "The store has reported an error. (%s)", because)
}
