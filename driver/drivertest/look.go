package drivertest

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var lookCases = []Case{
	promise("inspect-idle", "A lock on which nothing stands is shown as such, without an error, and looking leaves no trace.", func(e *Env) {
		never, was := e.lock("never"), e.lock("was")
		e.a().release(e.a().try(e.mutex(was)))
		for _, name := range []string{never, was, never} {
			l := e.b().inspect(name)
			if l.Name != name || l.Kind != "" || l.Limit != 0 || len(l.Holders)+len(l.Waiters) != 0 {
				e.failf("%q is idle, and shown as %+v", name, l)
			}
		}
		if got := e.c().list(e.prefix); len(got) != 0 {
			e.failf("idle locks are listed: %q", got)
		}
	}),
	promise("inspect", "Inspect shows who holds a lock and who waits for it, in order, each with owner, note, weight, token, TTL and times.", func(e *Env) {
		cl := e.mutex(e.lock("m"))
		cl.Meta = "why"
		g := e.a().try(cl)
		h := e.held(g)
		e.shows(h, g.Claim, g.Token)
		if h.TTL != 0 && h.TTL < cl.TTL {
			e.failf("shown with a TTL of %v, granted with %v", h.TTL, g.GrantedTTL)
		}
		var line []*waiting
		for i := range 3 {
			if e.standsInLine(e.lined(g.Name)) {
				line = append(line, e.client(i+1).queue(e.lined(g.Name)).stands())
			}
		}
		l := e.b().inspect(g.Name)
		if l.Name != g.Name || l.Kind != g.Kind || l.Limit != g.Limit || len(l.Holders) != 1 || len(l.Waiters) != len(line) {
			e.failf("held as %s of %d with %d in line, and shown as %s of %d: %s", g.Kind, g.Limit, len(line), l.Kind, l.Limit, tell(l))
		}
		refs := []string{l.Holders[0].Ref}
		for i, s := range l.Waiters {
			e.shows(s, line[i].claim, 0)
			if slices.Contains(refs, s.Ref) {
				e.failf("two claims have the ref %q", s.Ref)
			}
			refs = append(refs, s.Ref)
		}
	}),
	semaphore.promise("inspect-holders", "Of a lock with several holders each is shown, with its own weight and token.", func(e *Env) {
		name := e.lock("s")
		tokens := map[int64]int64{}
		for _, w := range []int64{1, 2, 3} {
			g := e.a().try(e.permits(name, 9, w))
			tokens[g.Token] = w
		}
		l := e.b().inspect(name)
		for _, h := range l.Holders {
			if tokens[h.Token] != h.Weight {
				e.failf("token %d was granted to a weight of %d, and is shown with %d", h.Token, tokens[h.Token], h.Weight)
			}
		}
		if len(l.Holders) != 3 {
			e.failf("three hold it, but %s", tell(l))
		}
	}),
	promise("inspect-silent", "A claim whose TTL is over is not shown for ever: once it cannot hold anybody up it is gone.", func(e *Env) {
		dead := e.open()
		g := dead.try(e.short(e.mutex(e.lock("m"))))
		if e.info.ExpiryClock == driver.ExpiryClockObserver { // it needs one who has watched
			e.a().queue(e.mutex(g.Name)).grantedWithin(e.latest(g.GrantedTTL))
		}
		e.until(e.latest(g.GrantedTTL), func() bool { return !slices.Contains(owners(e.b().inspect(g.Name).Holders), g.Owner) }, "it is shown still")
		if after := e.passed(g); after < g.GrantedTTL {
			e.failf("it was gone after %v of %v", after, g.GrantedTTL)
		}
	}),
	promise("revision", "Whenever other claims stand on a lock than before, its revision is another one.", func(e *Env) {
		name := e.lock("m")
		var seen []string
		look := func(what string) {
			r := e.b().inspect(name).Revision
			if slices.Contains(seen, r) {
				e.failf("after %s the revision is %q, as it was before: %q", what, r, seen)
			}
			seen = append(seen, r)
		}
		g := e.a().try(e.mutex(name))
		look("a grant")
		if e.standsInLine(e.lined(name)) {
			w := e.b().queue(e.lined(name)).stands()
			look("a claim's coming into line")
			w.leaves()
		}
		e.a().release(g)
		look("a release")
		e.a().try(e.mutex(name))
		look("another grant")
	}),
	promise("list", "A listing shows exactly the locks on which claims stand, each as Inspect would, and may be left at any point.", func(e *Env) {
		var names []string
		for _, n := range []string{"a", "b", "c", "d"} {
			names = append(names, e.lock("list/"+n))
		}
		other := e.a().try(e.mutex(e.lock("other")))
		var gs []driver.Grant
		for _, n := range names {
			gs = append(gs, e.a().try(e.mutex(n)))
		}
		if got := e.b().list(e.prefix + "list/"); !slices.Equal(got, names) {
			e.failf("listed %q, where %q are held", got, names)
		}
		if got := e.b().list(e.prefix); len(got) != 5 {
			e.failf("listed %q, where %q and %q are held", got, names, other.Name)
		}
		var l driver.Lock
		err := e.again(e.ctx, func() (err error) {
			for l, err = range e.c().store.List(e.ctx, e.prefix+"list/") {
				break
			}
			return err
		})
		if err != nil {
			e.failf("listing: %w", err)
		}
		i := slices.Index(names, l.Name)
		if i < 0 || len(l.Holders) != 1 || l.Kind != driver.KindMutex || l.Limit != 1 {
			e.failf("%q is listed as %+v", l.Name, l)
		}
		e.shows(l.Holders[0], gs[i].Claim, gs[i].Token)
		e.a().release(gs[1])
		names = slices.Delete(names, 1, 2)
		if got := e.d().list(e.prefix + "list/"); !slices.Equal(got, names) {
			e.failf("after a release %q are listed, and %q are held", got, names)
		}
	}),
}

func owners(ss []driver.ClaimInfo) (o []string) {
	for _, s := range ss {
		o = append(o, s.Owner)
	}
	return o
}

// shows fails unless a standing is that of the claim just made.
func (e *Env) shows(s driver.ClaimInfo, cl driver.Claim, token int64) {
	now := time.Now()
	switch {
	case s.Owner != cl.Owner || s.Meta != cl.Meta || s.Weight != cl.Weight || s.Token != token || s.Detached != cl.Detached:
		e.failf("claimed as %+v with token %d, and shown as %+v", cl, token, s)
	case s.ReleaseRequested || s.Broken || s.Foreign:
		e.failf("shown as asked, broken or foreign: %+v", s)
	case !printable(s.Ref):
		e.failf("the ref %q is empty or cannot be printed", s.Ref)
	case !s.Since.IsZero() && now.Sub(s.Since).Abs() > time.Hour:
		e.failf("claimed just now, at %v, and shown as since %v", now, s.Since)
	case s.Remaining < 0 || s.Remaining > 2*max(cl.TTL, s.TTL)+e.slack:
		e.failf("a claim with a TTL of %v is shown as standing for another %v", cl.TTL, s.Remaining)
	}
}
