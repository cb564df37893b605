package driverutil

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// CheckTokenFloor implements driver.Store.RaiseToken where tokens are made from the store's clock and cannot be
// raised: for all locks of a store at once, and for layouts that have no room for a token. It returns nil if all tokens
// to come are large enough already.
func CheckTokenFloor(ctx context.Context, store driver.Store, atLeast int64) error {
	floor, err := store.ReadTokenFloor(ctx)
	if err != nil || floor.Token >= atLeast {
		return err
	}
	ahead := time.Duration(atLeast-floor.Token) * time.Microsecond
	return fmt.Errorf("%w: these tokens are made from the store's clock, which reaches %d in %v; until then, keep those "+
		"who write to the resource stopped", driver.ErrUnsupported, atLeast, ahead.Round(time.Second))
}
