// Package servepage is the page of holdfast serve: HTML that shows the locks and the runs of a store to operators, and
// lets them ask holders to release, break locks, and retry or forget runs.
//
// The HTML is complete without JavaScript. The script brings what is shown up to date: the server sends an event when
// something has changed, and the script reads the page again and changes what differs. So all HTML is made here.
package servepage

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

// Options are what a page shows, and what it may do.
type Options struct {
	Client *holdfast.Client
	Store  string // the store, fit to be shown: it contains no secret
	// AllowBreak lets those with the right request releases, break locks, and retry and forget runs. Otherwise the page
	// changes nothing.
	AllowBreak bool
	// Rights returns what the sender of a request may do with a lock. For a run of a ledger, the name is the ledger's,
	// a slash and the key. A right on a name is one on all names that begin with it. Nil: everything.
	Rights func(r *http.Request, lock string) operator.Rights
	// Refused is called when somebody without the right for it sends an action. Nil: no calls.
	Refused func(*http.Request, operator.Entry)
	// Audit is called before an action is carried out. If it returns an error, nothing is done. Otherwise finish is
	// called with the error of the action. Nil: no calls.
	Audit func(*http.Request, operator.Entry) (finish func(error), err error)
	// Doctor examines the store. It is called once per minute at most, while somebody looks. Nil: it is not shown.
	Doctor func(context.Context) ([]holdfast.Finding, error)
	// Ledgers are the names of ledgers that the page offers, besides those that have keys. Nil: "once".
	Ledgers []string
	// Viewer says who has sent a request, and what they may do. Nil: it is not shown.
	Viewer func(*http.Request) Viewer
}

// Viewer is who looks at the page.
type Viewer struct {
	Name   string
	Rights []string // in words: "see and hold names that begin with billing/"
	// MayBreak says that they may break some lock.
	MayBreak bool
}

// Page is the page, as a handler for /, /locks/, /runs, /health, /events and /static/.
type Page struct {
	opts   Options
	mux    *http.ServeMux
	secret []byte // signs the tokens of forms
	origin *http.CrossOriginProtection
	base   context.Context // ends with Close
	end    context.CancelFunc

	locks   *shared[listing]
	doctor  *shared[diagnosis]
	ledgers *shared[allLedgers]
	history *history

	mu      sync.Mutex
	watches map[string]*lockWatch
	runs    map[runsQuery]*shared[runListing]
	streams int // how many streams of events are open

	streamTimeout, tickPause time.Duration // shorter in tests
}

// New returns the page of a store.
func New(opts Options) *Page {
	if len(opts.Ledgers) == 0 {
		opts.Ledgers = []string{"once"}
	}
	p := &Page{opts: opts, mux: http.NewServeMux(), secret: []byte(rand.Text()),
		origin:  http.NewCrossOriginProtection(),
		history: newHistory(), watches: map[string]*lockWatch{}, runs: map[runsQuery]*shared[runListing]{},
		streamTimeout: streamTimeout, tickPause: tickPause}
	p.base, p.end = context.WithCancel(context.Background())
	p.locks = newShared(p.base, listInterval, p.listLocks, listing.differsFrom)
	p.ledgers = newShared(p.base, ledgersInterval, p.listLedgers,
		func(a, b allLedgers) bool { return !slices.Equal(a.keys, b.keys) })
	p.doctor = newShared(p.base, doctorInterval, p.diagnose, func(a, b diagnosis) bool { return a.at != b.at })
	for pattern, handler := range p.routes() {
		p.mux.Handle(pattern, handler)
	}
	p.mux.Handle("/", p.servePage(func(*http.Request) (*content, error) {
		return nil, newPageError(http.StatusNotFound, "There is no such page.")
	}))
	return p
}

// routes are all patterns. A test has what each of them shows to those without rights.
func (p *Page) routes() map[string]http.Handler {
	routes := map[string]http.Handler{"GET /events": http.HandlerFunc(p.serveEvents),
		"GET /static/{file}": http.HandlerFunc(serveStatic)}
	for pattern, show := range map[string]pageFunc{
		"GET /{$}":           p.showList,
		"GET /locks/{$}":     p.showList,
		"GET /locks/show":    p.showLock,
		"GET /locks/confirm": p.confirmOnLock,
		"POST /locks/act":    p.actOnLock,
		"GET /runs":          p.showRuns,
		"GET /runs/show":     p.showKey,
		"GET /runs/confirm":  p.confirmOnRun,
		"POST /runs/act":     p.actOnRun,
		"GET /health":        p.showHealth,
	} {
		routes[pattern] = p.servePage(show)
	}
	return routes
}

// Close ends the streams of events and what the page watches. It does not close the client.
func (p *Page) Close() { p.end() }

// contentPolicy lets a page load what this server sends, and nothing else: no inline script or style, no frames.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, forms would be sent with the origin null
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
	p.mux.ServeHTTP(w, r)
}

// rights are what the sender of a request may do with a lock. Nothing can be broken on a page that is read-only.
func (p *Page) rights(r *http.Request, lock string) operator.Rights {
	rights := operator.Rights{See: true, Hold: true, Break: true}
	if p.opts.Rights != nil {
		rights = p.opts.Rights(r, lock)
	}
	rights.Break = rights.Break && rights.See && p.opts.AllowBreak
	return rights
}

// readTimeout bounds one read of the store.
const readTimeout = 15 * time.Second
