package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	findingProbe = driver.Finding{Code: "probe-failed", Severity: driver.SeverityCritical,
		Why: "a lock does not work on this store as it must",
		Fix: "do what the error says; docs/doctor.md lists the permissions that locks need"}
	findingLeftover = driver.Finding{Code: "probe-left", Severity: driver.SeverityUnknown,
		Why: "something of the probe may be left in the store; it excludes nobody",
		Fix: "run doctor again when the store answers"}
)

// scratchPrefix begins the names of all locks that doctor uses.
const scratchPrefix = "holdfast-doctor-"

// probe tries each step of a lock, with two clients of the same store.
type probe struct {
	stores  [2]driver.Store
	ttl     time.Duration
	name    string   // of the lock
	done    []string // the steps that were right
	found   []driver.Finding
	pending []pendingClaim
	calls   sync.WaitGroup // the waits in progress
}

// pendingClaim is a claim of the probe that may be in the store.
type pendingClaim struct {
	store driver.Store
	claim driver.Claim
}

func newProbe(stores [2]driver.Store, ttl time.Duration) *probe {
	info := stores[0].Info()
	return &probe{stores: stores, ttl: min(max(ttl, info.MinTTL), info.MaxTTL), name: newScratchName(), done: []string{}}
}

// newScratchName makes a name that no lock has.
func newScratchName() string { return scratchPrefix + strings.ToLower(rand.Text()) }

// cleanupTimeout is how long the removal of what the probe has left may take. The context of the probe may have ended.
const cleanupTimeout = 10 * time.Second

// run tries the steps, one after the other, until one is wrong. Then it removes what is left.
func (p *probe) run(ctx context.Context) {
	trying, stop := context.WithCancel(ctx)
	if err := p.trySteps(trying); err != nil {
		p.found = append(p.found, findingProbe.With("", err.Error()))
	}
	stop()
	p.calls.Wait()
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, c := range p.pending {
		// Its error says nothing new: what is left is seen below.
		_ = c.store.Release(cleaning, c.claim, "")
	}
	p.forget(cleaning, p.name)
}

// forget removes what is kept of a lock that the probe has used.
func (p *probe) forget(ctx context.Context, name string) {
	if err := p.stores[0].Forget(ctx, name); err != nil && !errors.Is(err, driver.ErrUnsupported) {
		p.found = append(p.found, findingLeftover.With("", fmt.Sprintf("the lock %s cannot be removed: %s", name, errorText(err))))
	}
}

// newClaim makes a claim on a lock of the probe.
func (p *probe) newClaim(name string) driver.Claim {
	return driver.Claim{Name: name, ID: strings.ToLower(rand.Text()), Kind: driver.KindMutex, Limit: 1, Weight: 1,
		TTL: p.ttl, Owner: "holdfast doctor"}
}

// newPendingClaim makes a claim that is released when the probe ends.
func (p *probe) newPendingClaim(store driver.Store) driver.Claim {
	c := p.newClaim(p.name)
	p.pending = append(p.pending, pendingClaim{store, c})
	return c
}

// trySteps returns the error of the first step that is wrong.
func (p *probe) trySteps(ctx context.Context) error {
	a, b := p.stores[0], p.stores[1]
	first := p.newPendingClaim(a)
	g, err := a.Acquire(ctx, first)
	if err = p.finish("acquire", err); err != nil {
		return err
	}
	if _, err = b.Acquire(ctx, p.newPendingClaim(b)); err == nil {
		err = errors.New("a second client acquired a lock that is held")
	} else if errors.Is(err, driver.ErrHeld) {
		err = nil
	}
	if err = p.finish("contend", err); err != nil {
		return err
	}
	seen, err := b.Inspect(ctx, p.name)
	if err == nil && (len(seen.Holders) != 1 || seen.Holders[0].Token != g.Token) {
		err = fmt.Errorf("another client sees %d holders", len(seen.Holders))
	}
	if err = p.finish("inspect", err); err != nil {
		return err
	}
	answer := driver.Renewal{Err: errors.New("there was no answer")}
	a.Renew(ctx, []driver.Grant{g}, func(_ int, r driver.Renewal) { answer = r })
	if err = p.finish("renew", answer.Err); err != nil {
		return err
	}
	changed := p.watch(ctx, b, seen)
	waiting, granted := p.wait(ctx, b)
	if err = p.finish("release", a.Release(ctx, first, "")); err != nil {
		return err
	}
	second := <-granted
	if err = p.finish("wait", second.err); err != nil {
		return err
	}
	if second.grant.Token <= g.Token {
		err = fmt.Errorf("the token after %d is %d", g.Token, second.grant.Token)
	}
	if err = p.finish("token-rises", err); err != nil {
		return err
	}
	if changed != nil {
		if err = p.finish("watch", <-changed); err != nil {
			return err
		}
	}
	return p.finish("release-after-waiting", b.Release(ctx, waiting, ""))
}

// finish notes a step that was right, or returns its error with its name.
func (p *probe) finish(step string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %s", step, errorText(err))
	}
	p.done = append(p.done, step)
	return nil
}

// watch waits for a change of the lock.
func (p *probe) watch(ctx context.Context, store driver.Store, seen driver.Lock) <-chan error {
	changed := make(chan error, 1)
	p.calls.Go(func() {
		_, err := store.NextChange(ctx, seen)
		changed <- err
	})
	return changed
}

// grantOrError is the end of a wait.
type grantOrError struct {
	grant driver.Grant
	err   error
}

// wait makes a claim that waits until the probe's holder has released the lock.
func (p *probe) wait(ctx context.Context, store driver.Store) (driver.Claim, <-chan grantOrError) {
	c := p.newPendingClaim(store)
	c.Wait = true
	granted := make(chan grantOrError, 1)
	p.calls.Go(func() {
		g, err := store.Acquire(ctx, c)
		granted <- grantOrError{g, err}
	})
	return c, granted
}
