package drivertest

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// setWeight changes the weight of a grant, and returns the store's error.
func (c *client) setWeight(g driver.Grant, weight int64) error {
	err := c.e.retryIfLossy(c.e.ctx,
		func() error { return c.store.SetWeight(c.e.ctx, g, weight) })
	c.e.checkError(c.e.ctx, err)
	return err
}

// mustSetWeight changes the weight of a grant, which must succeed.
func (c *client) mustSetWeight(g driver.Grant, weight int64) driver.Grant {
	if err := c.setWeight(g, weight); err != nil {
		c.e.whileGranted(g, func() {
			c.e.failf("changing the weight of token %d of %q from %d to %d: %w", g.Token, g.Name, g.Weight, weight, err)
		})
	}
	g.Weight = weight
	return g
}

// needSetWeight skips the case if the store cannot change weights.
func (e *Env) needSetWeight() {
	if !e.info.Abilities.SetWeight {
		e.skip("the store cannot change weights")
	}
}

var setWeightCases = []Case{
	rwFeature.newCase("downgrade", "A writer becomes a reader in one step and keeps its token. The readers that "+
		"are next in the queue are granted, and no other writer is.", func(e *Env) {
		e.needSetWeight()
		name := e.lockName("readers-next")
		g := e.a().mustTry(e.writerClaim(name))
		reader := e.b().startWaiting(e.readerClaim(name)).requireQueued()
		writer := e.c().startWaiting(e.writerClaim(name)).requireQueued()
		g = e.a().mustSetWeight(g, 1)
		reader.mustBeGranted()
		writer.requireWaiting(50 * time.Millisecond)
		g = e.a().mustSetWeight(e.a().mustRenew(g), 1) // as a client does after a lost reply
		e.a().mustRelease(g)
		writer.requireWaiting(50 * time.Millisecond)
		e.b().mustRelease(reader.grant)
		e.requireRising(g.Token, writer.mustBeGranted().Token)

		name = e.lockName("writer-next")
		g = e.a().mustTry(e.writerClaim(name))
		writer = e.c().startWaiting(e.writerClaim(name)).requireQueued()
		reader = e.b().startWaiting(e.readerClaim(name)).requireQueued()
		g = e.a().mustSetWeight(g, 1)
		writer.requireWaiting(50 * time.Millisecond)
		reader.requireWaiting(0)
		e.requireHolder(g)
		e.a().mustRelease(g)
		e.requireRising(g.Token, writer.mustBeGranted().Token)
		e.c().mustSetWeight(writer.grant, 1)
		reader.mustBeGranted()
	}),
	rwFeature.newCase("upgrade", "A reader that holds the lock alone becomes a writer and keeps its token, ahead of "+
		"all waiting claims. If there is another holder, the upgrade is refused at once, and the claim "+
		"remains a reader.", func(e *Env) {
		e.needSetWeight()
		name := e.lockName("rw")
		g, beside := e.a().mustTry(e.readerClaim(name)), e.b().mustTry(e.readerClaim(name))
		start := e.now()
		e.requireError(e.a().setWeight(g, g.Limit), driver.ErrHeld, "making a writer of a reader next to another")
		e.requireWithin(start, e.slack, "the refusal")
		e.d().mustRelease(e.d().mustTry(e.readerClaim(name)))
		e.b().mustRelease(beside)
		waiting := e.c().startWaiting(e.writerClaim(name)).requireQueued()
		g = e.a().mustSetWeight(g, g.Limit)
		g = e.a().mustSetWeight(g, g.Limit) // as a client does after a lost reply
		e.requireHolder(g)
		e.d().mustBeHeld(e.readerClaim(name))
		waiting.requireWaiting(50 * time.Millisecond)
		e.a().mustRelease(e.a().mustRenew(g))
		e.requireRising(g.Token, waiting.mustBeGranted().Token)
	}),
	rwFeature.newCase("set-weight-lost", "The weight of a claim that has ended cannot be changed, and the attempt "+
		"does not restore the claim.", func(e *Env) {
		e.needSetWeight()
		g := e.a().mustTry(e.readerClaim(e.lockName("rw")))
		e.a().mustRelease(g)
		for _, weight := range []int64{1, g.Limit} {
			if err := e.a().setWeight(g, weight); causeOf(err) == "" {
				e.failf("changing the weight of a released claim: got %s, want a *LossError", describeError(err))
			}
		}
		e.requireEmpty(g.Name, 0)
	}),
}
