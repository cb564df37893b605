package drivertest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestMemory: a correct store passes the suite, with either kind of expiry clock, and no case that can run is skipped.
func TestMemory(t *testing.T) {
	for name, opts := range map[string]*memory.Options{"clocked": nil, "unclocked": {Unclocked: true}} {
		t.Run(name, func(t *testing.T) {
			o := &drivertest.Options{Log: func(line string) { t.Log(line) }}
			for _, r := range drivertest.Run(t.Context(), harness(opts), o) {
				switch {
				case r.Err != nil:
					t.Errorf("%s (%v): %v\npromised: %s", r.Case.Name, r.Took, r.Err, r.Case.Promise)
				case r.Skipped != "" && r.Case.Name != "session-lowered": // memory has no sessions
					t.Errorf("%s was skipped: %s", r.Case.Name, r.Skipped)
				}
			}
		})
	}
}

// TestErrorsOfRefusals: a store that supports only mutexes, and refuses everything else, passes too.
func TestErrorsOfRefusals(t *testing.T) {
	t.Parallel()
	refuse := &brokenStore{
		info: func(i driver.Info) driver.Info {
			i.Kinds, i.Order, i.Abilities.Detach = []driver.Kind{driver.KindMutex}, driver.OrderNone, false
			return i
		},
		acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
			if c.Kind != driver.KindMutex || c.Fair || c.Detached {
				return driver.Grant{}, driver.ErrUnsupported
			}
			return b.Store.Acquire(ctx, c)
		},
	}
	var refused []string
	o := &drivertest.Options{Match: func(c drivertest.Case) bool {
		return !strings.Contains(c.Name, "stops-renewing") && !strings.Contains(c.Name, "expired")
	}}
	for _, r := range drivertest.Run(t.Context(), refuse.harness(), o) {
		if r.Err != nil {
			t.Errorf("%s: %v", r.Case.Name, r.Err)
		}
		if r.Refused {
			refused = append(refused, r.Case.Name)
		}
	}
	for _, want := range []string{"semaphore-limit", "readers-share", "first-come-first-served", "detached",
		"mismatch"} {
		if !slices.Contains(refused, want) {
			t.Errorf("%s was not checked as a refusal; only %q were", want, refused)
		}
	}
}

// Names are unique, promises are sentences.
func TestCases(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range drivertest.Cases() {
		if seen[c.Name] || c.Name == "" || strings.ContainsAny(c.Name, " /_") || c.Name != strings.ToLower(c.Name) {
			t.Errorf("%q is no name for a case, or that of two", c.Name)
		}
		seen[c.Name] = true
		if len(c.Promise) < 20 || !strings.HasSuffix(c.Promise, ".") || strings.Contains(c.Promise, "\n") {
			t.Errorf("%s: %q is no sentence", c.Name, c.Promise)
		}
	}
}

// A case that panics, or that hangs in the store beyond its context, has failed, and the other cases continue.
func TestPanicAndHang(t *testing.T) {
	t.Parallel()
	b := &brokenStore{acquire: func(b *brokenStore, ctx ctx, c driver.Claim) (driver.Grant, error) {
		switch {
		case strings.Contains(c.Name, "token-rises"):
			panic("in the store")
		case strings.Contains(c.Name, "token-kept"):
			<-t.Context().Done()
		}
		return b.Store.Acquire(ctx, c)
	}}
	o := &drivertest.Options{
		Match: func(c drivertest.Case) bool {
			return slices.Contains([]string{"token-rises", "token-kept", "release-twice"}, c.Name)
		},
		Limit: 5 * time.Second, // for those that do not hang, too
	}
	for _, r := range drivertest.Run(t.Context(), b.harness(), o) {
		want := map[string]string{"token-rises": "panic: in the store",
			"token-kept": "does not end with its context"}[r.Case.Name]
		if (r.Err == nil) != (want == "") || r.Err != nil && !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%s: %v, want %q", r.Case.Name, r.Err, want)
		}
	}
}

// TestOpenFails: if a store cannot be opened, the suite reports only this.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	h := drivertest.Harness{Open: func(context.Context) (driver.Store, error) { return nil, away }}
	if results := drivertest.Run(t.Context(), h, nil); len(results) != 1 || !errors.Is(results[0].Err, away) {
		t.Errorf("%v", results)
	}
}

// TestReport: each result is reported once, also that of a case that runs alone at the end. When the context has ended,
// the cases that are left say that they were not run.
func TestReport(t *testing.T) {
	t.Parallel()
	names := []string{"token-rises", "token-kept", "restart"}
	match := func(c drivertest.Case) bool { return slices.Contains(names, c.Name) }
	late := errors.New("no time left")
	for _, ends := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var reported []string
		h := harness(nil)
		h.Restart = func(context.Context) error { return nil }
		results := drivertest.Run(ctx, h, &drivertest.Options{Match: match, Report: func(r drivertest.Result) {
			reported = append(reported, r.Case.Name)
			if ends && len(reported) == 2 {
				cancel(late)
			}
		}})
		for _, r := range results {
			switch last := r.Case.Name == "restart"; {
			case ends && last && (!errors.Is(r.Err, late) || !strings.HasPrefix(r.Err.Error(), "not run: ")),
				!(ends && last) && r.Err != nil:
				t.Errorf("%s: %v", r.Case.Name, r.Err)
			}
		}
		slices.Sort(reported)
		slices.Sort(names)
		if !slices.Equal(reported, names) {
			t.Errorf("reported: %q", reported)
		}
		cancel(nil)
	}
}
