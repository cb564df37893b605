package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

const (
	// defaultStoreWait outlasts the restart of a server or of a network connection, and is short enough for a user who
	// has named the wrong server.
	defaultStoreWait = 10 * time.Second
	// firstOpenTime is what the first attempt to open a store may take. Some stores try again by themselves until an
	// attempt ends, and the user should soon learn that it is the store that is waited for.
	firstOpenTime = 2 * time.Second
	// laterOpenTime is what later attempts may take if there is no limit: a store may be slow to open.
	laterOpenTime = 10 * time.Second
)

// storeWaitFlag is --store-wait: how long a store that cannot be reached at the start is tried again.
type storeWaitFlag struct{ storeWait waitLimit }

func (f *storeWaitFlag) addStoreWaitFlag(c *cobra.Command) {
	f.storeWait = waitLimit{limited: true, limit: defaultStoreWait}
	c.Flags().Var(&f.storeWait, "store-wait",
		"at the start, retry a store that is down: for a `duration`, or forever")
}

// storeWaitLimit is how long to try. --wait bounds all waiting, for the store and for the lock. So a caller who waits
// for longer than the default for the lock also waits for longer for the store, unless --store-wait is given.
func (f *storeWaitFlag) storeWaitLimit(c *cobra.Command, wait waitLimit) waitLimit {
	switch {
	case !wait.limited || wait.limit == 0: // --wait 0 is about a lock that is held
		return f.storeWait
	case !c.Flags().Changed("store-wait"), !f.storeWait.limited, wait.limit < f.storeWait.limit:
		return wait
	}
	return f.storeWait
}

// openPatiently opens a store that is about to be used for a name. It tries again for as long as limit says, with one
// message, unless the error is one that another attempt cannot mend, such as wrong credentials.
func openPatiently(
	ctx context.Context, flag, name string, limit waitLimit, messages messageFlags,
) (driver.Store, error) {
	return openAgain(ctx, limit, messages, func(ctx context.Context, timeout time.Duration) (driver.Store, error) {
		return openReachable(ctx, flag, name, timeout)
	})
}

// openAgain calls open until it succeeds, limit has passed, or an error comes that will not pass.
func openAgain(
	ctx context.Context, limit waitLimit, messages messageFlags,
	open func(ctx context.Context, timeout time.Duration) (driver.Store, error),
) (driver.Store, error) {
	began := time.Now()
	timeout, told := firstOpenTime, false
	for pauses := (acquire.Pauses{}); ; {
		store, err := open(ctx, timeout)
		left := limit.limit - time.Since(began)
		if err == nil || !mayPass(err) || ctx.Err() != nil || limit.limited && left <= 0 {
			return store, err
		}
		if !told {
			told = true
			what := "the store cannot be reached now"
			if findLocalFault(err) != nil {
				what = "the store cannot be opened now"
			}
			text := fmt.Sprintf("%s; trying again %s: %s", what, limit.describe(), errorText(err))
			messages.printNotice("%s%s", text, storeNote(text))
		}
		wait := pauses.Next()
		timeout = laterOpenTime
		if limit.limited {
			wait = min(wait, left)
			timeout = max(left-wait, firstOpenTime)
		}
		if err := sleepContext(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// describe is the limit in a sentence.
func (p *waitLimit) describe() string {
	if !p.limited {
		return "until it can"
	}
	return fmt.Sprintf("for up to %v", p.limit)
}

// openReachable makes one attempt to open a store, and to reach its servers.
func openReachable(ctx context.Context, flag, name string, timeout time.Duration) (driver.Store, error) {
	attempt, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	store, err := openDriver(attempt, flag)
	if err == nil && isOpenedUnreached(store) {
		if err = readBriefly(ctx, store, name); err != nil {
			_ = runWithTimeout(closeTimeout, store.Close)
			store, err = nil, storeError(&openError{&holdfast.Error{Op: "open", Err: err}})
		}
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, storeError(&openError{&holdfast.Error{Op: "open", Err: noAnswerError(err)}})
	}
	return store, err
}

// isOpenedUnreached reports whether opening the store has sent nothing, so that only its first use shows whether its
// servers can be reached.
func isOpenedUnreached(store driver.Store) bool {
	name := store.Info().Store
	return strings.HasPrefix(name, "consul:") || strings.HasPrefix(name, "etcd:") ||
		strings.HasPrefix(name, "zookeeper:")
}

// readBriefly reads a lock. It returns an error only if the servers cannot be reached: others are those of the acquire
// that follows, which has better words for them.
func readBriefly(ctx context.Context, store driver.Store, name string) error {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	switch _, err := store.Inspect(ctx, name); {
	case err == nil || !mayPass(err):
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return noAnswerError(err)
	default:
		return err
	}
}

// noAnswerError is errNoAnswer with what else the error of a deadline says.
func noAnswerError(err error) error {
	const deadline = "context deadline exceeded"
	if why := strings.ReplaceAll(err.Error(), deadline+": ", ""); why != deadline {
		return fmt.Errorf("%w: %s", errNoAnswer, strings.ReplaceAll(why, ": "+deadline, ""))
	}
	return errNoAnswer
}

// mayPass reports whether an error may be gone when the store is tried again.
func mayPass(err error) bool {
	var exit *exitError
	if fault := findLocalFault(err); fault != nil {
		return fault.passes
	}
	return !driverutil.IsFinal(err) && (!errors.As(err, &exit) || exit.code == exitUnavailable)
}
