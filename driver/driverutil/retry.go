package driverutil

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// RetryLoop decides how often an Acquire or a Release sends its request again, for stores where that is one
// request, which is repeated until its outcome is known. It is not safe for use by several goroutines.
type RetryLoop struct {
	// Clock is the store's clock.
	Clock driver.Clock
	// Limit is how long the store may give no answer before the call is given up.
	Limit time.Duration
	// Pause waits between two requests. tries counts the pauses since the loop began, from 0. It returns
	// an error if ctx has ended or the store was closed meanwhile.
	Pause func(ctx context.Context, tries int) error
	// Uncertain says that a request without an answer may have taken effect, or may still do so.
	Uncertain bool

	tries  int
	outage Outage
}

// Restart makes the limit count from now on, whether or not a request fails. Without it, the limit counts
// from the first failed request.
func (l *RetryLoop) Restart() {
	l.tries = 0
	l.outage.RequestAnswered()
	l.outage.RequestFailed(l.Clock, l.Limit)
}

// PauseAfterAnswer pauses after an answer that leaves something to do. It returns Pause's error.
func (l *RetryLoop) PauseAfterAnswer(ctx context.Context) error {
	l.outage.RequestAnswered()
	return l.pause(ctx)
}

// PauseAfterFailure pauses after a request without an answer, and returns nil if the request is to be
// sent again. Otherwise it returns the error with which the call ends: err, if ctx has ended or the limit
// is reached, or else Pause's. sent says that the store may have received the request.
func (l *RetryLoop) PauseAfterFailure(ctx context.Context, err error, sent bool) error {
	l.Uncertain = l.Uncertain || sent
	if l.outage.RequestFailed(l.Clock, l.Limit) || ctx.Err() != nil {
		return err
	}
	return l.pause(ctx)
}

func (l *RetryLoop) pause(ctx context.Context) error {
	tries := l.tries
	l.tries++
	return l.Pause(ctx, tries)
}
