package drivertest

import (
	"sync"
	"sync/atomic"
	"time"
)

var rwCases = []Case{
	readWrite.promise("readers-share", "Readers hold a lock side by side, and a writer holds it alone: it waits for the last of them.", func(e *Env) {
		name := e.lock("rw")
		r1, r2, r3 := e.a().try(e.reader(name)), e.b().try(e.reader(name)), e.a().try(e.reader(name))
		e.c().held(e.writer(name))
		w := e.c().queue(e.writer(name)).stands()
		e.a().release(r1)
		w.stays(50 * time.Millisecond)
		e.b().release(r2)
		w.stays(50 * time.Millisecond)
		e.a().release(r3)
		w.granted()
		e.held(w.grant)
		e.a().held(e.reader(name))
		e.b().held(e.writer(name))
		e.c().release(w.grant)
		e.a().try(e.reader(name))
	}),
	readWrite.promise("reader-behind-writer", "A reader that comes after a waiting writer waits behind it, and a try to read is refused.", func(e *Env) {
		name := e.lock("rw")
		first := e.a().try(e.reader(name))
		writer := e.b().queue(e.writer(name)).stands()
		late := e.c().queue(e.reader(name)).stands()
		other := e.d().queue(e.reader(name)).stands()
		e.c().held(e.reader(name))
		late.stays(50 * time.Millisecond)
		e.a().release(first)
		writer.granted()
		late.stays(50 * time.Millisecond)
		e.b().release(writer.grant)
		late.granted()
		other.granted() // both at once: neither has released
	}),
	readWrite.promise("writer-gets-in", "A writer gets in however many readers come and go.", func(e *Env) {
		name := e.lock("rw")
		var stop atomic.Bool
		defer stop.Store(true)
		var coming sync.WaitGroup
		for i := range 3 {
			c := e.client(i)
			coming.Add(1)
			e.start(func() {
				defer coming.Done()
				e.sleep(time.Duration(i) * 7 * time.Millisecond)
				for !stop.Load() && e.ctx.Err() == nil {
					g, err := c.acquire(e.ctx, e.waits(e.reader(name)))
					if err != nil {
						return // the case is over
					}
					time.Sleep(20 * time.Millisecond)
					c.release(g)
				}
			})
		}
		for range 3 {
			e.sleep(50 * time.Millisecond)
			w := e.d().queue(e.writer(name))
			w.grantedWithin(2 * e.slack)
			e.held(w.grant)
			e.d().release(w.grant)
		}
		stop.Store(true)
		coming.Wait() // each gives back what it has
	}),
	readWrite.promise("rw-contended", "However many readers and writers contend, no reader sees half of what a writer does.", func(e *Env) {
		name := e.lock("rw")
		var one, two, readers, most, todo atomic.Int64
		todo.Store(int64(e.times(60)))
		e.together(2*sharedClients, func(i int) {
			c := e.client(i)
			for k := todo.Add(-1); k >= 0; k = todo.Add(-1) {
				if i%4 == 0 {
					g := c.lock(e.writer(name))
					v := one.Load() + 1
					one.Store(v)
					e.sleep(200 * time.Microsecond)
					two.Store(v)
					c.release(g)
					continue
				}
				g := c.lock(e.reader(name))
				most.Store(max(most.Load(), readers.Add(1)))
				if a, b := one.Load(), two.Load(); a != b {
					e.failf("a reader sees %d and %d", a, b)
				}
				e.sleep(200 * time.Microsecond)
				readers.Add(-1)
				c.release(g)
			}
		})
		e.log("up to %d readers at a time", most.Load())
		e.empty(name, 0)
	}),
	readWrite.promise("dead-reader", "A reader that falls silent keeps a writer out until its TTL is over, and not longer; a reader beside it keeps its place.", func(e *Env) {
		dead := e.open()
		g := dead.try(e.short(e.reader(e.lock("alone"))))
		w := e.b().queue(e.writer(g.Name)).stands()
		beside := dead.try(e.short(e.reader(e.lock("beside"))))
		living := e.a().try(e.reader(beside.Name))
		wb := e.c().queue(e.writer(beside.Name)).stands()
		w.grantedWithin(e.latest(g.GrantedTTL))
		e.notEarly(g, w.returned)
		e.sleepUntil(beside.Since, e.latest(beside.GrantedTTL))
		e.a().renew(living)
		wb.stays(0)
		e.a().release(living)
		wb.granted()
	}),
}
