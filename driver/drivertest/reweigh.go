package drivertest

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// reweigh asks the store for another weight.
func (c *client) reweigh(g driver.Grant, weight int64) error {
	err := c.e.again(c.e.ctx, func() error { return c.store.(driver.WeightChanger).SetWeight(c.e.ctx, g, weight) })
	c.e.soundError(c.e.ctx, err)
	return err
}

// reweighs gives a grant another weight, which must be possible.
func (c *client) reweighs(g driver.Grant, weight int64) driver.Grant {
	if err := c.reweigh(g, weight); err != nil {
		c.e.while(g, func() {
			c.e.failf("changing the weight of token %d of %q from %d to %d: %w", g.Token, g.Name, g.Weight, weight, err)
		})
	}
	g.Weight = weight
	return g
}

// reweighing skips the case where the store cannot do it.
func (e *Env) reweighing() {
	s, ok := e.a().store.(driver.WeightChanger)
	if ok { // an engine can, and its store not
		ok = !errors.Is(s.SetWeight(e.ctx, driver.Grant{Claim: e.reader(e.lock("nobody's"))}, 1), driver.ErrUnsupported)
	}
	if !ok {
		e.skip("the store is no Reweigher; leases stay what they are")
	}
}

var reweighCases = []Case{
	readWrite.promise("downgrade", "A writer becomes a reader in one step, under its token: readers that wait next in line are let in beside it, and no other writer is.", func(e *Env) {
		e.reweighing()
		name := e.lock("readers-next")
		g := e.a().try(e.writer(name))
		reader := e.b().queue(e.reader(name)).stands()
		writer := e.c().queue(e.writer(name)).stands()
		g = e.a().reweighs(g, 1)
		reader.granted()
		writer.stays(50 * time.Millisecond)
		g = e.a().reweighs(e.a().renew(g), 1) // asked again after a lost answer
		e.a().release(g)
		writer.stays(50 * time.Millisecond)
		e.b().release(reader.grant)
		e.rises(g.Token, writer.granted().Token)

		name = e.lock("writer-next")
		g = e.a().try(e.writer(name))
		writer = e.c().queue(e.writer(name)).stands()
		reader = e.b().queue(e.reader(name)).stands()
		g = e.a().reweighs(g, 1)
		writer.stays(50 * time.Millisecond)
		reader.stays(0)
		e.held(g)
		e.a().release(g)
		e.rises(g.Token, writer.granted().Token)
		e.c().reweighs(writer.grant, 1)
		reader.granted()
	}),
	readWrite.promise("upgrade", "A lone reader becomes a writer under its token, before all that wait behind it; beside another holder it is refused at once, and stays a reader.", func(e *Env) {
		e.reweighing()
		name := e.lock("rw")
		g, beside := e.a().try(e.reader(name)), e.b().try(e.reader(name))
		start := e.now()
		e.wants(e.a().reweigh(g, g.Limit), driver.ErrHeld, "making a writer of a reader beside another")
		e.soon(start, e.slack, "the refusal")
		e.d().release(e.d().try(e.reader(name)))
		e.b().release(beside)
		waiting := e.c().queue(e.writer(name)).stands()
		g = e.a().reweighs(g, g.Limit)
		g = e.a().reweighs(g, g.Limit) // asked again after a lost answer
		e.held(g)
		e.d().held(e.reader(name))
		waiting.stays(50 * time.Millisecond)
		e.a().release(e.a().renew(g))
		e.rises(g.Token, waiting.granted().Token)
	}),
	readWrite.promise("reweigh-lost", "The weight of a grant that has ended cannot be changed, and the grant does not come back by it.", func(e *Env) {
		e.reweighing()
		g := e.a().try(e.reader(e.lock("rw")))
		e.a().release(g)
		for _, weight := range []int64{1, g.Limit} {
			if err := e.a().reweigh(g, weight); lossOf(err) == "" {
				e.failf("changing the weight of a released claim: got %s, want a *LossError", show(err))
			}
		}
		e.empty(g.Name, 0)
	}),
}
