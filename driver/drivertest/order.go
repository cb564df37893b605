package drivertest

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var orderCases = []Case{
	order.promise("first-come-first-served", "Claims that stand in line are granted in the order of their arrival, whichever clients they come from.", func(e *Env) {
		e.firstCome(func(name string) driver.Claim { return e.fair(name) })
		if e.info.NativeQueue {
			e.firstCome(func(name string) driver.Claim { return e.mutex(name) })
		}
	}),
	order.promise("late-come-never-first", "A lock that changes hands again and again is never granted to a newcomer before one who waited already.", func(e *Env) {
		name := e.lock("line")
		g, holder := e.a().try(e.mutex(name)), e.a()
		next := e.b().queue(e.fair(name)).stands()
		for i := range e.times(15) {
			newcomer := e.client(i + 2)
			_ = newcomer.held(e.mutex(name))
			late := newcomer.queue(e.fair(name)).stands()
			holder.release(g)
			g, holder = next.granted(), next.c
			late.stays(0)
			next = late
		}
	}),
}

// firstCome lets claims come one after the other, and looks whether they are granted so.
func (e *Env) firstCome(claim func(name string) driver.Claim) {
	name := e.lock("line")
	g, holder := e.a().try(e.mutex(name)), e.a()
	var line []*waiting
	var owners []string
	for i := range min(8, e.info.MaxWaiters) {
		w := e.client(i * 3).queue(claim(name)).stands()
		line, owners = append(line, w), append(owners, w.claim.Owner)
	}
	var shown []string
	for _, s := range e.a().inspect(name).Waiters {
		shown = append(shown, s.Owner)
	}
	if !slices.Equal(shown, owners) {
		e.failf("they came as %q, and stand in line as %q", owners, shown)
	}
	tokens := []int64{g.Token}
	for i, w := range line {
		holder.release(g)
		g, holder = w.granted(), w.c
		tokens = append(tokens, g.Token)
		for _, behind := range line[i+1:] {
			behind.stays(time.Millisecond)
		}
	}
	holder.release(g)
	e.rises(tokens...)
	e.empty(name, 0)
}
