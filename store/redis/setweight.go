package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// setWeightScript is the same for all stores: only the plain layout has weights.
var setWeightScript = loadScript("set_weight.lua")

// SetWeight runs one script. The redisson layout has no weights.
// Changes are numbered, because requests on several connections may arrive in another order than they were sent, and a
// retry may arrive after the next change. The script refuses a change that arrives after a later one, so that the
// weight is always that of the last change.
func (s *store) SetWeight(ctx context.Context, g driver.Grant, weight int64) error {
	switch {
	case s.opts.Layout == LayoutRedisson:
		return driverutil.OnlyUnfairMutexes(LayoutRedisson)
	case g.Kind == driver.KindSemaphore: // its holder would not learn which permits it then has
		return driverutil.RefuseSemaphoreWeight()
	case weight < 1 || g.Limit > 0 && weight > g.Limit:
		return fmt.Errorf("%w: a weight must be 1 to the limit of %d, not %d", driver.ErrInvalid, g.Limit, weight)
	}
	if err := s.ensureChannelsKnown(ctx); err != nil {
		return err
	}
	keys := s.keys.allKeys(g.Name)
	p := s.newRetryLoop(g.GrantedTTL)
	m, _, err := p.run(ctx, setWeightScript, keys[:],
		new(queueArgs).fill(s, renewID(&g), strconv.FormatInt(g.Token, 10),
			strconv.FormatInt(weight, 10), strconv.FormatInt(s.lastChange.Add(1), 10)))
	if err != nil {
		return err
	}
	a, ok := readArray(m, 1)
	if !ok {
		return corruptReply(g.Name)
	}
	switch code := readNumber(a[0]); {
	case code == weightDone && weight > g.Weight: // less need not be confirmed: the client believes in less already
		return s.confirmChange(ctx, &g)
	case code == weightDone:
		return nil
	case code == replyHeld && len(a) >= 4:
		return &driver.HeldError{Holders: readHolders(a[4:]), Waiting: int(readNumber(a[2]))}
	case code == weightGone:
		return &driver.LossError{Cause: driver.LossGone}
	case code == weightTaken:
		return &driver.LossError{Cause: driver.LossTaken}
	case code == weightBroken:
		return s.addReason(ctx, g.Name, renewID(&g), &driver.LossError{Cause: driver.LossBroken})
	case code == weightLate: // another call for the same grant, made after this one, was faster
		return driverutil.Uncertain(errors.New("a later change of the weight came first"))
	}
	return corruptReply(g.Name)
}
