package torture

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"net/url"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/store/file"
)

// defect is a store of files that breaks a promise on purpose. Its URL is defect:///directory?kind=KIND.
type defect struct {
	driver.Store
	kind string
	dir  string
}

func init() { driver.Register("defect", openDefect, nil) }

func openDefect(ctx context.Context, u *url.URL) (driver.Store, error) {
	kind := u.Query().Get("kind")
	inner, err := driver.Open(ctx, (&url.URL{Scheme: "file", Path: u.Path}).String())
	if err != nil {
		return nil, err
	}
	return &defect{inner, kind, u.Path}, nil
}

var errAway = errors.New("the server is away")

// away reports whether the store has gone away for good: there is a file that says so.
func (d *defect) away() bool {
	if d.kind != "away" {
		return false
	}
	_, err := os.Stat(d.dir + ".away")
	return err == nil
}

func (d *defect) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	if d.away() {
		return func(yield func(driver.Lock, error) bool) { yield(driver.Lock{}, errAway) }
	}
	return d.Store.List(ctx, prefix)
}

// lockOf is the lock that is used in place of a claim's. With "double", one worker uses another lock than the others.
func (d *defect) lockOf(c driver.Claim) string {
	if d.kind == "double" && c.Owner == "torture worker 0" {
		return c.Name + "-other"
	}
	return c.Name
}

func (d *defect) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if d.away() {
		return driver.Grant{}, errAway
	}
	changed := c
	changed.Name = d.lockOf(c)
	switch {
	case d.kind == "limit" && c.Kind == driver.KindSemaphore:
		changed.Weight = 1
	case d.kind == "order" && c.Owner == "torture worker 0":
		select { // it joins the queue late
		case <-time.After(5 * c.TTL / 2):
		case <-ctx.Done():
		}
	case d.kind == "wakeup" && c.Wait && rand.IntN(4) != 0:
		<-ctx.Done() // nobody wakes it
		return driver.Grant{}, ctx.Err()
	case d.kind == "leftover":
		changed.Detached, changed.TTL = true, time.Minute
	}
	g, err := d.Store.Acquire(ctx, changed)
	g.Claim = c
	return d.alter(g), err
}

func (d *defect) alter(g driver.Grant) driver.Grant {
	switch d.kind {
	case "tokens":
		g.Token = 1<<52 - g.Token
	case "overlong":
		g.GrantedTTL *= 3
	}
	return g
}

// inner is a grant as the correct store knows it.
func (d *defect) inner(g driver.Grant) driver.Grant {
	g = d.alter(g)
	if d.kind == "limit" && g.Kind == driver.KindSemaphore {
		g.Weight = 1
	}
	g.Name = d.lockOf(g.Claim)
	return g
}

func (d *defect) Renew(ctx context.Context, all []driver.Grant, done func(int, driver.Renewal)) {
	inner := make([]driver.Grant, len(all))
	for i, g := range all {
		inner[i] = d.inner(g)
	}
	switch {
	case d.away():
		for i := range all {
			done(i, driver.Renewal{Err: errAway})
		}
	case d.kind == "silent": // it says that it renews
		for i, g := range all {
			done(i, driver.Renewal{Since: d.Info().Clock.Now(), GrantedTTL: g.TTL})
		}
	case d.kind == "overlong": // it grants three TTLs, and keeps the claim for one
		for i, g := range all {
			done(i, driver.Renewal{Since: g.Since, GrantedTTL: g.GrantedTTL})
		}
	default:
		d.Store.Renew(ctx, inner, done)
	}
}

func (d *defect) Release(ctx context.Context, c driver.Claim, ref string) error {
	if d.away() {
		return driver.ErrUncertain
	}
	c.Name = d.lockOf(c)
	if d.kind == "leftover" && rand.IntN(2) == 0 {
		return nil
	}
	err := d.Store.Release(ctx, c, ref)
	if d.kind == "silent" && errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}

// OpenLedger opens the ledger. With "twice", a success is recorded as a failure, so that the key runs again.
func (d *defect) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	inner, err := d.Store.OpenLedger(ctx)
	if err != nil {
		return nil, err
	}
	return &defectLedger{inner, d.kind}, nil
}

type defectLedger struct {
	driver.Ledger
	kind string
}

func (l *defectLedger) FinishRun(ctx context.Context, g driver.Grant, o driver.RunOutcome) error {
	if l.kind == "twice" && rand.IntN(2) == 0 {
		o = driver.RunOutcome{State: driver.RunFailed, Error: "forgotten"}
	}
	return l.Ledger.FinishRun(ctx, g, o)
}
