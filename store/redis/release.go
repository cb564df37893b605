package redis

import (
	"cmp"
	"context"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// Release gives a plain mutex back in one round trip; where there is a line, the next in it is called in the same step.
func (s *Store) Release(ctx context.Context, c driver.Claim, ref string) error {
	id := cmp.Or(c.ID, idOf(ref))
	switch {
	case c.ID != "" && ref != "" && c.ID != idOf(ref):
		return &driver.LossError{Loss: driver.LossGone} // no claim is both
	case id == "":
		return &driver.LossError{Loss: driver.LossGone}
	}
	if err := s.learn(ctx); err != nil {
		return err
	}
	lock := s.keys.lock(c.Name)
	bar := ""
	if s.landing(id) {
		bar = "1"
	}
	p := s.patient(max(c.TTL, driver.MinTTL))
	p.untimed = true
	var m rueidis.RedisMessage
	var err error
	asked := false
	switch {
	case s.steps.leave == nil:
		m, _, err = p.run(ctx, s.steps.free, []string{lock, s.steps.record(lock)}, []string{id, s.publish(), s.steps.tells(lock), bar})
		asked = true
	case c.Kind == driver.KindMutex && !c.Fair && bar == "":
		m, _, err = p.run(ctx, s.steps.free, []string{lock, s.steps.record(lock)}, []string{id, s.publish()})
		asked = err != nil || num(m) != codeAskLine
	}
	if !asked {
		keys := s.keys.all(c.Name)
		var args lineArgs
		m, _, err = p.run(ctx, s.steps.leave, keys[:], args.of(s, id, bar))
	}
	if err == nil && bar != "" {
		s.landed(id)
	}
	switch {
	case err != nil:
		return err
	case num(m) == 1:
		return nil
	}
	return p.gone()
}

// gone is the outcome of a removal that found nothing: done by an earlier request of this call, perhaps; else it ended
// before.
func (p *patient) gone() error {
	if p.unknown {
		return nil
	}
	return &driver.LossError{Loss: driver.LossGone}
}
