package driverutil

import (
	"errors"

	"github.com/holdfast-go/holdfast/driver"
)

// BrokenError is the loss of a claim that an operator broke. The reason is what the operator said, for people, and may
// be empty.
func BrokenError(reason string) *driver.LossError {
	loss := &driver.LossError{Cause: driver.LossBroken}
	if reason != "" {
		loss.Err = errors.New(reason)
	}
	return loss
}

// MarkedError is BrokenError for a claim that is only marked as broken: it is still in the store, and keeps others out
// until its TTL has passed.
func MarkedError(reason string) *driver.LossError {
	loss := BrokenError(reason)
	loss.StaysHeld = true
	return loss
}
