package servepage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

var screenshots = flag.String("screenshots", "", "the directory in which TestVisit leaves pictures of the page")

// agedStore shows claims as if they had been made earlier, so that pictures show more than the first second.
type agedStore struct {
	driver.Store
	ages map[string]time.Duration // by owner and lock
}

func (s *agedStore) age(lock driver.Lock) driver.Lock {
	for _, claims := range [][]driver.ClaimInfo{lock.Holders, lock.Waiters} {
		for i, c := range claims {
			claims[i].Since = c.Since.Add(-s.ages[c.Owner+" "+lock.Name])
		}
	}
	return lock
}

func (s *agedStore) Inspect(ctx context.Context, name string) (driver.Lock, error) {
	lock, err := s.Store.Inspect(ctx, name)
	return s.age(lock), err
}

func (s *agedStore) List(ctx context.Context, prefix string) iter.Seq2[driver.Lock, error] {
	return func(yield func(driver.Lock, error) bool) {
		for lock, err := range s.Store.List(ctx, prefix) {
			if !yield(s.age(lock), err) {
				return
			}
		}
	}
}

func (s *agedStore) NextChange(ctx context.Context, seen driver.Lock) (driver.Lock, error) {
	lock, err := s.Store.NextChange(ctx, seen)
	return s.age(lock), err
}

// newVisitedSite is the site of TestVisit, with what is to be seen there.
func newVisitedSite(t *testing.T) (s *site, alice *holdfast.Lease) {
	t.Helper()
	ages := map[string]time.Duration{"alice@app1 deploy[4121] deploy/web": 14*time.Minute + 8*time.Second,
		"bob@app2 deploy[977] deploy/web": 6 * time.Minute, "carol@laptop holdfast[31] deploy/web": 70 * time.Second,
		"cron@app3 backup[288] nightly/backup": 3*time.Hour + 11*time.Minute, "app4 worker[61] import/customers": 44 * time.Second,
		"app5 worker[19] import/customers": 21 * time.Second, "app6 worker[7] import/orders": 2 * time.Minute,
		"app1 api[2210] leader/scheduler": 76 * time.Hour}
	opts := Options{AllowBreak: true,
		Viewer: func(*http.Request) Viewer { return Viewer{Name: "ops", Rights: []string{"see, hold, break all names"}} },
		Doctor: func(context.Context) ([]holdfast.Finding, error) {
			return []holdfast.Finding{{Code: "redis-eviction", Severity: holdfast.SeverityCritical,
				Subject: "10.0.0.5:6379",
				What:    "maxmemory-policy is allkeys-lru", Why: "the server may remove a lock that is held, and grant it again",
				Fix: "maxmemory-policy noeviction in redis.conf"}}, nil
		}}
	s = newSiteOn(t, opts, memory.New(nil), func(store driver.Store) driver.Store { return &agedStore{store, ages} })
	s.page.opts.Store = "redis:10.0.0.5:6379/0"
	take := func(owner, name string, opts *holdfast.LockOptions) *holdfast.Lease {
		lease, err := s.client(owner).Mutex(name, opts).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	alice = take("alice@app1 deploy[4121]", "deploy/web", &holdfast.LockOptions{Meta: "INC-123, rollback"})
	s.wait("bob@app2 deploy[977]", "deploy/web")
	s.wait("carol@laptop holdfast[31]", "deploy/web")
	take("cron@app3 backup[288]", "nightly/backup", &holdfast.LockOptions{Meta: "full backup", TTL: time.Hour})
	take("app1 api[2210]", "leader/scheduler", nil)
	for _, owner := range []string{"app4 worker[61]", "app5 worker[19]"} {
		if _, err := s.client(owner).Semaphore("import/customers", 4, nil).TryAcquire(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client("app6 worker[7]").RWMutex("import/orders", nil).TryRLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	broken := take("dave@app2 psql[12]", "schema/migration", &holdfast.LockOptions{TTL: time.Hour})
	if err := s.client("an operator").Break(t.Context(), "schema/migration", broken.Ref(),
		holdfast.BreakGraceful, ""); err != nil {
		t.Fatal(err)
	}
	s.addRuns()
	// What happened before: the history as a watch would have left it.
	now := time.Now()
	past := func(owner string, token int64, waits, from, to time.Duration) {
		c := holdfast.ClaimInfo{Owner: owner, Token: token, Ref: owner}
		sp := claimSpan{claim: c, heldFrom: now.Add(-from), endedAt: now.Add(-to)}
		h := s.page.history.find("deploy/web", true)
		h.begunAt, h.seenAt = now.Add(-40*time.Minute), now
		if waits > 0 {
			sp.waitedFrom = sp.heldFrom.Add(-waits)
			h.add(historyEvent{at: sp.waitedFrom, what: "waits", claim: holdfast.ClaimInfo{Owner: owner, Ref: owner}})
		}
		h.addSpan(sp)
		h.add(historyEvent{at: sp.heldFrom, what: "acquired", claim: c, waited: waits})
		h.add(historyEvent{at: sp.endedAt, what: describeEnd(sp), claim: c})
	}
	past("erin@app1 deploy[3980]", 1795426201402177, 0, 38*time.Minute, 29*time.Minute)
	past("frank@app2 deploy[811]", 1795426741409313, 4*time.Minute, 29*time.Minute, 24*time.Minute)
	past("bob@app2 deploy[845]", 1795427041411006, 0, 20*time.Minute, 15*time.Minute)
	return s, alice
}

// addRuns adds runs in each state.
func (s *site) addRuns() {
	s.Helper()
	l := s.client("app3 worker[415]").Ledger("once", nil)
	begin := func(key string) *holdfast.Run {
		run, err := l.Begin(s.Context(), key, nil)
		if err != nil {
			s.Fatal(err)
		}
		return run
	}
	for _, err := range []error{
		begin("invoice/2026-1117").Succeed(s.Context(), []byte("sent as 88231")),
		begin("invoice/2026-1118").Fail(s.Context(), errors.New("smtp: 451 try again later")),
		begin("invoice/2026-1118").Fail(s.Context(), errors.New("smtp: 451 try again later")),
		begin("report@2026-11-23T00:00:00Z").Succeed(s.Context(), nil),
	} {
		if err != nil {
			s.Fatal(err)
		}
	}
	begin("invoice/2026-1119")
}

// TestVisit: in a real browser the list is searched, a lock is opened, a hand-over is seen live, and a lock is broken
// after a confirmation; all of it with the keyboard where one is enough. No page leaves this server, breaks its own
// content policy, or has a finding of axe in light, dark or on a phone.
func TestVisit(t *testing.T) {
	t.Parallel()
	axeFile := findUpward(t, "bin/axe/node_modules/axe-core/axe.min.js")
	if axeFile == "" {
		t.Skip("needs axe-core: run scripts/setup servers")
	}
	axe, err := os.ReadFile(axeFile)
	if err != nil {
		t.Fatal(err)
	}
	s, alice := newVisitedSite(t)
	b := startBrowser(t)
	picture := func(name string) {
		if *screenshots != "" {
			b.screenshot(filepath.Join(*screenshots, name+".png"))
		}
	}
	b.setView(1180, 640, "light")
	b.open(s.server.URL + "/")
	b.await(`document.getElementById("connection").textContent === "live"`)
	picture("serve-list")
	b.setView(1180, 640, "dark")
	picture("serve-list-dark")
	b.setView(390, 780, "light")
	picture("serve-list-phone")
	var fits bool
	if b.evaluate("document.documentElement.scrollWidth <= innerWidth", &fits); !fits {
		t.Error("on a phone the page is wider than the screen")
	}
	b.setView(1180, 640, "light")

	// The keyboard: the first stop leads past the header.
	b.press("Tab", 9)
	b.await(`document.activeElement.className === "skip"`)
	b.press("Enter", 13)
	b.await(`document.activeElement.id === "main"`)

	// A search is sent while it is typed. The list below it changes, and the field keeps the focus.
	b.click(`input[name="q"]`)
	b.call("Input.insertText", fields{"text": "carol"}, nil)
	b.await(`document.querySelectorAll("tbody tr").length === 1 && location.search.includes("q=carol")`)
	b.await(`document.activeElement.name === "q" && document.getElementById("announcements").textContent === "1 lock"`)
	b.click(`tbody th a`)
	b.await(`location.pathname === "/locks/show" && document.getElementById("connection").textContent === "live"`)
	picture("serve-lock")
	b.setView(1180, 900, "dark")
	picture("serve-lock-dark")
	b.setView(390, 780, "light")
	picture("serve-lock-phone")
	b.setView(1180, 640, "light")

	// A hand-over is seen without loading the page again, and is announced.
	b.evaluate(`window.loadedOnce = true`, nil)
	if err := alice.Release(); err != nil {
		t.Fatal(err)
	}
	b.await(`document.querySelector("tbody tr th").textContent.includes("bob@app2 deploy[977]")`)
	b.await(`document.getElementById("announcements").textContent.includes("is held by bob@app2")`)
	b.await(`window.loadedOnce`)

	// A confirmation is a dialog. Escape leaves it, and the focus returns.
	breakLink := `a[aria-label^="Break deploy/web: bob"]`
	b.evaluate(fmt.Sprintf("document.querySelector(%q).focus()", breakLink), nil)
	b.press("Enter", 13)
	b.await(`document.getElementById("dialog").open && document.activeElement.id === "dialog-title"`)
	b.await(`document.getElementById("dialog").textContent.includes("Two holders never work at the same time.")`)
	picture("serve-confirm")
	for _, scheme := range []string{"light", "dark"} {
		b.setView(1180, 640, scheme)
		b.checkAccess(string(axe), "the dialog, "+scheme)
	}
	b.setView(1180, 640, "light")
	b.press("Escape", 27)
	b.await(`!document.getElementById("dialog").open`)
	b.await(fmt.Sprintf("document.activeElement === document.querySelector(%q)", breakLink))
	b.press("Enter", 13)
	b.await(`document.getElementById("dialog").open`)
	b.click(`#dialog button[type="submit"]`)
	b.await(`document.querySelector(".done")?.textContent.includes("The claim is broken.")`)
	b.await(`!location.search.includes("done=")`)
	lock, err := s.client("x").Inspect(t.Context(), "deploy/web")
	if err != nil || slices.ContainsFunc(lock.Holders, func(c holdfast.ClaimInfo) bool {
		return strings.HasPrefix(c.Owner, "bob") && !c.Broken // he may have released it by now
	}) {
		t.Errorf("%+v %v", lock, err)
	}

	b.open(s.server.URL + "/runs")
	b.await(`document.querySelectorAll("tbody tr").length === 4`)
	picture("serve-runs")
	b.click(`a[aria-label^="Retry invoice/2026-1118"]`)
	b.await(`document.getElementById("dialog").open`)
	b.click(`#dialog button[type="submit"]`)
	b.await(`document.querySelector(".done")?.textContent.includes("One more run")`)
	b.open(s.server.URL + "/health")
	picture("serve-health")

	for _, path := range []string{"/", lockURL("deploy/web"), "/runs", keyURL("once", "invoice/2026-1118"), "/health",
		"/nothing",
		s.onLock("schema/migration", operator.BreakForce)} {
		b.open(s.server.URL + path)
		for _, scheme := range []string{"light", "dark"} {
			b.setView(1180, 640, scheme)
			b.checkAccess(string(axe), path+", "+scheme)
			b.setView(390, 780, scheme)
			b.checkAccess(string(axe), path+", on a phone, "+scheme)
		}
		b.setView(1180, 640, "light")
	}
	for _, url := range b.requests() {
		if !strings.HasPrefix(url, s.server.URL+"/") && url != "about:blank" {
			t.Errorf("a request leaves the server: %s", url)
		}
	}
	for _, c := range b.complaints() {
		if !strings.Contains(c, "/nothing") { // which is to be missing
			t.Errorf("the browser complains: %s", c)
		}
	}
}

// TestWithoutScript: with JavaScript switched off, a browser searches, opens and breaks by links and forms alone.
func TestWithoutScript(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true})
	s.hold("alice", "a b/ü?&\r\n")
	b := startBrowser(t)
	b.call("Emulation.setScriptExecutionDisabled", fields{"value": true}, nil)
	b.open(s.server.URL + "/")
	b.click("tbody th a")
	b.await(`location.pathname === "/locks/show" && document.readyState === "complete"`)
	b.click(`a[data-confirm][aria-label^="Force a break of"]`)
	b.await(`location.pathname === "/locks/confirm" && document.readyState === "complete"`)
	b.click(`input[name="sure"]`)
	b.click(`form[method="post"] button[type="submit"]`)
	b.await(`document.querySelector(".done")?.textContent.includes("The claim was removed at once.")`)
	lock, err := s.client("x").Inspect(t.Context(), "a b/ü?&\r\n")
	if err != nil || len(lock.Holders) != 0 {
		t.Errorf("%+v %v", lock, err)
	}
}
