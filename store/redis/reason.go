package redis

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// maxReasonTime is how long a client that has learned of a break asks for the reason. It knows already what it has
// lost, so it waits no longer for the rest.
const maxReasonTime = 2 * time.Second

// isBroken reports whether an error says that an operator broke a claim, and not why.
func isBroken(err error) bool {
	var loss *driver.LossError
	return errors.As(err, &loss) && loss.Cause == driver.LossBroken && loss.Err == nil
}

// mayHaveReason reports whether addReason would ask the server.
func (s *store) mayHaveReason(err error) bool { return s.opts.Layout == LayoutPlain && isBroken(err) }

// addReason returns the loss with the operator's reason, if err says that the claim was broken, and the server answers
// in time and has a reason. Any other error is returned as it is. The scripts do not reply with the reason, because
// then they would have to look for it.
func (s *store) addReason(ctx context.Context, name, id string, err error) error {
	if !s.mayHaveReason(err) {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, maxReasonTime)
	defer cancel()
	return withReason(err, s.readReason(bounded, name, id))
}

// withReason is the loss of a broken claim, with the operator's reason, which may be empty.
func withReason(err error, reason string) error {
	var loss *driver.LossError
	if errors.As(err, &loss) && loss.StaysHeld {
		return driverutil.MarkedError(reason)
	}
	return driverutil.BrokenError(reason)
}

// readReason returns why a claim was broken, or "" if that is not known: see shared/notes.lua.
func (s *store) readReason(ctx context.Context, name, id string) string {
	// A client of the user's may send commands that only read to replicas, which may not have the reason yet.
	// A command that is made like this does not count as one.
	get := s.client.B().Arbitrary("HGET").Keys(s.scripts.recordKey(s.keys.lockKey(name))).Args("=" + id).Build()
	value, err := runAsync(ctx, s, func() (string, error) { return s.client.Do(ctx, get).ToString() })
	if err != nil {
		return ""
	}
	_, reason, _ := strings.Cut(value, " ")
	return reason
}

// addReason is as that of a store. It asks all servers, and takes the first reason that comes.
func (r *redlockStore) addReason(ctx context.Context, name, id string, err error) error {
	if !isBroken(err) {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, maxReasonTime)
	defer cancel()
	reasons := make(chan string, len(r.servers))
	for _, s := range r.servers {
		if !r.life.Go(func() { reasons <- s.readReason(bounded, name, id) }) {
			return err
		}
	}
	for range r.servers {
		if reason := <-reasons; reason != "" {
			return withReason(err, reason)
		}
	}
	return err
}
