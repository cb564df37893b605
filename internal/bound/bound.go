// Package bound gives up requests that hang.
package bound

import (
	"context"
	"fmt"
	"time"
)

// Ask makes one request of a store and gives it up after d, so that it can be asked anew, or its outcome looked up. The error is
// the context's only if that has ended: a time-out of ours must not look like the caller's.
func Ask(ctx context.Context, d time.Duration, store string, request func(context.Context) error) error {
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := request(short)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("no answer from %s: %v", store, err)
	}
	return err
}
