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

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Proxy forwards requests to a server. A test decides what becomes of each.
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

// Request is a request that the Proxy has received.
type Request struct {
	Operation string // GetItem, UpdateItem ...
	Body      string
}

// Fate says what becomes of a request. The zero value: it is forwarded, and so is its reply.
type Fate struct {
	DropRequest bool // it is not forwarded; the connection is reset
	DropReply   bool // it is forwarded, and the connection is reset
	Delay       time.Duration
	// Status and Code, if set, are the reply instead of the service's. If After is set, the request is forwarded
	// before.
	Status        int
	Code, Message string
	Reply         string // the whole body of the reply, in the place of an error with Code and Message
	After         bool
}

// NewProxy makes a proxy for the server at that URL.
func NewProxy(to string) (*Proxy, error) {
	l, err := servertest.Listen()
	if err != nil {
		return nil, err
	}
	p := &Proxy{Endpoint: "http://" + l.Addr().String(), to: to, counts: map[string]int{},
		// Close idle connections before dynalite does after five seconds, perhaps just when one is used again.
		forward: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true, IdleConnTimeout: 2 * time.Second}}
	p.healed = sync.NewCond(&p.mu)
	p.server = &http.Server{Handler: p}
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // tests that look for leaked goroutines must not count these
		_ = p.server.Serve(l)
	}()
	return p, nil
}

// ServeHTTP handles a request.
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
	signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err == nil && now.Sub(signed).Abs() > 5*time.Minute {
		f = Fate{Status: 400, Code: "InvalidSignatureException", Message: "Signature expired: " +
			r.Header.Get("X-Amz-Date")}
	}
	if f.DropRequest {
		panic(http.ErrAbortHandler)
	}
	if f.Status != 0 && !f.After {
		writeReply(w, f, now)
		return
	}
	ctx := context.WithoutCancel(r.Context()) // dynalite crashes when a client gives up
	out, _ := http.NewRequestWithContext(ctx, r.Method, p.to+r.URL.Path, bytes.NewReader(body))
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
		w.Header()["Date"] = nil // else net/http would set it
	case "Age":
		w.Header().Set("Age", "60")
	}
	w.WriteHeader(in.StatusCode)
	_, _ = w.Write(reply)
}

// writeReply writes an error in the form of the service, with the checksum that the SDK verifies.
func writeReply(w http.ResponseWriter, f Fate, now time.Time) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	body := fmt.Appendf(nil, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":%q}`, f.Code, f.Message)
	if f.Reply != "" {
		body = []byte(f.Reply)
	}
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10))
	w.WriteHeader(f.Status)
	_, _ = w.Write(body)
}

// awaitHealed waits while the proxy is cut.
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

// Cut holds back requests and replies, like a network that drops packets.
func (p *Proxy) Cut() { p.setCut(true) }

// Heal forwards the requests and replies that Cut has held back and whose clients still wait.
func (p *Proxy) Heal() { p.setCut(false) }

// setCut cuts or heals the proxy.
func (p *Proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	p.healed.Broadcast()
}

// Decide makes f decide about requests from now on. With nil all are forwarded.
func (p *Proxy) Decide(f func(Request) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate = f
}

// Shift makes the service's clock differ by d. Requests whose signature then differs by five minutes are refused.
func (p *Proxy) Shift(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shift = d
}

// AlterHeader removes the Date from replies, or adds an Age to them, as a cache does.
func (p *Proxy) AlterHeader(header string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alteredHeader = header
}

// Counts returns how many requests there were of each operation since its last call.
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
