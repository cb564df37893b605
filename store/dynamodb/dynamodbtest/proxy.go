package dynamodbtest

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/freeport"
)

// Proxy is a way to a server on which a test decides about every request.
type Proxy struct {
	Endpoint string
	server   *http.Server
	to       string
	forward  *http.Transport

	mu            sync.Mutex
	healed        *sync.Cond
	cut           bool
	fate          func(Request) Fate
	shift         time.Duration
	alteredHeader string
	counts        map[string]int
}

// Request is one on its way.
type Request struct {
	Operation string // GetItem, UpdateItem ...
	Body      string
}

// Fate is what becomes of a request. The zero Fate is that it is passed on, and its reply passed back.
type Fate struct {
	DropRequest bool // it never arrives; the connection is reset
	DropReply   bool // it takes effect, and the connection is reset
	Delay       time.Duration
	// Status and Code, if set, answer in place of the service; if After is set, after the request has taken effect.
	Status        int
	Code, Message string
	After         bool
}

// NewProxy makes a way to a server.
func NewProxy(to string) (*Proxy, error) {
	l, err := freeport.Listen()
	if err != nil {
		return nil, err
	}
	p := &Proxy{Endpoint: "http://" + l.Addr().String(), to: to, counts: map[string]int{},
		// dynalite closes a connection that was idle for five seconds, perhaps just when it is used again
		forward: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, IdleConnTimeout: 2 * time.Second}}
	p.healed = sync.NewCond(&p.mu)
	p.server = &http.Server{Handler: p}
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // nobody's client is to be blamed for these
		_ = p.server.Serve(l)
	}()
	return p, nil
}

// ServeHTTP is the proxy at work.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	p.awaitHealed(r.Context())
	p.mu.Lock()
	p.counts[operation]++
	f, shift, spoilt := Fate{}, p.shift, p.alteredHeader
	if p.fate != nil {
		f = p.fate(Request{operation, string(body)})
	}
	p.mu.Unlock()
	time.Sleep(f.Delay)
	now := time.Now().Add(shift)
	if signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err == nil && now.Sub(signed).Abs() > 5*time.Minute {
		f = Fate{Status: 400, Code: "InvalidSignatureException", Message: "Signature expired: " + r.Header.Get("X-Amz-Date")}
	}
	if f.DropRequest {
		panic(http.ErrAbortHandler)
	}
	if f.Status != 0 && !f.After {
		writeReply(w, f, now)
		return
	}
	out, _ := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, p.to+r.URL.Path, bytes.NewReader(body))
	out.Header = r.Header.Clone()
	in, err := p.forward.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer in.Body.Close()
	reply, err := io.ReadAll(in.Body)
	if err != nil || f.DropReply {
		panic(http.ErrAbortHandler)
	}
	p.awaitHealed(r.Context())
	if f.Status != 0 {
		writeReply(w, f, now)
		return
	}
	for k, v := range in.Header {
		w.Header()[k] = v
	}
	if date, err := http.ParseTime(in.Header.Get("Date")); err == nil {
		w.Header().Set("Date", date.Add(shift).Format(http.TimeFormat))
	}
	switch spoilt {
	case "Date":
		w.Header()["Date"] = nil // else our server would put one there
	case "Age":
		w.Header().Set("Age", "60")
	}
	w.WriteHeader(in.StatusCode)
	_, _ = w.Write(reply)
}

func writeReply(w http.ResponseWriter, f Fate, now time.Time) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	body := fmt.Appendf(nil, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":%q}`, f.Code, f.Message)
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10))
	w.WriteHeader(f.Status)
	_, _ = w.Write(body)
}

// awaitHealed waits while the way is cut.
func (p *Proxy) awaitHealed(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.healed.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.cut && ctx.Err() == nil {
		p.healed.Wait()
	}
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

// Cut holds up requests and replies, as a network that drops packets does. Heal lets pass those whose client still waits.
func (p *Proxy) Cut()  { p.setCut(true) }
func (p *Proxy) Heal() { p.setCut(false) }

func (p *Proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	p.healed.Broadcast()
}

// Decide has f decide about requests from now on; nil passes all.
func (p *Proxy) Decide(f func(Request) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate = f
}

// Shift makes the service's clock seem to be off by d, also to signatures, which are refused when they are five minutes off.
func (p *Proxy) Shift(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shift = d
}

// AlterHeader takes the Date out of replies, or puts an Age into them, as a cache does.
func (p *Proxy) AlterHeader(header string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alteredHeader = header
}

// Counts gives how many requests there were of each operation since the last call.
func (p *Proxy) Counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	p.counts = map[string]int{}
	return c
}

// Close ends all connections.
func (p *Proxy) Close() {
	p.setCut(false)
	_ = p.server.Close()
	p.forward.CloseIdleConnections()
}
