// Package serve is the HTTP API of holdfast serve, which docs/openapi.yaml describes.
//
// A hold is a request whose answer does not end: the lock is held for as long as the connection is open. What the
// client has been told last decides how a hold ends. A client that closes its connection has stopped, so its lock is
// released at once. A client that cannot be reached may still be working, so its lock is kept until the time has passed
// that the last line promised.
//
// # Decisions
//
// serve gives each stream a connection, and offers no HTTP/2. The end of the connection is what releases a lock. A
// connection that its client closed says that the client has stopped. One that the system gave up, or that was reset,
// says nothing about the client, so the lock is then kept until the time has passed that the last line named. Nor does
// the end of one direction: the server sends a line more, and only a system that refuses it shows that nobody reads.
// Over TLS an end must be announced, since anybody in between can end what is below TLS. With HTTP/2 a stream can end
// in either way without its connection, and a proxy in between decides which. Rejected: to release at once in both
// cases, since a client behind a cut network may be working; and to ask clients for signs of life, which every client
// would have to send in time from a thread of its own.
//
// What serve holds does not end with serve. Others were told that it is valid, so its claims have no session once they
// are granted (Options.ForOthers), and on files each write of them is synced, since a restart of the machine does not
// stop the clients on others. Rejected: claims that are detached and that the server renews by itself, which would be a
// second way to renew, and which a run does not have; and a second process that keeps the claims alive, which a
// machine, a container and a service manager end together with the server.
//
// serve has one client of the store for all callers, so that renewals are sent in batches. Its queue of plain mutexes
// then orders all callers of one server, and their place in it is not seen by others: a caller that must see its
// position asks for a fair lock.
//
// serve shows a hash of a claim's ref. On most stores the ref is the claim's id, and a handle needs nothing else, so
// anyone who may see a holder could release its lock, without the right to break it and past the audit log. The hash
// names the claim in requests to every server, and cannot be turned back. Rejected: signed handles. A handle works at
// every server of the store and after a restart, so all servers would need one key, which someone would have to make,
// spread and renew.
//
// A retry with the same Idempotency-Key joins the claim of the request before, so there is never a second one, and both
// may get the same handle. A claim that is granted stays for its TTL although its client has gone, since a client whose
// answer is lost has gone, too. The handle is given out again only after a renewal of it: it may have been released,
// and a request that a network delivers twice must not take the lock once more. Keys are the server's own: a client
// whose server has ended finds the lock held. Rejected: ids of claims that are made of keys, which would work at
// every server, but would let anyone who guesses a key make a handle.
//
// A run of the HTTP API belongs to the server that began it, and ends as failed when no beat has come for its TTL.
// Rejected: runs that any server can continue. The library has no detached runs, since a success must be reported by
// the claim that began the run.
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/metrics"
)

const (
	maxBody           = 128 << 10        // bytes of a request; a run's result of 64 KiB fits in base64
	maxHeader         = 24 << 10         // bytes of a request's path and headers, also if a handle is in the path
	maxHandle         = 18 << 10         // bytes of a handle
	requestTimeout    = 10 * time.Second // for a client to send a request, with its body
	responseTimeout   = 30 * time.Second // for a client to read an answer that is no stream
	idleTimeout       = 2 * time.Minute  // of a connection without a request
	storeTimeout      = 10 * time.Second // of one step at the store
	keepAlivePause    = 15 * time.Second // of TCP, where the client's machine may be gone
	defaultStreamBeat = 10 * time.Second // the longest time without a line on a stream
)

// Config is what a Server is made of. Client and Store are required.
type Config struct {
	Client     *holdfast.Client
	Store      string // its URL, without secrets
	Page       http.Handler
	AllowBreak bool
	Hosts      []string // names by which clients may call the server, in lower case, besides localhost and IP addresses
	Access     *Access  // nil: all callers may do everything
	MaxStreams int
	Rate       float64       // requests per second and client; 0: no limit
	Audit      *AuditLog     // nil: none
	Grace      time.Duration // how long clients have to stop when the server shuts down
	Metrics    func() []metrics.Sample
	Report     func(format string, args ...any) // a message for the operator

	requestTimeout time.Duration // for tests; 0: as usual
	maxConnections int           // for tests; 0: as the process may have descriptors
}

// Server is the server. Its methods may be called from any goroutine.
type Server struct {
	config      Config
	client      *holdfast.Client
	handler     http.Handler
	http        http.Server
	limits      *rateLimits
	refusals    *rateLimits // of attempts in the audit log
	streams     streamCount
	connections connectionTable
	counts      counters
	holds       holdTable
	runs        runTable
	keys        keyTable
	views       viewCache
	ready       readiness

	access    atomic.Pointer[accessRules]
	hosts     atomic.Pointer[[]string] // names by which clients may call the server
	life      context.Context          // ends when the shutdown begins
	endLife   context.CancelFunc
	closing   <-chan struct{} // of life
	stopBy    time.Time       // once the shutdown has begun: when all streams must have ended
	leftovers sync.WaitGroup  // holds whose client cannot be reached
	abandoned atomic.Bool     // no client works any more
	base      context.Context
	endBase   context.CancelFunc
}

// New makes a server, which listens nowhere yet.
func New(config Config) *Server {
	if config.Report == nil {
		config.Report = func(string, ...any) {}
	}
	s := &Server{config: config, client: config.Client}
	s.life, s.endLife = context.WithCancel(context.Background())
	s.closing = s.life.Done()
	s.base, s.endBase = context.WithCancel(context.Background())
	s.access.Store(&accessRules{config.Access, make(chan struct{})})
	s.hosts.Store(&config.Hosts)
	s.limits, s.refusals = newRateLimits(config.Rate), newRateLimits(refusalsPerSecond)
	s.streams.max = config.MaxStreams
	s.connections.init(config.maxConnections)
	s.holds.init()
	s.runs.init()
	s.keys.init()
	s.views.init(s.client)
	s.handler = s.newHandler()
	s.http = http.Server{
		Handler: s.handler, ReadTimeout: cmp.Or(config.requestTimeout, requestTimeout), IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		BaseContext:    func(net.Listener) context.Context { return s.base },
		ConnContext:    withConnection, ErrorLog: quietLog(), DisableGeneralOptionsHandler: true,
	}
	// A stream of HTTP/2 may end without its connection, so one connection per stream is what can be reasoned about.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s.http.Protocols = protocols
	return s
}

// SetAccess replaces the rights of all callers. A stream whose caller has lost the right to it ends: a hold is told
// that its lock is lost.
func (s *Server) SetAccess(a *Access) {
	close(s.access.Swap(&accessRules{a, make(chan struct{})}).replaced)
}

// SetHosts replaces Config.Hosts from the next request on.
func (s *Server) SetHosts(names []string) { s.hosts.Store(&names) }

// Serve answers the connections of a listener until Shutdown. secure may be nil.
func (s *Server) Serve(l net.Listener, secure *tls.Config) error {
	l = &listener{l, &s.connections}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return s.http.Serve(l)
}

// Abandon says that no client works any more, because the program that all of them are part of has ended: Shutdown,
// which the caller calls next, then releases all holds and ends all runs at once.
func (s *Server) Abandon() { s.abandoned.Store(true) }

// Shutdown ends the streams, as each of them asks, and stops. Until all runs have ended, or the grace period has, their
// workers can still call; nothing new begins. It returns true if nothing is held any more that the caller must leave to
// its TTL: it should close the client then, and otherwise not. A second Shutdown is not allowed.
func (s *Server) Shutdown() (clean bool) {
	s.stopBy = time.Now().Add(s.config.Grace + time.Second)
	s.endLife()
	ctx, cancel := context.WithDeadline(context.Background(), s.stopBy.Add(storeTimeout))
	defer cancel()
	soon, cancelSoon := context.WithDeadline(ctx, s.stopBy)
	defer cancelSoon()
	context.AfterFunc(soon, s.endBase) // for what does not look at s.closing
	if s.abandoned.Load() {
		s.failAllRuns()
	}
	s.runs.waitEmpty(soon)
	err := s.http.Shutdown(ctx)
	s.endBase()
	done := make(chan struct{})
	go func() { s.leftovers.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = s.http.Close()
	runsLeft := s.runs.count()
	if runsLeft > 0 {
		s.config.Report("%d runs are still in progress; each is abandoned when its TTL has passed", runsLeft)
	}
	return err == nil && runsLeft == 0
}
