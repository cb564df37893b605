package serve

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// admit checks what all requests have in common, before anything else is done: that no foreign web page has sent it,
// who has sent it, and whether that client sends too many. The request that it returns knows its caller.
func (s *Server) admit(r *http.Request) (*http.Request, error) {
	if err := s.checkHost(r); err != nil {
		return nil, err
	}
	if err := checkURL(r.URL); err != nil {
		return nil, err
	}
	if err := checkOrigin(r); err != nil {
		return nil, err
	}
	if isProbe(r) {
		return r, nil
	}
	rules := s.access.Load()
	who, err := rules.access.identify(r)
	if err != nil {
		if !s.limits.allow(clientAddress(r)) { // so that tokens cannot be tried quickly
			return nil, newRateProblem()
		}
		return nil, err
	}
	if !s.limits.allow(who.limitKey(r)) {
		return nil, newRateProblem()
	}
	a := &admission{server: s, r: r}
	a.known.Store(&knownCaller{rules, who})
	return r.WithContext(context.WithValue(r.Context(), admissionKey{}, a)), nil
}

// isProbe reports whether a request needs no right, because its answer tells nothing of locks.
func isProbe(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" }

// checkHost refuses a request that was sent to another name. A web page can give its own name this server's address
// (DNS rebinding); then the browser sends that name as the Host. An IP address cannot be given to others.
func (s *Server) checkHost(r *http.Request) error {
	if isLocalSocket(r) {
		return nil
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if host == "localhost" || net.ParseIP(host) != nil || slices.Contains(*s.hosts.Load(), host) {
		return nil
	}
	return newProblem(codeHostRefused, "the Host %q is not this server; start it with --host NAME to allow it", r.Host)
}

// checkOrigin refuses what a web page of another origin has sent.
func checkOrigin(r *http.Request) error {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	if site == "same-origin" { // as the browser sees it: behind a proxy that ends TLS, the server knows another scheme
		return nil
	}
	if origin != "" {
		u, err := url.Parse(origin)
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		if err != nil || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
			return newProblem(codeOriginRefused, "a web page of another origin cannot use this server")
		}
		return nil
	}
	// A link may lead to the page from anywhere. But no other page may load it into itself: already a read costs the
	// store something, and begins a watch.
	isLink := !strings.HasPrefix(r.URL.Path, "/v1/") && (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if site != "" && site != "none" && !isLink {
		return newProblem(codeOriginRefused, "a web page of another origin cannot use this server")
	}
	return nil
}

// checkURL refuses secrets in URLs, which are kept in logs and histories.
func checkURL(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return newProblem(codeInvalid, "the query of the URL is malformed")
	}
	for name := range query {
		switch strings.ToLower(name) {
		case "token", "access_token", "auth", "authorization", "api_key", "apikey", "password", "bearer":
			return newProblem(codeTokenInURL, "do not send a token in a URL, which is kept in logs; "+
				"send the header Authorization: Bearer TOKEN, and replace this token")
		}
	}
	if u.User != nil {
		return newProblem(codeTokenInURL, "do not send a password in a URL; send the header Authorization: Bearer TOKEN")
	}
	return nil
}

// accessRules are the rights of all callers until SetAccess replaces them.
type accessRules struct {
	access   *Access
	replaced chan struct{} // closed then
}

// admission is a request that was admitted, and what its route asks of the caller.
type admission struct {
	server *Server
	r      *http.Request
	known  atomic.Pointer[knownCaller]
	needs  right
	name   string   // of the lock, or the ledger and the key; empty if the route is about none
	also   []string // the locks that the request is about besides
	named  bool
}

// knownCaller is the caller of a request under some rules.
type knownCaller struct {
	rules *accessRules
	who   *caller
}

type admissionKey struct{}

func admissionOf(r *http.Request) *admission {
	a, _ := r.Context().Value(admissionKey{}).(*admission)
	return a
}

// callerOf is the caller of a request under the rules that hold now: a stream may have been open for longer than they.
func callerOf(r *http.Request) *caller {
	a := admissionOf(r)
	if a == nil {
		return &caller{}
	}
	rules := a.server.access.Load()
	if known := a.known.Load(); known.rules == rules {
		return known.who
	}
	who, err := rules.access.identify(a.r)
	if err != nil {
		who = &caller{}
	}
	a.known.Store(&knownCaller{rules, who})
	return who
}

// checkRight returns an error if the caller of a request does not have the right that its route asks for. replaced is
// closed when the answer may change: a stream then asks again.
func (s *Server) checkRight(r *http.Request) (replaced <-chan struct{}, err error) {
	replaced = s.access.Load().replaced
	a := admissionOf(r)
	if a == nil {
		return replaced, s.require(&caller{}, 0, "")
	}
	err = s.require(callerOf(r), a.needs, a.name)
	for _, name := range a.also {
		err = cmp.Or(err, s.require(callerOf(r), a.needs, name))
	}
	return replaced, err
}

// whenRevoked calls f once if the caller of a request loses the right that its route asks for, until stop is called.
func (s *Server) whenRevoked(r *http.Request, f func(error)) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			replaced, err := s.checkRight(r)
			if err != nil {
				f(err)
				return
			}
			select {
			case <-replaced:
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// maySee reports whether the caller of a request may see the lock or the key that it is about. Who has only the right
// to hold it learns that it is held, but not by whom.
func maySee(r *http.Request) bool {
	a := admissionOf(r)
	sees := func(name string) bool { return callerOf(r).rightsOn(name).See }
	return a == nil || !a.named || sees(a.name) && !slices.ContainsFunc(a.also, func(name string) bool { return !sees(name) })
}

// clientAddress is the address of a client without its port: for a unix socket, its user.
func clientAddress(r *http.Request) string {
	if name, _, ok := connectionOf(r).peer(); ok {
		return "unix " + name
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
