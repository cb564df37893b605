package drivertest

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var inspectCases = []Case{
	newCase("inspect-idle", "A lock without claims is shown as idle, without an error, and inspecting it leaves "+
		"no trace.", func(e *Env) {
		never, was := e.lockName("never"), e.lockName("was")
		e.a().mustRelease(e.a().mustTry(e.mutexClaim(was)))
		for _, name := range []string{never, was, never} {
			l := e.b().mustInspect(name)
			if l.Name != name || l.Kind != "" || l.Limit != 0 || len(l.Holders)+len(l.Waiters) != 0 {
				e.failf("%q is idle, but shown as %+v", name, l)
			}
		}
		if got := e.c().mustList(e.prefix); len(got) != 0 {
			e.failf("idle locks are listed: %q", got)
		}
	}),
	newCase("inspect", "Inspect shows the holders and the waiting claims of a lock in order, each with owner, "+
		"meta, weight, token, TTL and times.", func(e *Env) {
		cl := e.mutexClaim(e.lockName("m"))
		cl.Meta = "why"
		g := e.a().mustTry(cl)
		h := e.requireHolder(g)
		e.checkClaimInfo(h, g.Claim, g.Token)
		if h.TTL != 0 && h.TTL < cl.TTL {
			e.failf("granted with a TTL of %v, but shown with %v", g.GrantedTTL, h.TTL)
		}
		var waiting []*waitingCall
		for i := range 3 {
			if e.isQueuedInStore(e.queuedClaim(g.Name)) {
				waiting = append(waiting, e.client(i+1).startWaiting(e.queuedClaim(g.Name)).requireQueued())
			}
		}
		l := e.b().mustInspect(g.Name)
		if l.Name != g.Name || l.Kind != g.Kind || l.Limit != g.Limit || len(l.Holders) != 1 ||
			len(l.Waiters) != len(waiting) {
			e.failf("held as a %s of limit %d with %d waiting, but shown as a %s of limit %d: %s", g.Kind, g.Limit,
				len(waiting), l.Kind, l.Limit, describeLock(l))
		}
		refs := []string{l.Holders[0].Ref}
		for i, s := range l.Waiters {
			e.checkClaimInfo(s, waiting[i].claim, 0)
			if slices.Contains(refs, s.Ref) {
				e.failf("two claims have the ref %q", s.Ref)
			}
			refs = append(refs, s.Ref)
		}
	}),
	semaphoreFeature.newCase("inspect-holders", "Of a lock with several holders, each is shown with its own "+
		"weight and token.", func(e *Env) {
		name := e.lockName("s")
		tokens := map[int64]int64{}
		for _, w := range []int64{1, 2, 3} {
			g := e.a().mustTry(e.semaphoreClaim(name, 9, w))
			tokens[g.Token] = w
		}
		l := e.b().mustInspect(name)
		for _, h := range l.Holders {
			if tokens[h.Token] != h.Weight {
				e.failf("token %d was granted to a weight of %d, and is shown with %d", h.Token, tokens[h.Token],
					h.Weight)
			}
		}
		if len(l.Holders) != 3 {
			e.failf("there are three holders, but %s", describeLock(l))
		}
	}),
	newCase("inspect-expired", "An expired claim is not shown forever: it disappears once it blocks no other claim.",
		func(e *Env) {
			dead := e.openClient()
			g := dead.mustTry(e.withMinTTL(e.mutexClaim(e.lockName("m"))))
			if e.info.ExpiryClock == driver.ExpiryClockObserver {
				// the claim expires only for a client that has observed it for a TTL
				e.a().startWaiting(e.mutexClaim(g.Name)).mustBeGrantedWithin(e.latestExpiry(g.GrantedTTL))
			}
			e.waitUntil(e.latestExpiry(g.GrantedTTL),
				func() bool {
					return !slices.Contains(ownersOf(e.b().mustInspect(g.Name).Holders),
						g.Owner)
				}, "the expired claim is still shown")
			if after := e.sinceGrant(g); after < g.GrantedTTL {
				e.failf("the claim disappeared after %v of its TTL of %v", after, g.GrantedTTL)
			}
		}),
	newCase("revision", "Whenever the claims on a lock change, its revision changes.", func(e *Env) {
		name := e.lockName("m")
		var seen []string
		checkRevision := func(what string) {
			r := e.b().mustInspect(name).Revision
			if slices.Contains(seen, r) {
				e.failf("after %s, the revision is %q, as it was before: %q", what, r, seen)
			}
			seen = append(seen, r)
		}
		g := e.a().mustTry(e.mutexClaim(name))
		checkRevision("a grant")
		if e.isQueuedInStore(e.queuedClaim(name)) {
			w := e.b().startWaiting(e.queuedClaim(name)).requireQueued()
			checkRevision("a claim's entry into waiting")
			w.giveUp()
		}
		e.a().mustRelease(g)
		checkRevision("a release")
		e.a().mustTry(e.mutexClaim(name))
		checkRevision("another grant")
	}),
	newCase("list", "List yields exactly the locks that have claims, each as Inspect shows it, and the caller may "+
		"stop at any point.", func(e *Env) {
		var names []string
		for _, n := range []string{"a", "b", "c", "d"} {
			names = append(names, e.lockName("list/"+n))
		}
		other := e.a().mustTry(e.mutexClaim(e.lockName("other")))
		var gs []driver.Grant
		for _, n := range names {
			gs = append(gs, e.a().mustTry(e.mutexClaim(n)))
		}
		if got := e.b().mustList(e.prefix + "list/"); !slices.Equal(got, names) {
			e.failf("listed %q, but %q are held", got, names)
		}
		if got := e.b().mustList(e.prefix); len(got) != 5 {
			e.failf("listed %q, but %q and %q are held", got, names, other.Name)
		}
		var l driver.Lock
		err := e.retryRead(func() (err error) {
			for l, err = range e.c().store.List(e.ctx, e.prefix+"list/") {
				break
			}
			return err
		})
		e.requireAnswer(err, "listing")
		i := slices.Index(names, l.Name)
		if i < 0 || len(l.Holders) != 1 || l.Kind != driver.KindMutex || l.Limit != 1 {
			e.failf("%q is listed as %+v", l.Name, l)
		}
		e.checkClaimInfo(l.Holders[0], gs[i].Claim, gs[i].Token)
		e.a().mustRelease(gs[1])
		names = slices.Delete(names, 1, 2)
		if got := e.d().mustList(e.prefix + "list/"); !slices.Equal(got, names) {
			e.failf("after a release, %q are listed, but %q are held", got, names)
		}
	}),
}

func ownersOf(ss []driver.ClaimInfo) (o []string) {
	for _, s := range ss {
		o = append(o, s.Owner)
	}
	return o
}

// checkClaimInfo fails unless s describes the claim, which was just made.
func (e *Env) checkClaimInfo(s driver.ClaimInfo, cl driver.Claim, token int64) {
	now := time.Now()
	switch {
	case s.Owner != cl.Owner || s.Meta != cl.Meta || s.Weight != cl.Weight || s.Token != token ||
		s.Detached != cl.Detached:
		e.failf("claimed as %+v with token %d, but shown as %+v", cl, token, s)
	case s.ReleaseRequested || s.Broken || s.Foreign:
		e.failf("shown as requested to release, broken or foreign: %+v", s)
	case !isPrintable(s.Ref):
		e.failf("the ref %q is empty or cannot be printed", s.Ref)
	case !s.Since.IsZero() && now.Sub(s.Since).Abs() > time.Hour:
		e.failf("claimed just now, at %v, but shown as since %v", now, s.Since)
	case s.Remaining < 0 || s.Remaining > 2*max(cl.TTL, s.TTL)+e.slack:
		e.failf("a claim with a TTL of %v is shown with %v remaining", cl.TTL, s.Remaining)
	}
}
