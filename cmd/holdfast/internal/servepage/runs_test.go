package servepage

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestRunsOnPage: the runs of a ledger are shown by their states, and a key with its history.
func TestRunsOnPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	s.addRuns()
	r := s.get("/runs")
	for _, want := range []string{"invoice/2026-1117", ">succeeded</span>", "a result of 13 bytes", ">failed</span>",
		"smtp: 451",
		">started</span>", "4 keys", "<strong>2</strong> succeeded"} {
		if !strings.Contains(r.body, want) {
			t.Errorf("the runs do not show %q", want)
		}
	}
	if strings.Contains(r.body, "/runs/confirm") {
		t.Error("runs that are read-only have actions")
	}
	if r := s.get("/runs?state=failed"); strings.Count(r.body, "data-key=") != 1 ||
		!strings.Contains(r.body, "2026-1118") {
		t.Error(r.body)
	}
	if r := s.get("/runs?prefix=report"); strings.Count(r.body, "data-key=") != 1 {
		t.Error(r.body)
	}
	if r := s.get("/runs?ledger=other"); !strings.Contains(r.body, "There are no such runs.") {
		t.Error(r.body)
	}
	r = s.get(keyURL("once", "invoice/2026-1118"))
	if strings.Count(r.body, "data-key=") != 2 || !strings.Contains(r.body, "<svg") {
		t.Error(r.body)
	}
	if r := s.get(keyURL("once", "invoice/2026-1117")); !strings.Contains(r.body, "sent as 88231") {
		t.Error(r.body)
	}
}

// TestLedgersOnPage: all ledgers with keys are listed, and runs that have failed or were abandoned are counted where
// the locks are shown, without the keys that the viewer may not see.
func TestLedgersOnPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{
		AllowBreak: true,
		Rights: func(_ *http.Request, name string) operator.Rights {
			return operator.Rights{See: !strings.HasPrefix(name, "secret")}
		},
		Viewer: func(*http.Request) Viewer {
			return Viewer{Name: "carol", Rights: []string{"see all names", "hold names that begin with a/"}}
		},
	})
	empty := s.get("/").body
	if strings.Contains(empty, "runs need attention") {
		t.Error("runs are counted where there are no ledgers")
	}
	s.addRuns()
	for _, ledger := range []string{"nightly", "secret"} {
		run, err := s.client("x").Ledger(ledger, nil).Begin(t.Context(), "report@2026-11-28", nil)
		if err == nil {
			err = run.Fail(t.Context(), errors.New("no paper"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.page.ledgers.invalidate()
	list, runs, health := s.get("/").body, s.get("/runs").body, s.get("/health").body
	for _, c := range []struct{ page, want string }{
		{list, `href="/runs?ledger=nightly" class="tile alarm"><strong>2</strong> runs need attention`},
		{list, `read-only`}, // carol may break nothing, although the server allows it to others
		{list, `you are <a href="/health"><bdi>carol</bdi></a>`},
		{runs, `href="/runs?ledger=nightly" class="tile alarm"><strong><bdi>nightly</bdi></strong> 1 key, 1 failed or abandoned`},
		{runs, `<option value="nightly">`},
		{runs, "once</bdi></strong> 4 keys, 1 failed or abandoned"},
		{health, "see all names; hold names that begin with a/"},
	} {
		if !strings.Contains(c.page, c.want) {
			t.Errorf("%q is missing in\n%s", c.want, c.page)
		}
	}
	if strings.Contains(list+runs, "secret") {
		t.Error("a ledger is named whose keys the viewer may not see")
	}
}

// TestFirstLedgerOfViewer: without a name, the page shows the first ledger of which the viewer may see a key, and the
// usual one to all others.
func TestFirstLedgerOfViewer(t *testing.T) {
	t.Parallel()
	for begins, want := range map[string]string{"": "once", "once/": "once", "nightly/": "nightly", "none/": "once"} {
		s := newSite(t, Options{Rights: func(_ *http.Request, name string) operator.Rights {
			return operator.Rights{See: strings.HasPrefix(name, begins)}
		}})
		s.addRuns()
		run, err := s.client("x").Ledger("nightly", nil).Begin(t.Context(), "report", nil)
		if err == nil {
			err = run.Fail(t.Context(), errors.New("no paper"))
		}
		if err != nil {
			t.Fatal(err)
		}
		s.page.ledgers.invalidate()
		if runs := s.get("/runs").body; !strings.Contains(runs, `name="ledger" value="`+want+`"`) {
			t.Errorf("who may see %q does not see %s:\n%s", begins, want, runs)
		}
	}
}

// TestRetryAndForget: a failed key is retried and a key is forgotten after a confirmation, a success only with the box
// ticked. What cannot be done says why.
func TestRetryAndForget(t *testing.T) {
	t.Parallel()
	var written []operator.Entry
	s := newSite(t, Options{AllowBreak: true, Audit: func(_ *http.Request, e operator.Entry) (func(error), error) {
		written = append(written, e) // one request after the other
		return func(error) {}, nil
	}})
	s.addRuns()
	const failed, succeeded, started = "invoice/2026-1118", "invoice/2026-1117", "invoice/2026-1119"
	path := func(key string, action operator.Action) string {
		return buildURL("/runs/confirm", "ledger", "once", "key", key, "action", string(action))
	}
	strict := s.client("x").Ledger("once", &holdfast.LedgerOptions{MaxAttempts: 2})
	if _, err := strict.Begin(t.Context(), failed, nil); !errors.Is(err, holdfast.ErrAttemptsUsed) {
		t.Fatal(err)
	}
	if r := s.confirm(path(failed, operator.Retry)); r.status != http.StatusOK ||
		!strings.Contains(r.body, "One more run") {
		t.Errorf("%d %s", r.status, r.body)
	}
	run, err := strict.Begin(t.Context(), failed, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Fail(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{path(started, operator.Retry): 409, path(started, operator.Forget): 409,
		path(succeeded, operator.Retry): 409, path("never", operator.Retry): 404, path(failed, "break"): 400} {
		if r := s.get(path); r.status != want {
			t.Errorf("%s: %d, want %d", path, r.status, want)
		}
	}
	if r := s.confirm(path(succeeded, operator.Forget)); r.status != http.StatusBadRequest {
		t.Errorf("without the box: %d", r.status)
	}
	if runs, err := strict.History(t.Context(), succeeded); err != nil || len(runs) != 1 {
		t.Errorf("%v %v", runs, err)
	}
	// A form from before another run began changes nothing.
	r := s.get(path(failed, operator.Forget))
	action, token := formAction.FindStringSubmatch(r.body)[1], formToken.FindStringSubmatch(r.body)[1]
	if err := s.client("x").Ledger("once", nil).Retry(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	if run, err = s.client("y").Ledger("once", nil).Begin(t.Context(), failed, nil); err != nil {
		t.Fatal(err)
	}
	if err := run.Fail(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if r := s.post(unescape(action), "token", token); r.status != http.StatusConflict {
		t.Errorf("%d %s", r.status, r.body)
	}
	for _, key := range []string{failed, succeeded} {
		if r := s.confirm(path(key, operator.Forget), "sure", "yes"); r.status != http.StatusOK ||
			!strings.Contains(r.body, "The history of the key is removed.") {
			t.Errorf("%d %s", r.status, r.body)
		}
		if runs, err := strict.History(t.Context(), key); err != nil || len(runs) != 0 {
			t.Errorf("%v %v", runs, err)
		}
	}
	if len(written) != 3 || written[0].Action != operator.Retry || written[0].Ledger != "once" ||
		written[0].Key != failed ||
		written[2].Action != operator.Forget || written[2].Key != succeeded {
		t.Errorf("%+v", written)
	}
}

// TestRunRights: nobody sees a run without the right to see it, or changes one without the right to break it.
func TestRunRights(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true, Rights: func(_ *http.Request, lock string) operator.Rights {
		return operator.Rights{See: lock != "once/invoice/2026-1117", Break: lock == "once/invoice/2026-1119"}
	}})
	s.addRuns()
	if r := s.get("/runs"); strings.Contains(r.body, "2026-1117") || strings.Contains(r.body, "/runs/confirm") ||
		!strings.Contains(r.body, "3 keys") {
		t.Error(r.body)
	}
	for path, want := range map[string]int{keyURL("once", "invoice/2026-1117"): 403,
		"/runs/confirm?key=invoice%2F2026-1118&action=retry": 403, "/runs/confirm?key=invoice%2F2026-1117&action=forget": 403,
		"/runs/confirm?key=invoice%2F2026-1119&action=retry": 409} {
		if r := s.get(path); r.status != want {
			t.Errorf("%s: %d, want %d", path, r.status, want)
		}
	}
}

// brokenStore counts its listings, and can be told to fail.
type brokenStore struct {
	driver.Store
	listings atomic.Int64
	fails    atomic.Bool
}

func (b *brokenStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	b.listings.Add(1)
	if b.fails.Load() {
		return func(yield func(driver.Lock, error) bool) { yield(driver.Lock{}, errors.New("connection refused")) }
	}
	return b.Store.List(ctx, prefix)
}

// TestStoreFails: when the store fails, the page says so and shows what it knew, with its time, and the health page
// shows the error and what the doctor has found.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	var b *brokenStore
	s := newSiteOn(t, Options{Doctor: func(context.Context) ([]holdfast.Finding, error) {
		return []holdfast.Finding{{Code: "a-warning", Severity: holdfast.SeverityWarning, What: "<b>"},
			{Code: "the-worst", Severity: holdfast.SeverityCritical, Fix: "change it"}}, errors.New("cut off")
	}}, memory.New(nil), func(s driver.Store) driver.Store {
		b = &brokenStore{Store: s}
		return b
	})
	s.hold("alice", "deploy")
	if r := s.get("/health"); !strings.Contains(r.body, "answers") {
		t.Error(r.body)
	}
	b.fails.Store(true)
	s.page.locks.invalidate()
	r := s.get("/")
	for _, want := range []string{"The store could not be listed. What is shown is from ", "connection refused",
		"<bdi>deploy</bdi>"} {
		if !strings.Contains(r.body, want) {
			t.Errorf("the list does not show %q: %s", want, r.body)
		}
	}
	r = s.get("/health")
	for _, want := range []string{"does not answer", "connection refused", "the-worst", "change it", "&lt;b&gt;",
		"cut off"} {
		if !strings.Contains(r.body, want) {
			t.Errorf("the health page does not show %q: %s", want, r.body)
		}
	}
	if strings.Index(r.body, "the-worst") > strings.Index(r.body, "a-warning") {
		t.Error("the worst finding is not the first")
	}
	b.fails.Store(false)
	s.page.locks.invalidate()
	if r := s.get("/"); strings.Contains(r.body, "could not be listed") {
		t.Error(r.body)
	}
}

// TestOneListingForAll: the store is listed once for viewers who come together.
func TestOneListingForAll(t *testing.T) {
	t.Parallel()
	var b *brokenStore
	s := newSiteOn(t, Options{}, memory.New(nil), func(s driver.Store) driver.Store {
		b = &brokenStore{Store: s}
		return b
	})
	s.page.locks.every = 1 << 60 // so that a listing stays fresh
	for range 20 {
		s.get("/")
		s.openEvents("list")
	}
	if n := b.listings.Load(); n != 1 {
		t.Errorf("the store was listed %d times", n)
	}
}
