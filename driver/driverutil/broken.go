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
