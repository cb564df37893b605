package azuretest

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Proxy forwards requests to an emulator. A test decides what becomes of each.
type Proxy struct {
	URL string // the address of the account

	// Decide, if set before the first request, decides what becomes of each request. Several goroutines may call it at
	// once.
	Decide func(Request) Fate

	server  *http.Server
	to      string // without the account
	forward *http.Transport

	mu      sync.Mutex
	healed  chan struct{} // not nil while it is cut; closed when it heals
	shift   time.Duration
	counts  map[Kind]int
	answers map[Kind]Fate
}

// Kind is the kind of a request.
type Kind string

// All kinds.
const (
	Read      Kind = "read"      // a blob, or its properties
	List      Kind = "list"      // a page of a listing
	Write     Kind = "write"     // a blob is made or replaced
	Metadata  Kind = "metadata"  // a blob gets other metadata
	Lease     Kind = "lease"     // of a blob
	Delete    Kind = "delete"    // a blob is removed
	Container Kind = "container" // the properties of the container
	Info      Kind = "info"      // what kind of account it is
	Service   Kind = "service"   // the properties of the account
)

var kinds = []Kind{Read, List, Write, Metadata, Lease, Delete, Container, Info, Service}

// Request is a request.
type Request struct {
	Kind   Kind
	Method string
	Blob   string
	Action string // of a lease
}

// Fate says what becomes of a request. The zero value: it is handled.
type Fate struct {
	Status     int    // if it is not 0, the reply has this status instead of the service's
	Code       string // of that reply
	Message    string // in that reply
	Body       string // the body of that reply, instead of an error's
	Header     http.Header
	After      bool // the request is handled before it gets that reply
	DropReply  bool // it is handled, and the connection is closed without a reply
	ReplyDelay time.Duration
}

// NewProxy makes a proxy of the emulator.
func (s *Server) NewProxy() (*Proxy, error) {
	l, err := servertest.Listen()
	if err != nil {
		return nil, err
	}
	p := &Proxy{URL: "http://" + l.Addr().String() + "/" + Account, to: strings.TrimSuffix(s.Direct, "/"+Account),
		counts: map[Kind]int{}, answers: map[Kind]Fate{},
		// Idle connections are closed before the emulator does it, perhaps just when one is used again.
		forward: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, IdleConnTimeout: 2 * time.Second}}
	p.server = &http.Server{Handler: p}
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // tests that look for leaked goroutines must not count these
		_ = p.server.Serve(l)
	}()
	return p, nil
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() {
	p.Heal()
	_ = p.server.Close()
	p.forward.CloseIdleConnections()
}

// Cut holds back requests and replies, like a network that drops packets.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed == nil {
		p.healed = make(chan struct{})
	}
}

// Heal forwards the requests and replies that Cut has held back and whose clients still wait.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed != nil {
		close(p.healed)
		p.healed = nil
	}
}

// Shift sets how far the service's clock is ahead of the machine's. Requests that are dated a quarter of an hour off
// are refused.
func (p *Proxy) Shift(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shift = d
}

// Answer sets what becomes of all requests of a kind.
func (p *Proxy) Answer(k Kind, f Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[k] = f
}

// Counts returns how many requests of each kind there were since its last call, for example "read 1, write 2".
func (p *Proxy) Counts() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var parts []string
	for _, k := range kinds {
		if n := p.counts[k]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, n))
		}
	}
	clear(p.counts)
	return strings.Join(parts, ", ")
}

// ServeHTTP handles a request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	what := parseRequest(r)
	p.awaitHealed(r.Context())
	p.mu.Lock()
	p.counts[what.Kind]++
	fate, shift := p.answers[what.Kind], p.shift
	p.mu.Unlock()
	if p.Decide != nil && fate.Status == 0 {
		fate = p.Decide(what)
	}
	now := time.Now().Add(shift)
	if date, err := http.ParseTime(r.Header.Get("X-Ms-Date")); err != nil || now.Sub(date).Abs() > 15*time.Minute {
		fate = Fate{Status: http.StatusForbidden, Code: "AuthenticationFailed",
			Message: "Server failed to authenticate the request."}
	}
	if fate.Status != 0 && !fate.After {
		refuse(w, r, fate, now)
		return
	}
	reply, data := p.pass(r, body)
	select {
	case <-time.After(fate.ReplyDelay):
	case <-r.Context().Done():
	}
	p.awaitHealed(r.Context())
	switch {
	case fate.DropReply:
		panic(http.ErrAbortHandler)
	case fate.Status != 0:
		refuse(w, r, fate, now)
		return
	}
	maps.Copy(w.Header(), reply.Header)
	if date, err := http.ParseTime(reply.Header.Get("Date")); err == nil {
		w.Header().Set("Date", date.Add(shift).Format(http.TimeFormat))
	}
	maps.Copy(w.Header(), fate.Header)
	w.WriteHeader(reply.StatusCode)
	_, _ = w.Write(data)
}

// pass sends a request to the emulator, which does it even if the client gives up.
func (p *Proxy) pass(r *http.Request, body []byte) (*http.Response, []byte) {
	out, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, p.to+r.URL.RequestURI(),
		bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = r.Header.Clone()
	reply, err := p.forward.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(reply.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return reply, data
}

// refuse writes a reply as the service does.
func refuse(w http.ResponseWriter, r *http.Request, f Fate, now time.Time) {
	h := w.Header()
	h.Set("X-Ms-Request-Id", "0b0d7d52-001e-0032-0000-000000000000")
	h.Set("X-Ms-Version", r.Header.Get("X-Ms-Version"))
	h.Set("X-Ms-Client-Request-Id", r.Header.Get("X-Ms-Client-Request-Id"))
	h.Set("Content-Type", "application/xml")
	h.Set("Date", now.UTC().Format(http.TimeFormat))
	if f.Code != "" {
		h.Set("X-Ms-Error-Code", f.Code)
	}
	maps.Copy(h, f.Header)
	w.WriteHeader(f.Status)
	switch {
	case r.Method == http.MethodHead:
	case f.Body != "":
		_, _ = io.WriteString(w, f.Body)
	default:
		var message bytes.Buffer
		_ = xml.EscapeText(&message, []byte(f.Message))
		_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="utf-8"?><Error><Code>%s</Code><Message>%s
RequestId:0b0d7d52-001e-0032-0000-000000000000</Message></Error>`, f.Code, message.String())
	}
}

// awaitHealed waits while the proxy is cut.
func (p *Proxy) awaitHealed(ctx context.Context) {
	p.mu.Lock()
	healed := p.healed
	p.mu.Unlock()
	if healed == nil {
		return
	}
	select {
	case <-healed:
	case <-ctx.Done():
		panic(http.ErrAbortHandler)
	}
}

// parseRequest says what a request does.
func parseRequest(r *http.Request) Request {
	path := strings.TrimPrefix(r.URL.Path, "/"+Account)
	_, blob, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	q := r.URL.Query()
	what := Request{Kind: Read, Method: r.Method, Blob: blob, Action: r.Header.Get("X-Ms-Lease-Action")}
	switch comp := q.Get("comp"); {
	case comp == "list":
		what.Kind = List
	case q.Get("restype") == "account":
		what.Kind = Info
	case q.Get("restype") == "service":
		what.Kind = Service
	case q.Get("restype") == "container":
		what.Kind = Container
	case comp == "metadata":
		what.Kind = Metadata
	case comp == "lease":
		what.Kind = Lease
	case r.Method == http.MethodDelete:
		what.Kind = Delete
	case r.Method == http.MethodPut:
		what.Kind = Write
	}
	return what
}
