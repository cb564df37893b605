package redis

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// finalError returns the error, in the driver's terms, if a retry cannot help, and nil if it may.
func (s *store) finalError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, rueidis.ErrClosing) && (s.topology == single || s.life.Err() != nil) {
		// A client for Sentinels or a Cluster also returns ErrClosing for requests on the connection to a server that
		// it does not follow any more. A retry goes to the new server.
		return driver.ErrClosed
	}
	for _, f := range []error{driver.ErrDenied, driver.ErrCorrupt, driver.ErrClosed, driver.ErrUnsupported,
		driver.ErrInvalid} {
		if errors.Is(err, f) {
			return err
		}
	}
	if r, ok := rueidis.IsRedisErr(err); ok {
		// The server accepted writes before. So this is a failover, and not a replica that was opened by mistake: the
		// server may become a primary again, or its name may move to the new one.
		if isReadOnly(r.Error()) && s.hasGranted.Load() {
			return nil
		}
		return finalReply(r.Error(), s.topology == single, s.opts.Layout, &s.admission)
	}
	return nil
}

// finalReply decides about an error that a server has replied: it returns nil if the condition may pass. alone means
// that no other server could take over, and admission knows whether a refusal of the credentials may pass. Redis has no
// codes for many of these errors, so that their texts are compared.
func finalReply(text string, alone bool, layout Layout, admission *driverutil.Admission) error {
	says := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	// Credentials come first: their errors may contain words of the later cases.
	case says("NOAUTH", "WRONGPASS", "invalid username-password", "invalid password"):
		if err := admission.CredentialsRefused(fmt.Errorf("the Redis server refuses the credentials: %s", shortenReply(text))); errors.Is(
			err, driver.ErrDenied) {
			return err
		}
		return nil
	case says("NOPERM", "can't run this command", "can't access", "can't publish", "ACL failure"):
		return fmt.Errorf("%w: the Redis user lacks a permission: %s; %s", driver.ErrDenied, shortenReply(text),
			aclRule(text, layout))
	// Sentinels or a Cluster lead to another server; a single one stays what it is.
	case isReadOnly(text) && alone:
		return driverutil.RefuseStore(
			errors.New("this Redis server is a read-only replica: open the primary, or the Sentinels"))
	case says("DB index is out of range", "invalid DB index"):
		return fmt.Errorf("%w: this Redis server has no database with the number that the URL names after the host: %s",
			driver.ErrInvalid, shortenReply(text))
	case says("CROSSSLOT", "Cross slot"):
		return fmt.Errorf("%w: keys of one lock fall into two hash slots: %s", driver.ErrInvalid, shortenReply(text))
	case says("MOVED ", "ASK ") && alone:
		return fmt.Errorf("%w: this Redis server belongs to a Cluster: open it as redis+cluster://",
			driver.ErrUnsupported)
	// A Sentinel has no scripts, and says so in the words of a server whose commands were renamed or disabled.
	case isScriptingMissing(text):
		return fmt.Errorf("%w: this Redis server does not know EVALSHA or EVAL, which all locks need: they were renamed or "+
			"disabled, so remove their rename-command lines, or use another server; or it is a Sentinel, which is opened as "+
			"redis+sentinel://host/primary-name: %s", driver.ErrUnsupported, shortenReply(text))
	case says("unknown command 'SENTINEL'"):
		return fmt.Errorf("%w: this Redis server is no Sentinel: use the addresses of the Sentinels, whose port is usually 26379, or open it as redis://", driver.ErrUnsupported)
	case says("unknown command", "Unknown Redis command", "wrong number of arguments", "Wrong number of args",
		"non deterministic commands"):
		return fmt.Errorf("%w: this Redis server is too old (6.2 or later is needed), or a command was renamed or disabled: %s",
			driver.ErrUnsupported, shortenReply(text))
	case says("NOREPLICAS", "LOADING", "BUSY", "OOM", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY",
		"MOVED ", "ASK ", "UNKILLABLE", "NOSCRIPT", "max number of clients"):
		// These may pass: a server that is starting, full, busy, changing its role, or short of replicas; and a Cluster
		// that moves a slot.
		return nil
	case says("WRONGTYPE"):
		return fmt.Errorf("%w: a key that Holdfast keeps next to the lock has the wrong type: %s", driver.ErrCorrupt, shortenReply(text))
	case failedScript().MatchString(shortenReply(text)):
		return fmt.Errorf("%w: Redis reports: %s", driver.ErrCorrupt, shortenReply(text))
	}
	return nil
}

// isScriptingMissing reports whether a server does not know the commands that run scripts.
func isScriptingMissing(text string) bool {
	return strings.Contains(text, "unknown command 'EVALSHA'") || strings.Contains(text, "unknown command 'EVAL'")
}

// isReadOnly reports whether a server refused a write because it is a replica.
func isReadOnly(text string) bool { return strings.Contains(text, "READONLY") }

// failedScript matches the error of a script that failed in its own code, for example by arithmetic on a text that
// should be a number. It does not match the error of a command in the script that was refused.
var failedScript = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|: )user_script:[0-9]+: `)
})

// aclRule names the ACL rule that would allow what the user was refused (redis.io: "ACL").
func aclRule(text string, layout Layout) string {
	switch {
	case strings.Contains(text, "channel") && layout == LayoutRedisson:
		return "add the ACL rule &" + redissonChannel + "*"
	case strings.Contains(text, "channel"):
		return "add the ACL rule &" + reserved + "*"
	case strings.Contains(text, "key") && layout == LayoutRedisson:
		return "add ACL rules for the locks' keys, for ~" + reserved + "* and for ~" + redissonTokens + "*"
	case strings.Contains(text, "key"):
		return "add ACL rules for the locks' keys and for ~" + reserved + "*"
	}
	if m := refusedCommand().FindStringSubmatch(text); m != nil {
		return "add the ACL rule +" + strings.ToLower(m[1])
	}
	return "add the ACL rules +@read +@write +@scripting +@pubsub +@connection +time +cluster"
}

// refusedCommand finds the command in a NOPERM error.
var refusedCommand = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`the '([A-Za-z|]+)' command`)
})

// shortenReply returns a reply without the parts that name the script, and without the arguments of a command, which
// may contain a password.
func shortenReply(text string) string {
	text, _, _ = strings.Cut(text, " script: ")
	text, _, _ = strings.Cut(text, ", with args")
	return text[:min(len(text), 200)]
}

// explainError describes an error that may pass, where Redis's own words do not say enough.
func explainError(err error) error {
	r, ok := rueidis.IsRedisErr(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return fmt.Errorf("no answer from Redis in time: %v", err) // not the caller's deadline
		}
		return err
	}
	for code, words := range map[string]string{
		"OOM":        "Redis has reached its maxmemory and accepts no new locks",
		"MISCONF":    "Redis cannot save to its disk and accepts no writes",
		"LOADING":    "Redis is still loading its data",
		"BUSY":       "Redis is busy with a long script of another client",
		"NOREPLICAS": "Redis has fewer replicas than min-replicas-to-write",
		"READONLY":   "Redis is a read-only replica for now",
		"MASTERDOWN": "Redis has lost its primary",
	} {
		if strings.Contains(r.Error(), code) {
			return fmt.Errorf("%s: %s", words, shortenReply(r.Error()))
		}
	}
	return errors.New(shortenReply(r.Error()))
}

// connectError describes why a client could not be made. Many problems with TLS show only as a connection that ends or
// stays without data, since each side takes the other's first bytes for garbage.
func connectError(err error, o *rueidis.ClientOption) error {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		alert     *net.OpError
		timeout   net.Error
	)
	cut := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	late := errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case errors.As(err, &authority):
		return driverutil.RefuseStore(fmt.Errorf(
			"the Redis server's certificate is signed by an unknown authority; set tls-ca: %w", err))
	case errors.As(err, &name):
		return driverutil.RefuseStore(fmt.Errorf("the Redis server's certificate is for another name; set tls-name: %w", err))
	case errors.As(err, &invalid):
		return driverutil.RefuseStore(fmt.Errorf("the certificate of the Redis server is not valid: %w", err))
	case errors.As(err, &alert) && alert.Op == "remote error", o.TLSConfig != nil && cut:
		return fmt.Errorf("connecting to Redis by TLS: %w; it may require a client certificate that it trusts: set tls-cert and tls-key", err)
	case o.TLSConfig != nil && late:
		return fmt.Errorf("connecting to Redis by TLS: %w; if the server does not use TLS, open it as redis://", explainError(err))
	case cut:
		return fmt.Errorf("connecting to Redis: %w; if the server uses TLS, open it as rediss://", err)
	}
	return fmt.Errorf("connecting to Redis: %w", explainError(err))
}

// errLinkEnded means that a dedicated connection has ended.
var errLinkEnded = errors.New("the connection to Redis has ended")

// retryLoop repeats one script until it is answered: see driverutil.RetryLoop. Every script may be repeated: it finds
// what an earlier run has done by the claim's id.
type retryLoop struct {
	driverutil.RetryLoop // Uncertain: a request of this call may have run without a reply
	store                *store
	closedErrors         int       // in a row: how many failures say that the client is closed
	readOnly             bool      // it changes nothing, so that a missing reply leaves nothing uncertain
	startedAt            time.Time // set by Release only, for isNoteExpired
	mayMake              string    // the claim that its requests may make; empty if none
}

// newRetryLoop begins a call for a claim with this TTL, which decides how long an unreachable server is retried.
func (s *store) newRetryLoop(ttl time.Duration) retryLoop {
	return retryLoop{store: s, RetryLoop: driverutil.RetryLoop{
		Clock: s.clock, Limit: driver.UnreachableTimeout(ttl), Pause: s.pause}}
}

// pauseBeforeRetry waits before the next try. The delay grows to 320 ms and is random, so that the clients of a server
// that returns do not all come at the same time.
func (s *store) pauseBeforeRetry(ctx context.Context, tries int) error {
	return s.life.Sleep(ctx, rand.N(10*time.Millisecond<<min(tries, 5)))
}

// run returns a script's reply, and the start of the request that got it. The start of an earlier request that had no
// reply does not count: a lease is trusted from the request that confirmed it.
func (r *retryLoop) run(ctx context.Context, st *script, keys,
	args []string) (m rueidis.RedisMessage, at driver.Instant, err error) {
	for {
		if r.store.life.Err() != nil {
			return m, at, driver.ErrClosed
		}
		if ctx.Err() != nil {
			return m, at, r.End(ctx.Err())
		}
		at = r.store.clock.Now()
		r.RequestStarted(at)
		m, err = r.store.runScript(ctx, st, keys, args)
		if err == nil || rueidis.IsRedisNil(err) {
			// Only this script sends the confirm window, which is computed from round trips.
			if st == r.store.scripts.acquireQueued {
				r.store.recordRoundTrip(at)
			}
			r.NoteAnswer()
			r.closedErrors = 0
			if r.store.life.Err() != nil {
				return m, at, driver.ErrClosed
			}
			return m, at, nil
		}
		if err = r.waitToRetry(ctx, err); err != nil {
			return m, at, err
		}
	}
}

// waitToRetry waits before the next try, or returns the error with which the call ends.
func (r *retryLoop) waitToRetry(ctx context.Context, err error) error {
	if r.store.life.Err() != nil {
		return driver.ErrClosed
	}
	if final := r.store.finalError(err); final != nil {
		return r.PauseAfterFailure(ctx, final, false)
	}
	// A client that follows a failover closes the old connection with requests on it, and has the new one by then. So
	// only repeated errors mean that the user has closed the client.
	if !errors.Is(err, rueidis.ErrClosing) {
		r.closedErrors = 0
	} else if r.closedErrors++; r.closedErrors > 2 && !r.store.owned {
		return driver.ErrClosed // the user has closed the client
	}
	// The request may have run, or may still arrive, unless the server refused it or nothing was sent.
	sent := !isRedisReply(err) && !isUnsent(err)
	if sent && r.mayMake != "" {
		r.store.addInFlight(r.mayMake)
	}
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		err = explainError(err)
	}
	return r.PauseAfterFailure(ctx, err, sent && !r.readOnly)
}

// isUnsent reports whether a request was certainly not sent, since there was no connection for it.
func isUnsent(err error) bool {
	if op := (*net.OpError)(nil); errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") {
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, new(*unsentError))
}

// unsentError is returned for a request for which no connection could be made.
type unsentError struct{ error }

// Unwrap lets callers see the error of the connection.
func (e *unsentError) Unwrap() error { return e.error }

// addInFlight notes that a request which may make a claim may still be under way. Requests on several connections, or
// before and after a reconnection, may arrive in any order. So a release may arrive before the request that makes the
// claim.
func (s *store) addInFlight(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[id]++
	// The order of a map is random: no claim is forgotten more often than others.
	for other := range s.inFlight {
		if len(s.inFlight) <= maxInFlight {
			break
		}
		delete(s.inFlight, other)
	}
}

// maxInFlight bounds how many such claims are remembered. Beyond that, any of them is forgotten: a late request could
// then make a claim that nobody holds, which exists until its TTL expires.
const maxInFlight = 1 << 16

// isInFlight reports whether a request to make the claim may still be under way.
func (s *store) isInFlight(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.inFlight[id]
	return ok
}

// removeInFlight notes that one such request was answered, or was certainly not sent.
func (s *store) removeInFlight(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight[id]--; s.inFlight[id] <= 0 {
		delete(s.inFlight, id)
	}
}

// forgetInFlight forgets all requests of a claim that was released with a tombstone: the server refuses them now.
func (s *store) forgetInFlight(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inFlight, id)
}
