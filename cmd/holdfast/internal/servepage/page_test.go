package servepage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/memory"
)

// site is a page on a store in memory, and a browser without JavaScript.
type site struct {
	*testing.T
	memory  *memory.Memory
	page    *Page
	server  *httptest.Server
	browser *http.Client
}

func newSite(t *testing.T, opts Options) *site {
	t.Helper()
	return newSiteOn(t, opts, memory.New(nil), func(s driver.Store) driver.Store { return s })
}

// newSiteOn is newSite with a store that the page reads through another one.
func newSiteOn(t *testing.T, opts Options, m *memory.Memory, through func(driver.Store) driver.Store) *site {
	t.Helper()
	s := &site{T: t, memory: m}
	client, err := holdfast.New(through(m.Open()), &holdfast.Options{Owner: "the page"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	opts.Client, opts.Store = client, "memory"
	s.page = New(opts)
	s.server = httptest.NewServer(s.page)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.browser = s.server.Client()
	s.browser.Jar = jar
	t.Cleanup(func() {
		s.page.Close()
		s.server.Close()
	})
	return s
}

// client is another process on the same store.
func (s *site) client(owner string) *holdfast.Client {
	s.Helper()
	c, err := holdfast.New(s.memory.Open(), &holdfast.Options{Owner: owner})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.Close() })
	return c
}

// hold holds a lock until the test ends. Its holder does not learn of a break meanwhile.
func (s *site) hold(owner, name string) *holdfast.Lease {
	s.Helper()
	lease, err := s.client(owner).Mutex(name, &holdfast.LockOptions{TTL: time.Hour}).TryLock(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return lease
}

// wait lets a client wait for a lock. It returns when the claim is in the store.
func (s *site) wait(owner, name string) {
	s.Helper()
	c := s.client(owner)
	go func() {
		_, _ = c.Mutex(name, &holdfast.LockOptions{Fair: true}).Lock(s.Context())
	}()
	for lock, err := range s.client("the test").Watch(s.Context(), name) {
		if err != nil {
			s.Fatal(err)
		}
		if slices.ContainsFunc(lock.Waiters, func(c holdfast.ClaimInfo) bool { return c.Owner == owner }) {
			return
		}
	}
}

// response is what a browser has received.
type response struct {
	status int
	header http.Header
	body   string
	url    string // after redirections
}

func (s *site) send(r *http.Request) response {
	s.Helper()
	res, err := s.browser.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return response{res.StatusCode, res.Header, string(body), res.Request.URL.RequestURI()}
}

func (s *site) get(path string) response {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), "GET", s.server.URL+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	return s.send(r)
}

// see reads a page until it shows a text: what a page shows may be a second old.
func (s *site) see(path, want string) response {
	s.Helper()
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		r := s.get(path)
		if strings.Contains(r.body, want) {
			return r
		}
		if time.Since(start) > time.Minute || r.status != http.StatusOK {
			s.Fatalf("%s does not show %q: %d %s", path, want, r.status, r.body)
		}
	}
}

var (
	formAction = regexp.MustCompile(`<form method="post" action="([^"]*)"`)
	formToken  = regexp.MustCompile(`name="token" value="([^"]*)"`)
)

// confirm opens a confirmation and sends its form, with fields in turn.
func (s *site) confirm(path string, fields ...string) response {
	s.Helper()
	r := s.get(path)
	action, token := formAction.FindStringSubmatch(r.body), formToken.FindStringSubmatch(r.body)
	if r.status != http.StatusOK || action == nil || token == nil {
		s.Fatalf("%s has no form: %d %s", path, r.status, r.body)
	}
	return s.post(unescape(action[1]), append(fields, "token", token[1])...)
}

func unescape(s string) string {
	return strings.NewReplacer("&amp;", "&", "&#34;", `"`, "&#39;", "'", "&lt;", "<", "&gt;", ">").Replace(s)
}

func (s *site) post(path string, fields ...string) response {
	s.Helper()
	v := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		v.Set(fields[i], fields[i+1])
	}
	r, err := http.NewRequestWithContext(s.Context(), "POST", s.server.URL+path, strings.NewReader(v.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.send(r)
}

// onLock is the URL of a confirmation on the only holder of a lock.
func (s *site) onLock(name string, action operator.Action) string {
	s.Helper()
	lock, err := s.client("the test").Inspect(s.Context(), name)
	if err != nil || len(lock.Holders) == 0 {
		s.Fatalf("%q has no holder: %v", name, err)
	}
	return buildURL("/locks/confirm", "name", name, "ref", shown.HiddenRef(lock.Holders[0].Ref), "action", string(action))
}

// TestList: the list shows each lock with its holder, token and waiters in their order; it is sorted, searched and
// paged; and what is on the page is in words, not only in colors.
func TestList(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	lease := s.hold("alice", "deploy")
	s.wait("bob", "deploy")
	s.wait("carol", "deploy")
	s.hold("dave", "import/1")
	r := s.get("/")
	for _, want := range []string{`<bdi>deploy</bdi>`, "<bdi>alice</bdi>", fmt.Sprint(lease.Token()), ">held</span>",
		"<li><bdi>bob</bdi></li><li><bdi>carol</bdi></li>", "mutex", "<bdi>import/1</bdi>", "<caption", `scope="col"`,
		`aria-sort="ascending"`, "read-only", `lang="en"`, `<main id="main"`, `href="#main"`} {
		if !strings.Contains(r.body, want) {
			t.Errorf("the list does not show %q", want)
		}
	}
	if strings.Contains(r.body, "/locks/confirm") || strings.Contains(r.body, "<script>") ||
		strings.Contains(r.body, "style=") {
		t.Error("a list that is read-only has actions, or the page has inline script or style")
	}
	for path, want := range map[string]string{"/?q=CAR": "deploy", "/?q=dave": "import/1", "/?prefix=imp": "import/1",
		"/?only=waiting": "deploy", "/locks/?q=alice": "deploy"} {
		r := s.get(path)
		if strings.Count(r.body, "data-key=") != 1 || !strings.Contains(r.body, "<bdi>"+want+"</bdi></a>") {
			t.Errorf("%s does not show only %s", path, want)
		}
	}
	if r := s.get("/?q=nothing"); !strings.Contains(r.body, "No lock matches") {
		t.Error("a search without a match does not say so")
	}
	if r := s.get("/?sort=waiting"); strings.Index(r.body, "<bdi>deploy") > strings.Index(r.body, "<bdi>import/1") ||
		!strings.Contains(r.body, `aria-sort="descending"`) {
		t.Error("the lock with waiters is not first")
	}
}

// TestManyLocks: of 1,000 locks, 100 are on a page, and all pages together show each of them once.
func TestManyLocks(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	c := s.client("alice")
	const n = 1000
	for i := range n {
		if _, err := c.Mutex(fmt.Sprintf("lock-%04d", i), nil).TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.see("/", "of 1000 locks")
	seen := map[string]bool{}
	for page := 1; page <= n/perPage; page++ {
		r := s.get(fmt.Sprintf("/?page=%d", page))
		for _, m := range regexp.MustCompile(`<bdi>(lock-\d+)</bdi></a>`).FindAllStringSubmatch(r.body, -1) {
			seen[m[1]] = true
		}
		if len(r.body) > 200_000 {
			t.Errorf("page %d has %d bytes", page, len(r.body))
		}
	}
	if len(seen) != n {
		t.Errorf("%d locks were shown", len(seen))
	}
}

// oddNames are names that could break a page, a URL or a form.
var oddNames = []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'&quot;&amp;`,
	"../../etc/passwd", "a//b/./c",
	"..", "line\nbreak\r\nend", "tab\tname", "\u202Eltr", "שלום/עולם", "日本語", "50%", "a+b c", "?name=x#y", "\\", "\x7f", "javascript:alert(1)", " ", "{{.}}"}

// TestOddNames: a lock with any name, owner and note is listed, opened and broken, and nothing of them becomes markup.
func TestOddNames(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true})
	for _, name := range oddNames {
		c := s.client("owner " + name)
		if _, err := c.Mutex(name, &holdfast.LockOptions{Meta: name}).TryLock(t.Context()); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	list := s.see("/", fmt.Sprintf("%d locks</p>", len(oddNames)))
	check := func(body string) {
		t.Helper()
		for _, bad := range []string{"<script>alert", "<img src=x", "\u202E", "\x7f", "href=\"javascript:"} {
			if strings.Contains(body, bad) {
				t.Errorf("the page contains %q", bad)
			}
		}
	}
	check(list.body)
	for _, name := range oddNames {
		if href := `href="` + escape(lockURL(name)) + `"`; !strings.Contains(list.body, href) {
			t.Errorf("no link to %q", name)
		}
		r := s.get(lockURL(name))
		if r.status != http.StatusOK || !strings.Contains(r.body, string(nameText(name))) {
			t.Errorf("%q: %d", name, r.status)
		}
		check(r.body)
		r = s.confirm(s.onLock(name, operator.BreakForce), "sure", "yes")
		check(r.body)
		if r.status != http.StatusOK || !strings.Contains(r.body, doneTexts[operator.BreakForce][:20]) {
			t.Errorf("breaking %q: %d %s", name, r.status, r.body)
		}
		if lock, err := s.client("x").Inspect(t.Context(), name); err != nil || len(lock.Holders) != 0 {
			t.Errorf("%q is held: %v", name, err)
		}
	}
}

// TestEscape: text is escaped as content and as an attribute, and what HTML does not allow is replaced.
func TestEscape(t *testing.T) {
	t.Parallel()
	got := element("a", attrs{"title", `"<'&`, "rel", noAttr}, plain("<b>&\x00\xff\x1b"), nameText("x\ny"))
	want := markup(`<a title="&#34;&lt;&#39;&amp;">&lt;b&gt;&amp;` + "\uFFFD\uFFFD\uFFFD" +
		`<bdi>&#34;x\ny&#34;</bdi></a>`)
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestHeaders: every response forbids everything that does not come from this server.
func TestHeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	for _, path := range []string{"/", "/locks/show?name=a", "/runs", "/health", "/static/page.js", "/static/page.css",
		"/nothing"} {
		h := s.get(path).header
		for directive := range strings.SplitSeq(h.Get("Content-Security-Policy"), "; ") {
			if name, source, _ := strings.Cut(directive, " "); source != "'none'" && source != "'self'" || name == "" {
				t.Errorf("%s: the content policy has %q", path, directive)
			}
		}
		if !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") ||
			h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("X-Frame-Options") != "DENY" || h.Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: %v", path, h)
		}
	}
	for path, want := range map[string]int{"/nothing": 404, "/static/..%2fpage.go": 404, "/static/page_test.go": 404,
		"/locks/show": 400, "/runs/show?key=a": 404, "/runs/show": 400, "/events": 400, "/events?of=lock": 403,
		"/locks/act": 404, "/runs?ledger=a/b": 200} {
		if r := s.get(path); r.status != want {
			t.Errorf("%s: %d, want %d", path, r.status, want)
		}
	}
	if r := s.get("/static/page.css?v=1"); !strings.HasPrefix(r.header.Get("Content-Type"), "text/css") {
		t.Error(r.header)
	}
}

// TestBreakOnPage: asking, breaking and breaking by force each show what will happen, and are carried out after that.
func TestBreakOnPage(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var written []operator.Entry
	finished := 0
	s := newSite(t, Options{AllowBreak: true, Audit: func(_ *http.Request, e operator.Entry) (func(error), error) {
		mu.Lock()
		defer mu.Unlock()
		written = append(written, e)
		return func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				finished++
			}
		}, nil
	}})
	lease := s.hold("alice", "deploy")
	for action, want := range map[operator.Action]string{
		operator.RequestRelease: "Nothing is taken away.", operator.Break: "Two holders never work at the same time.",
		operator.BreakForce: "two may work at the same time",
	} {
		if r := s.get(s.onLock("deploy", action)); r.status != http.StatusOK || !strings.Contains(r.body, want) ||
			!strings.Contains(r.body, fmt.Sprint(lease.Token())) || !strings.Contains(r.body, "<bdi>alice</bdi>") {
			t.Errorf("%s does not say what will happen: %d %s", action, r.status, r.body)
		}
	}
	if len(written) != 0 || lease.Err() != nil {
		t.Error("a confirmation has changed something")
	}
	ask := s.onLock("deploy", operator.RequestRelease)
	force := s.onLock("deploy", operator.BreakForce)
	if r := s.confirm(ask); r.status != http.StatusOK || !strings.Contains(r.body, "asked to release") ||
		!strings.HasPrefix(r.url, "/locks/show?name=deploy&done=") {
		t.Errorf("%d %s %s", r.status, r.url, r.body)
	}
	if r := s.confirm(force); r.status != http.StatusBadRequest || !strings.Contains(r.body, "Tick the box") {
		t.Errorf("a forced break without the box: %d", r.status)
	}
	if r := s.confirm(force, "sure", "yes", "reason", "two\nlines"); r.status != http.StatusBadRequest {
		t.Errorf("a reason of two lines: %d", r.status)
	}
	if lock, err := s.client("x").Inspect(t.Context(), "deploy"); err != nil || len(lock.Holders) != 1 ||
		!lock.Holders[0].ReleaseRequested || lock.Holders[0].Broken {
		t.Errorf("%+v %v", lock, err)
	}
	if page := s.get(lockURL("deploy")).body; strings.Contains(page, lease.Ref()) {
		t.Error("the page shows the ref, with which everybody could release the lock")
	}
	if r := s.confirm(s.onLock("deploy", operator.Break), "reason", "INC-1"); r.status != http.StatusOK {
		t.Errorf("%d %s", r.status, r.body)
	}
	s.see(lockURL("deploy"), ">broken</span>")
	s.see(lockURL("deploy"), "was broken") // in the history, which follows the watch and may show it later
	if r := s.confirm(force, "sure", "yes"); r.status != http.StatusOK {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := s.get(force); r.status != http.StatusConflict || !strings.Contains(r.body, "does not exist any more") {
		t.Errorf("a claim that has ended: %d", r.status)
	}
	var actions []operator.Action
	for _, e := range written {
		actions = append(actions, e.Action)
		if e.Lock != "deploy" || e.Owner != "alice" || e.Token != lease.Token() ||
			e.Ref != shown.HiddenRef(lease.Ref()) || (e.Reason == "INC-1") != (e.Action == operator.Break) {
			t.Errorf("%+v", e)
		}
	}
	if want := []operator.Action{operator.RequestRelease, operator.Break, operator.BreakForce}; !slices.Equal(actions, want) {
		t.Errorf("the audit log has %v, want %v", actions, want)
	}
	if finished != len(actions) {
		t.Errorf("the audit log has the outcome of %d actions", finished)
	}
}

// TestReasonReachesHolder: the holder of a broken lock learns the reason that was typed.
func TestReasonReachesHolder(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true})
	lease, err := s.client("alice").Mutex("a", nil).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.confirm(s.onLock("a", operator.Break), "reason", "INC-124")
	<-lease.Context().Done()
	var loss *holdfast.LossError
	if !errors.As(lease.Err(), &loss) || loss.Cause != holdfast.LossBroken ||
		!strings.Contains(loss.Error(), "INC-124") {
		t.Errorf("%v", lease.Err())
	}
}

// TestRemoveWaiter: a waiter is removed from the queue, and the holder is not touched.
func TestRemoveWaiter(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true})
	lease := s.hold("alice", "a")
	s.wait("bob", "a")
	lock, err := s.client("x").Inspect(t.Context(), "a")
	if err != nil || len(lock.Waiters) != 1 {
		t.Fatal(lock, err)
	}
	path := buildURL("/locks/confirm", "name", "a", "ref", shown.HiddenRef(lock.Waiters[0].Ref), "action",
		string(operator.Break))
	if r := s.get(path); !strings.Contains(r.body, "The holder is not touched.") {
		t.Error(r.body)
	}
	s.confirm(path)
	for lock, err := range s.client("x").Watch(t.Context(), "a") {
		if err != nil {
			t.Fatal(err)
		}
		if len(lock.Waiters) == 0 {
			break
		}
	}
	if err := lease.Err(); err != nil {
		t.Error(err)
	}
}

// TestWaiterBecameHolder: a form that removes a waiter from the queue does not break the lock if the waiter holds it
// when the form is sent.
func TestWaiterBecameHolder(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true})
	lease := s.hold("alice", "a")
	s.wait("bob", "a")
	lock, err := s.client("x").Inspect(t.Context(), "a")
	if err != nil || len(lock.Waiters) != 1 {
		t.Fatal(lock, err)
	}
	r := s.get(buildURL("/locks/confirm", "name", "a", "ref", shown.HiddenRef(lock.Waiters[0].Ref), "action",
		string(operator.Break)))
	action, token := formAction.FindStringSubmatch(r.body)[1], formToken.FindStringSubmatch(r.body)[1]
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	s.see(lockURL("a"), "a is held by bob")
	if r := s.post(unescape(action), "token", token); r.status != http.StatusConflict ||
		!strings.Contains(r.body, "holds the lock now") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if lock, err = s.client("x").Inspect(t.Context(), "a"); err != nil || len(lock.Holders) != 1 ||
		lock.Holders[0].Broken {
		t.Errorf("%+v %v", lock, err)
	}
}

// TestForgedForms: a form without the cookie, with another token, from another site or of another type changes nothing.
func TestForgedForms(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true, Audit: func(*http.Request, operator.Entry) (func(error), error) {
		t.Error("a forged form reaches the audit log")
		return func(error) {}, nil
	}})
	s.hold("alice", "a")
	confirm := s.get(s.onLock("a", operator.BreakForce))
	action := unescape(formAction.FindStringSubmatch(confirm.body)[1])
	token := formToken.FindStringSubmatch(confirm.body)[1]
	send := func(change func(r *http.Request)) int {
		body := url.Values{"token": {token}, "sure": {"yes"}}.Encode()
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.server.URL+action, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		change(r)
		return s.send(r).status
	}
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, c := range map[string]struct {
		change func(r *http.Request)
		want   int
	}{
		"another site":   {set("Sec-Fetch-Site", "cross-site"), 403},
		"another origin": {set("Origin", "http://evil.example"), 403},
		"no origin":      {set("Origin", "null"), 403},
		"JSON":           {set("Content-Type", "application/json"), 415},
		"text":           {set("Content-Type", "text/plain"), 415},
		"a large form": {func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader("token=" + strings.Repeat("x", maxForm)))
			r.ContentLength = -1
		}, 400},
		"another token": {func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader("sure=yes&token=" + strings.Repeat("0", 32)))
			r.ContentLength = -1
		}, 403},
	} {
		if got := send(c.change); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	jar := s.browser.Jar
	for name, value := range map[string]string{"no cookie": "", "another cookie": "x"} {
		s.browser.Jar = nil
		if got := send(func(r *http.Request) {
			if value != "" {
				r.AddCookie(&http.Cookie{Name: csrfCookie, Value: value})
			}
		}); got != http.StatusForbidden {
			t.Errorf("%s: %d", name, got)
		}
	}
	s.browser.Jar = jar
	set2 := confirm.header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/"} {
		if !strings.Contains(set2, want) {
			t.Errorf("the cookie is %q", set2)
		}
	}
	if r := s.get("/locks/show?name=a&done=break-force&by=x"); strings.Contains(r.body,
		doneTexts[operator.BreakForce][:20]) {
		t.Error("a link can say that something was done")
	}
}

// TestReadOnlyPage: without AllowBreak nothing can be changed, and no action is offered.
func TestReadOnlyPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	lease := s.hold("alice", "a")
	if r := s.get(lockURL("a")); strings.Contains(r.body, "/locks/confirm") {
		t.Error("the lock offers actions")
	}
	for _, action := range []operator.Action{operator.RequestRelease, operator.Break, operator.BreakForce} {
		path := s.onLock("a", action)
		if r := s.get(path); r.status != http.StatusForbidden || !strings.Contains(r.body, "--allow-break") {
			t.Errorf("%s: %d", action, r.status)
		}
		_, cookie := s.page.formToken(&http.Request{Header: http.Header{}})
		r, err := http.NewRequestWithContext(t.Context(), "POST",
			s.server.URL+strings.Replace(path, "confirm", "act", 1)+
				"&when=holding", strings.NewReader("sure=yes&token="+
				s.page.sign("form "+cookie.Value)))
		if err != nil {
			t.Fatal(err)
		}
		r.AddCookie(cookie)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if got := s.send(r); got.status != http.StatusForbidden {
			t.Errorf("%s with a good token: %d", action, got.status)
		}
	}
	if lock, err := s.client("x").Inspect(t.Context(), "a"); err != nil || lease.Err() != nil ||
		lock.Holders[0].ReleaseRequested || lock.Holders[0].Broken {
		t.Errorf("%+v %v", lock, err)
	}
}

// findSecret finds something about a lock.
func findSecret(context.Context) ([]holdfast.Finding, error) {
	return []holdfast.Finding{{Code: "c", Severity: holdfast.SeverityWarning, What: "w", Subject: "secret/1"}}, nil
}

// TestRights: nobody sees a lock without the right to see it, or breaks one without the right to break it.
func TestRights(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true, Rights: func(_ *http.Request, lock string) operator.Rights {
		return operator.Rights{See: !strings.HasPrefix(lock, "secret"), Break: strings.HasPrefix(lock, "mine") ||
			strings.HasPrefix(lock, "secret")}
	}})
	seesAll := newSite(t, Options{Doctor: findSecret})
	if health := seesAll.get("/health").body; !strings.Contains(health, "secret/1") {
		t.Error(health)
	}
	seesSome := newSite(t, Options{Doctor: findSecret, Rights: func(_ *http.Request, lock string) operator.Rights {
		return operator.Rights{See: strings.HasPrefix(lock, "mine")}
	}})
	if health := seesSome.get("/health").body; strings.Contains(health, "secret/1") {
		t.Error(health)
	}
	for _, name := range []string{"secret/1", "mine/1", "theirs/1"} {
		s.hold("alice", name)
	}
	list := s.get("/").body
	if strings.Contains(list, "secret") || !strings.Contains(list, "theirs/1") ||
		!strings.Contains(list, "name=mine%2F1&amp;ref=") || strings.Contains(list, "name=theirs%2F1&amp;ref=") {
		t.Error(list)
	}
	for path, want := range map[string]int{
		lockURL("secret/1"): 403, lockURL("secret/none"): 403, lockURL("theirs/1"): 200, lockURL("mine/1"): 200,
		s.onLock("secret/1", operator.Break): 403, s.onLock("theirs/1", operator.Break): 403,
		s.onLock("theirs/1", operator.RequestRelease): 403, s.onLock("mine/1", operator.Break): 200,
		"/events?of=lock&name=secret%2F1": 403,
	} {
		if r := s.get(path); r.status != want {
			t.Errorf("%s: %d, want %d", path, r.status, want)
		}
	}
}

// TestAuditRefuses: an action that cannot be written to the audit log is not carried out.
func TestAuditRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{AllowBreak: true, Audit: func(*http.Request, operator.Entry) (func(error), error) {
		return nil, errors.New("no space left on device")
	}})
	lease := s.hold("alice", "a")
	r := s.confirm(s.onLock("a", operator.BreakForce), "sure", "yes")
	if r.status != http.StatusServiceUnavailable || !strings.Contains(r.body, "no space left") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if lock, err := s.client("x").Inspect(t.Context(), "a"); err != nil || len(lock.Holders) != 1 ||
		lease.Err() != nil {
		t.Errorf("%+v %v", lock, err)
	}
}

// openEvents opens a stream of events, and returns its lines.
func (s *site) openEvents(query string) *bufio.Scanner {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), "GET", s.server.URL+"/events?of="+query, nil)
	if err != nil {
		s.Fatal(err)
	}
	res, err := s.browser.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		s.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	return bufio.NewScanner(res.Body)
}

// nextChange waits for the next event.
func nextChange(t *testing.T, events *bufio.Scanner) {
	t.Helper()
	for events.Scan() {
		if events.Text() == "event: change" {
			return
		}
	}
	t.Fatalf("the stream has ended: %v", events.Err())
}

// TestLiveHandOver: a hand-over makes an event, after which the page shows the new holder, and the history shows who
// held the lock before, who waited and for how long.
func TestLiveHandOver(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"lock&name=deploy", "list"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, Options{})
			lease := s.hold("alice", "deploy")
			s.wait("bob", "deploy")
			s.see(lockURL("deploy"), `class="held"`) // the history has begun
			events := s.openEvents(of)
			path := map[bool]string{true: "/", false: lockURL("deploy")}[of == "list"]
			if r := s.get(path); !strings.Contains(r.body, "deploy is held by alice") {
				t.Fatal(r.body)
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
			for !strings.Contains(s.get(path).body, "deploy is held by bob") {
				nextChange(t, events)
			}
			r := s.see(lockURL("deploy"), "ended: released, or lost")
			for _, want := range []string{"<svg", `class="waited"`, `class="held"`, "acquired", "waits"} {
				if !strings.Contains(r.body, want) {
					t.Errorf("the history does not show %q", want)
				}
			}
		})
	}
}

// TestSlowReader: a reader of events that reads nothing delays nobody, and what it has missed is one event.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	var n notifier
	slow, unsubscribe := n.subscribe()
	for range 1000 {
		n.notifyAll()
	}
	<-slow
	select {
	case <-slow:
		t.Error("a slow reader has more than one event to read")
	default:
	}
	unsubscribe()
	n.notifyAll()
	if len(slow) != 0 || n.count() != 0 {
		t.Error("a reader that is gone is notified")
	}
}

// pipeListener is a network whose connections keep nothing: a write waits until it is read.
type pipeListener struct{ conns chan net.Conn }

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

func (l *pipeListener) Close() error { return nil }

func (l *pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// TestReaderThatStops: a stream whose reader reads nothing any more ends, and its place is free.
func TestReaderThatStops(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	s.page.streamTimeout = 5 * time.Second // the first line is read in time on a busy machine, too
	l := &pipeListener{conns: make(chan net.Conn, 1)}
	server := &http.Server{Handler: s.page}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	browser, end := net.Pipe()
	l.conns <- end
	if _, err := io.WriteString(browser, "GET /events?of=list HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	first := bufio.NewReader(browser)
	if line, err := first.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatal(line, err)
	}
	streams := func() int {
		s.page.mu.Lock()
		defer s.page.mu.Unlock()
		return s.page.streams
	}
	limit := time.After(time.Minute)
	for streams() != 0 { // nothing is read from here on
		s.page.locks.notifier.notifyAll()
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.Fatal("the stream goes on")
		}
	}
	if n := s.page.locks.notifier.count(); n != 0 {
		t.Errorf("%d subscribers are left", n)
	}
	close(l.conns)
	<-served
	browser.Close()
}

// TestStreamLimit: when there are as many streams as are allowed, another one is refused, and Close ends all of them.
func TestStreamLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	events := s.openEvents("list")
	s.page.mu.Lock()
	s.page.streams = maxStreams
	s.page.mu.Unlock()
	if r := s.get("/events?of=list"); r.status != http.StatusServiceUnavailable {
		t.Error(r.status)
	}
	s.page.Close()
	for events.Scan() {
	}
	if err := events.Err(); err != nil {
		t.Error(err)
	}
}

// TestSharedReads: any number of viewers who come at the same time cause one read, and one whose value is fresh causes
// none. A value from before a change by the page is not fresh.
func TestSharedReads(t *testing.T) {
	t.Parallel()
	reads, began, proceed := 0, make(chan struct{}), make(chan struct{})
	s := newShared(t.Context(), time.Hour, func(context.Context) int {
		began <- struct{}{}
		<-proceed
		reads++
		return reads
	}, func(a, b int) bool { return a != b })
	const viewers = 50
	got := make(chan int, viewers)
	for range viewers {
		go func() {
			v, _ := s.get(t.Context())
			got <- v
		}()
	}
	<-began
	proceed <- struct{}{}
	for range viewers {
		if v := <-got; v != 1 {
			t.Errorf("a viewer gets read %d", v)
		}
	}
	if v, err := s.get(t.Context()); v != 1 || err != nil {
		t.Errorf("a fresh value was read again: %d %v", v, err)
	}
	// A read that began before the change is not enough.
	s.invalidate()
	go func() {
		v, _ := s.get(t.Context())
		got <- v
	}()
	<-began
	s.invalidate()
	proceed <- struct{}{}
	<-began
	proceed <- struct{}{}
	if v := <-got; v != 3 {
		t.Errorf("after a change a viewer gets read %d", v)
	}
}

// TestIdleWatch: a lock is watched for as long as somebody looks at it, and no longer than a while after that.
func TestIdleWatch(t *testing.T) {
	t.Parallel()
	p := newSite(t, Options{}).page
	w, err := p.watchLock("a")
	if err != nil {
		t.Fatal(err)
	}
	isWatched := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.watches["a"] == w
	}
	_, unsubscribe := w.state.notifier.subscribe()
	w.state.mu.Lock()
	w.state.touched = time.Now().Add(-watchIdle)
	w.state.mu.Unlock()
	if left := p.endIfIdle("a", w); left <= 0 || !isWatched() {
		t.Errorf("somebody looks; left %v, watched %v", left, isWatched())
	}
	unsubscribe()
	if left := p.endIfIdle("a", w); left > 0 || isWatched() {
		t.Errorf("nobody looks; left %v, watched %v", left, isWatched())
	}
}

// TestNoViewers: nothing is read while nobody looks, and one loop reads for all who do.
func TestNoViewers(t *testing.T) {
	t.Parallel()
	reads := make(chan struct{})
	s := newShared(t.Context(), time.Millisecond, func(context.Context) int {
		reads <- struct{}{}
		return 0
	}, func(a, b int) bool { return a != b })
	_, first := s.subscribe()
	_, second := s.subscribe()
	<-reads
	<-reads
	first()
	<-reads
	second()
	for {
		select {
		case <-reads: // the loop may be reading
			continue
		default:
		}
		s.mu.Lock()
		looping := s.looping
		s.mu.Unlock()
		if !looping {
			break
		}
	}
	changed, unsubscribe := s.subscribe()
	defer unsubscribe()
	<-reads
	<-changed
}

// TestEachPathAsksForRights: no path shows those without rights anything of a lock or a run, or changes it. Each path
// has a row here.
func TestEachPathAsksForRights(t *testing.T) {
	t.Parallel()
	var rights atomic.Pointer[operator.Rights]
	var refused []operator.Entry
	rights.Store(&operator.Rights{See: true, Break: true})
	s := newSite(t, Options{AllowBreak: true, Doctor: findSecret,
		Rights:  func(*http.Request, string) operator.Rights { return *rights.Load() },
		Refused: func(_ *http.Request, e operator.Entry) { refused = append(refused, e) }})
	lease := s.hold("SECRET-OWNER", "secret/1")
	s.addRuns()
	onLock, onRun := s.onLock("secret/1", operator.BreakForce), "/runs/confirm?key=invoice%2F2026-1119&action=forget"
	form := s.get(onLock).body
	token := formToken.FindStringSubmatch(form)[1]
	act := unescape(formAction.FindStringSubmatch(form)[1])
	s.see("/", "secret/1") // so that it is in what all share
	s.see("/runs", "2026-1119")
	paths := map[string]struct {
		path   string
		status int
	}{
		"GET /{$}":           {"/", 200},
		"GET /locks/{$}":     {"/locks/", 200},
		"GET /locks/show":    {lockURL("secret/1"), 403},
		"GET /locks/confirm": {onLock, 403},
		"POST /locks/act":    {act, 403},
		"GET /runs":          {"/runs", 200},
		"GET /runs/show":     {keyURL("once", "invoice/2026-1119"), 403},
		"GET /runs/confirm":  {onRun, 403},
		"POST /runs/act":     {strings.Replace(onRun, "confirm", "act", 1), 403},
		"GET /health":        {"/health", 200},
		"GET /events":        {"/events?of=lock&name=secret%2F1", 403},
		"GET /static/{file}": {"/static/page.css", 200},
	}
	for pattern := range s.page.routes() {
		if _, ok := paths[pattern]; !ok {
			t.Errorf("%s has no row", pattern)
		}
	}
	for _, none := range []operator.Rights{{}, {Hold: true}, {Break: true}} {
		rights.Store(&none)
		refused = nil
		for pattern, row := range paths {
			r := response{}
			if strings.HasPrefix(pattern, "POST") {
				r = s.post(row.path, "token", token, "sure", "yes")
			} else {
				r = s.get(row.path)
			}
			if r.status != row.status || strings.Contains(r.body, "secret/1") || strings.Contains(r.body, "SECRET") ||
				strings.Contains(r.body, "2026-1119") {
				t.Errorf("%+v: %s: %d %s", none, pattern, r.status, r.body)
			}
		}
		slices.SortFunc(refused, func(a, b operator.Entry) int { return strings.Compare(string(a.Action), string(b.Action)) })
		if want := []operator.Entry{{Action: operator.BreakForce, Lock: "secret/1"},
			{Action: operator.Forget, Ledger: "once", Key: "invoice/2026-1119"}}; !slices.Equal(refused, want) {
			t.Errorf("refused: %+v", refused)
		}
	}
	if lock, err := s.client("x").Inspect(t.Context(), "secret/1"); err != nil || len(lock.Holders) != 1 || lease.Err() != nil {
		t.Errorf("%+v %v", lock, err)
	}
}

// TestEventsTellNothingHidden: who may not see all that a page is about gets events at regular times, and the server
// does not even look for changes on their behalf.
func TestEventsTellNothingHidden(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{Rights: func(_ *http.Request, name string) operator.Rights {
		return operator.Rights{See: strings.HasPrefix(name, "team/")}
	}})
	s.page.tickPause = time.Millisecond
	for _, of := range []string{"list", "runs&ledger=payroll&prefix=bonus", "runs&ledger=team2", "runs"} {
		events := s.openEvents(of)
		nextChange(t, events) // nothing has changed
	}
	s.page.mu.Lock()
	runs := len(s.page.runs)
	s.page.mu.Unlock()
	if listings := s.page.locks.notifier.count(); runs != 0 || listings != 0 {
		t.Errorf("%d listings of runs and %d of locks are followed", runs, listings)
	}
	events := s.openEvents("runs&ledger=team&prefix=x") // all of which may be seen
	nextChange(t, events)
	s.page.mu.Lock()
	defer s.page.mu.Unlock()
	if len(s.page.runs) != 1 {
		t.Errorf("%d listings of runs are followed", len(s.page.runs))
	}
}

// TestEventsEndWithTheRight: a stream of events ends when its reader has lost the right to see the lock.
func TestEventsEndWithTheRight(t *testing.T) {
	t.Parallel()
	var hidden atomic.Bool
	s := newSite(t, Options{Rights: func(*http.Request, string) operator.Rights { return operator.Rights{See: !hidden.Load()} }})
	lease := s.hold("alice", "a")
	events := s.openEvents("lock&name=a")
	nextChange(t, events)
	hidden.Store(true)
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	for n := 0; events.Scan(); {
		if events.Text() != "event: change" {
			continue
		}
		if n++; n > 1 { // one may have been on its way
			t.Fatal("an event after the right was lost")
		}
	}
}
