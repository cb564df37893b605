package drivertest

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var infoCases = []Case{
	newCase("info", "Info returns what the store promises and its limits at any time, also after Close, and "+
		"contains no secret.", func(e *Env) {
		c := e.openClient()
		before := c.store.Info()
		e.checkInfo(before)
		c.store.Close()
		after := c.store.Info()
		e.checkInfo(after)
		if after.Store != before.Store || after.Tier != before.Tier || after.ExpiryClock != before.ExpiryClock ||
			!slices.Equal(after.Kinds, before.Kinds) {
			e.failf("Close has changed what Info promises: %+v, then %+v", before, after)
		}
	}),
	newCase("clock", "The clock by which leases are measured has two readings, and neither of them ever goes back.",
		func(e *Env) {
			last := e.now()
			for range 1000 {
				now := e.now()
				if now.Monotonic < last.Monotonic || now.Boottime < last.Boottime {
					e.failf("the clock went back from %+v to %+v", last, now)
				}
				last = now
			}
			e.sleep(20 * time.Millisecond)
			if d := e.since(last); d < 15*time.Millisecond {
				e.failf("20 ms have passed, but the clock has advanced by %v", d)
			}
			e.requireWithin(last, e.slack, "a sleep of 20 ms, by the clock,")
		}),
}

func (e *Env) checkInfo(i driver.Info) {
	oneOf := func(what, got string, want ...string) {
		if !slices.Contains(want, got) {
			e.failf("Info.%s is %q, not one of %q", what, got, want)
		}
	}
	oneOf("Engine", i.Engine, "record", "sequence", "script")
	oneOf("Tier", string(i.Tier), string(driver.TierFenceSafe), string(driver.TierSettings),
		string(driver.TierAdvisory))
	oneOf("ExpiredBy", string(i.ExpiredBy), string(driver.ExpiredByClaimant), string(driver.ExpiredByStore))
	oneOf("ExpiryClock", string(i.ExpiryClock), string(driver.ExpiryClockStore), string(driver.ExpiryClockObserver))
	oneOf("Order", string(i.Order), string(driver.OrderAlways), string(driver.OrderFairOnly), string(driver.OrderNone))
	for _, k := range i.Kinds {
		oneOf("Kinds", string(k), string(driver.KindMutex), string(driver.KindRW), string(driver.KindSemaphore))
	}
	switch {
	case i.Store == "":
		e.failf("Info.Store is empty")
	case i.Clock.Monotonic == nil || i.Clock.Boottime == nil:
		e.failf("Info.Clock is not set")
	case !slices.Contains(i.Kinds, driver.KindMutex):
		e.failf("the store does not support mutexes")
	case i.MinTTL <= 0 || i.MaxTTL < i.MinTTL || i.MinTTL%time.Millisecond != 0:
		e.failf("TTLs from %v to %v", i.MinTTL, i.MaxTTL)
	case i.MaxName <= 0 || i.MaxMeta < 0 || i.MaxHolders <= 0 || i.MaxWaiters < 0 || i.MaxWaiters == 0 &&
		i.Order != driver.OrderNone:
		e.failf("a limit is not set: name %d, meta %d, holders %d, waiters %d", i.MaxName, i.MaxMeta, i.MaxHolders,
			i.MaxWaiters)
	case i.DeadHolderTimeout < 0 || i.TokenGap < 0:
		e.failf("a time is negative: DeadHolderTimeout %v, TokenGap %v", i.DeadHolderTimeout, i.TokenGap)
	case i.NativeQueue && i.Order != driver.OrderAlways:
		e.failf("plain claims wait in the store, but the order is %q", i.Order)
	}
	if u, err := url.Parse(i.Store); err == nil && u.User != nil {
		if _, secret := u.User.Password(); secret {
			e.failf("Info.Store contains a password")
		}
	}
	for _, s := range e.harness.Secrets {
		if s != "" && strings.Contains(i.Store, s) {
			e.failf("Info.Store contains a secret")
		}
	}
}
