package drivertest

import (
	"sync"
	"sync/atomic"
	"time"
)

var rwCases = []Case{
	rwFeature.newCase("readers-share", "Readers hold a lock together, and a writer holds it alone: it waits for "+
		"the last of them.", func(e *Env) {
		name := e.lockName("rw")
		r1, r2 := e.a().mustTry(e.readerClaim(name)), e.b().mustTry(e.readerClaim(name))
		r3 := e.a().mustTry(e.readerClaim(name))
		e.c().mustBeHeld(e.writerClaim(name))
		w := e.c().startWaiting(e.writerClaim(name)).requireQueued()
		e.a().mustRelease(r1)
		w.requireWaiting(50 * time.Millisecond)
		e.b().mustRelease(r2)
		w.requireWaiting(50 * time.Millisecond)
		e.a().mustRelease(r3)
		w.mustBeGranted()
		e.requireHolder(w.grant)
		e.a().mustBeHeld(e.readerClaim(name))
		e.b().mustBeHeld(e.writerClaim(name))
		e.c().mustRelease(w.grant)
		e.a().mustTry(e.readerClaim(name))
	}),
	rwFeature.newCase("reader-behind-writer", "A reader that comes after a waiting writer waits behind it, and a "+
		"try to read is refused.", func(e *Env) {
		name := e.lockName("rw")
		first := e.a().mustTry(e.readerClaim(name))
		writer := e.b().startWaiting(e.writerClaim(name)).requireQueued()
		late := e.c().startWaiting(e.readerClaim(name)).requireQueued()
		other := e.d().startWaiting(e.readerClaim(name)).requireQueued()
		e.c().mustBeHeld(e.readerClaim(name))
		late.requireWaiting(50 * time.Millisecond)
		e.a().mustRelease(first)
		writer.mustBeGranted()
		late.requireWaiting(50 * time.Millisecond)
		e.b().mustRelease(writer.grant)
		late.mustBeGranted()
		other.mustBeGranted() // both at once: neither has released
	}),
	rwFeature.newCase("writer-not-starved", "A writer is granted the lock however many readers come and go.",
		func(e *Env) {
			name := e.lockName("rw")
			var stop atomic.Bool
			defer stop.Store(true)
			var coming sync.WaitGroup
			for i := range 3 {
				c := e.client(i)
				coming.Add(1)
				e.runInBackground(func() {
					defer coming.Done()
					e.sleep(time.Duration(i) * 7 * time.Millisecond)
					for !stop.Load() && e.ctx.Err() == nil {
						g, err := c.acquire(e.ctx, e.waitingClaim(e.readerClaim(name)))
						if err != nil {
							return // the case has ended
						}
						time.Sleep(20 * time.Millisecond)
						c.mustRelease(g)
					}
				})
			}
			for range 3 {
				e.sleep(50 * time.Millisecond)
				w := e.d().startWaiting(e.writerClaim(name))
				w.mustBeGrantedWithin(2 * e.slack)
				e.requireHolder(w.grant)
				e.d().mustRelease(w.grant)
			}
			stop.Store(true)
			coming.Wait() // each releases its claim
		}),
	rwFeature.newCase("rw-contended", "However many readers and writers contend, no reader sees a writer's update "+
		"half done.", func(e *Env) {
		name := e.lockName("rw")
		var one, two, readers, maxReaders, todo atomic.Int64
		todo.Store(int64(e.scaleEffort(60)))
		e.runConcurrently(2*sharedClients, func(i int) {
			c := e.client(i)
			for k := todo.Add(-1); k >= 0; k = todo.Add(-1) {
				if i%4 == 0 {
					g := c.mustAcquire(e.writerClaim(name))
					v := one.Load() + 1
					one.Store(v)
					e.sleep(200 * time.Microsecond)
					two.Store(v)
					c.mustRelease(g)
					continue
				}
				g := c.mustAcquire(e.readerClaim(name))
				maxReaders.Store(max(maxReaders.Load(), readers.Add(1)))
				if a, b := one.Load(), two.Load(); a != b {
					e.failf("a reader sees %d and %d", a, b)
				}
				e.sleep(200 * time.Microsecond)
				readers.Add(-1)
				c.mustRelease(g)
			}
		})
		e.logRemark("up to %d readers at a time", maxReaders.Load())
		e.requireEmpty(name, 0)
	}),
	rwFeature.newCase("dead-reader", "A reader that stops renewing blocks a writer until its TTL has passed, and "+
		"no longer. Another reader keeps its claim.", func(e *Env) {
		dead := e.openClient()
		g := dead.mustTry(e.withMinTTL(e.readerClaim(e.lockName("alone"))))
		var w *waitingCall
		e.whileGranted(g, func() { w = e.b().startWaiting(e.writerClaim(g.Name)).requireQueued() })
		beside := dead.mustTry(e.withMinTTL(e.readerClaim(e.lockName("beside"))))
		living := e.a().mustTry(e.readerClaim(beside.Name))
		wb := e.c().startWaiting(e.writerClaim(beside.Name)).requireQueued()
		w.mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
		e.requireNotEarly(g, w.returned)
		e.sleepUntil(beside.Since, e.latestExpiry(beside.GrantedTTL))
		e.a().mustRenew(living)
		wb.requireWaiting(0)
		e.a().mustRelease(living)
		wb.mustBeGranted()
	}),
}
