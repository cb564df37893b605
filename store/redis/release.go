package redis

import (
	"cmp"
	"context"

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
	if c.Kind == driver.KindMutex && !c.Fair || s.steps.leave == nil {
		m, _, err := p.run(ctx, s.steps.free, []string{lock, s.steps.record(lock)}, []string{id, s.publish(), s.steps.tells(lock), bar})
		if err != nil {
			return err
		}
		if code := num(m); code != codeAskLine {
			if bar != "" {
				s.landed(id)
			}
			if code == 1 {
				return nil
			}
			return p.gone()
		}
	}
	keys := s.keys.all(c.Name)
	m, _, err := p.run(ctx, s.steps.leave, keys[:], append(s.lineArgs(&keys, 2), id, bar))
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
