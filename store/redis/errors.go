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
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// final gives the error that no asking again will change, in the driver's terms, or nil if asking again may help.
func (s *Store) final(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, rueidis.ErrClosing) && (s.top == single || s.life.Err() != nil) {
		return driver.ErrClosed // elsewhere it may be the connection to a server that is not followed any more; see again
	}
	for _, f := range []error{driver.ErrDenied, driver.ErrCorrupt, driver.ErrClosed, driver.ErrUnsupported, driver.ErrInvalid} {
		if errors.Is(err, f) {
			return err
		}
	}
	if r, ok := rueidis.IsRedisErr(err); ok {
		if isReadOnly(r.Error()) && s.wrote.Load() {
			return nil
		}
		return finalReply(r.Error(), s.top == single, s.opts.Layout)
	}
	return nil
}

// finalReply judges an error that a server has replied. alone says that there is no other server that could take over.
func finalReply(text string, alone bool, layout Layout) error {
	says := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case says("NOAUTH", "WRONGPASS", "invalid username-password", "invalid password"):
		return fmt.Errorf("%w: Redis wants other credentials: %s", driver.ErrDenied, brief(text))
	case says("NOPERM", "can't run this command", "can't access", "can't publish", "ACL failure"):
		return fmt.Errorf("%w: the Redis user lacks a permission: %s; %s", driver.ErrDenied, brief(text), aclRule(text, layout))
	case isReadOnly(text) && alone:
		return fmt.Errorf("%w: this Redis server is a read-only replica: open the primary, or the Sentinels", driver.ErrDenied)
	case says("CROSSSLOT", "Cross slot"):
		return fmt.Errorf("%w: keys of one lock fall into two hash slots: %s", driver.ErrInvalid, brief(text))
	case says("MOVED ", "ASK ") && alone:
		return fmt.Errorf("%w: this Redis server belongs to a Cluster: open it as redis+cluster://", driver.ErrUnsupported)
	case says("unknown command 'EVALSHA'"):
		return fmt.Errorf("%w: this Redis server is a Sentinel, which is opened as redis+sentinel://host/primary-name, or it is too old; version 6.2 is the least: %s",
			driver.ErrUnsupported, brief(text))
	case says("unknown command 'SENTINEL'"):
		return fmt.Errorf("%w: this Redis server is no Sentinel: name the Sentinels, whose port is 26379 as a rule, or open it as redis://", driver.ErrUnsupported)
	case says("unknown command", "Unknown Redis command", "wrong number of arguments", "Wrong number of args", "non deterministic commands"):
		return fmt.Errorf("%w: this Redis server is too old, or lacks a command; version 6.2 is the least: %s", driver.ErrUnsupported, brief(text))
	case says("NOREPLICAS", "LOADING", "BUSY", "OOM", "MISCONF", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "MOVED ", "ASK ", "UNKILLABLE", "NOSCRIPT", "max number of clients"):
		return nil // it may pass
	case says("WRONGTYPE"):
		return fmt.Errorf("%w: a key beside the lock holds another type: %s", driver.ErrCorrupt, brief(text))
	case failedScript.MatchString(brief(text)):
		return fmt.Errorf("%w: Redis says: %s", driver.ErrCorrupt, brief(text))
	}
	return nil
}

func isReadOnly(text string) bool { return strings.Contains(text, "READONLY") }

// failedScript is what Redis says of a script that has failed by itself, as over text in the place of a number, and not by a command
// that was refused.
var failedScript = regexp.MustCompile(`(^|: )user_script:[0-9]+: `)

// aclRule names the rule that gives a user what he was refused.
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
	if m := refusedCommand.FindStringSubmatch(text); m != nil {
		return "add the ACL rule +" + strings.ToLower(m[1])
	}
	return "add the ACL rules +@read +@write +@scripting +@pubsub +@connection +time +cluster"
}

var refusedCommand = regexp.MustCompile(`the '([A-Za-z|]+)' command`)

// brief is a reply without the parts that name the script, and what came with a command, which may be a password.
func brief(text string) string {
	text, _, _ = strings.Cut(text, " script: ")
	text, _, _ = strings.Cut(text, ", with args")
	return text[:min(len(text), 200)]
}

// explain puts a passing error in words, where Redis's own do not say enough.
func explain(err error) error {
	r, ok := rueidis.IsRedisErr(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return fmt.Errorf("no answer from Redis in time: %v", err) // not the caller's deadline
		}
		return err
	}
	for code, words := range map[string]string{
		"OOM":        "Redis has reached its maxmemory and takes no new locks",
		"MISCONF":    "Redis cannot save to its disk and takes no writes",
		"LOADING":    "Redis is still reading its data",
		"BUSY":       "Redis is busy with somebody's long script",
		"NOREPLICAS": "Redis has fewer replicas than min-replicas-to-write",
		"READONLY":   "Redis is a read-only replica for now",
		"MASTERDOWN": "Redis has lost its primary",
	} {
		if strings.Contains(r.Error(), code) {
			return fmt.Errorf("%s: %s", words, brief(r.Error()))
		}
	}
	return errors.New(brief(r.Error()))
}

// unconnected is the error of a client that could not be made. Much of what goes wrong with TLS shows only as a link that
// ends or stays silent.
func unconnected(err error, o *rueidis.ClientOption) error {
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
		return fmt.Errorf("%w: the certificate of the Redis server is by no authority that is known here: name its CA by tls-ca: %v", driver.ErrDenied, err)
	case errors.As(err, &name):
		return fmt.Errorf("%w: the certificate of the Redis server is for another name: give it by tls-name: %v", driver.ErrDenied, err)
	case errors.As(err, &invalid):
		return fmt.Errorf("%w: the certificate of the Redis server is not valid: %v", driver.ErrDenied, err)
	case errors.As(err, &alert) && alert.Op == "remote error", o.TLSConfig != nil && cut:
		return fmt.Errorf("connecting to Redis by TLS: %w; it may want a client certificate that it trusts: tls-cert and tls-key", err)
	case o.TLSConfig != nil && late:
		return fmt.Errorf("connecting to Redis by TLS: %w; if the server speaks none, say redis://", explain(err))
	case cut:
		return fmt.Errorf("connecting to Redis: %w; if the server speaks TLS, say rediss://", err)
	}
	return fmt.Errorf("connecting to Redis: %w", explain(err))
}

// errLinkEnded: a connection of our own is gone.
var errLinkEnded = errors.New("the connection to Redis has ended")

func uncertain(err error) error { return fmt.Errorf("%w: %w", driver.ErrUncertain, err) }

// patient repeats one step until it is answered. It gives up when asking again cannot help, when the call's context
// ends, or when its patience is over.
type patient struct {
	s       *Store
	limit   time.Duration
	silence driver.Outage
	fails   int       // in a row
	closing int       // how many of them in a row say that the client is closed
	unknown bool      // a request of this call had an unknown outcome
	reads   bool      // it changes nothing, so that nothing about it is uncertain
	untimed bool      // nobody asks when its requests began: the clock is not read before one fails
	begun   time.Time // of a release
	makes   string    // the claim that its requests may make; empty if none
}

func (s *Store) patient(ttl time.Duration) patient {
	return patient{s: s, limit: driver.UnreachableTimeout(ttl)}
}

// run gives a step's answer, and the start of the request that was answered.
func (p *patient) run(ctx context.Context, st *step, keys, args []string) (m rueidis.RedisMessage, at driver.Instant, err error) {
	for {
		if p.s.life.Err() != nil {
			return m, at, driver.ErrClosed
		}
		if ctx.Err() != nil {
			return m, at, p.outcome(ctx.Err())
		}
		if !p.untimed {
			at = p.s.clock.Now()
		}
		m, err = p.s.do(ctx, st, keys, args)
		if err == nil || rueidis.IsRedisNil(err) {
			if st == p.s.steps.enter {
				p.s.took(at) // a clock is not read for nothing: it costs as much as all the rest here
			}
			p.silence.RequestAnswered()
			p.fails, p.closing = 0, 0
			if p.s.life.Err() != nil {
				return m, at, driver.ErrClosed
			}
			return m, at, nil
		}
		if err = p.again(ctx, err); err != nil {
			return m, at, err
		}
	}
}

// again waits before the next try, or says why there is none.
func (p *patient) again(ctx context.Context, err error) error {
	if p.s.life.Err() != nil {
		return driver.ErrClosed
	}
	if f := p.s.final(err); f != nil {
		return f
	}
	// A client that follows a fail-over closes the old connection under the requests on it, and has the new one by then.
	if !errors.Is(err, rueidis.ErrClosing) {
		p.closing = 0
	} else if p.closing++; p.closing > 2 && !p.s.owned {
		return driver.ErrClosed // by the user, whose it is
	}
	if _, refused := rueidis.IsRedisErr(err); !refused && !unsent(err) {
		p.unknown = true
		if p.makes != "" {
			p.s.overtaken(p.makes)
		}
	}
	if ctx.Err() != nil {
		return p.outcome(ctx.Err())
	}
	p.fails++
	if p.silence.RequestFailed(p.s.clock, p.limit) {
		return p.outcome(explain(err))
	}
	if serr := p.s.sleep(ctx, rand.N(5*time.Millisecond<<min(p.fails, 6))); serr != nil {
		if errors.Is(serr, driver.ErrClosed) {
			return serr
		}
		return p.outcome(serr)
	}
	return nil
}

// unsent reports whether a request has certainly not been sent, since there was no connection to send it by.
func unsent(err error) bool {
	if op := (*net.OpError)(nil); errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") {
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, new(*unsentError))
}

// unsentError is that of a request for which no connection could be made.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

func (p *patient) outcome(err error) error {
	if p.unknown && !p.reads {
		return uncertain(err)
	}
	return err
}

// overtaken notes that a request which may make a claim is still under way, for all that is known: connections are no
// line, and a release may come before it.
func (s *Store) overtaken(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying[id]++
	for other := range s.flying {
		if len(s.flying) <= maxFlying {
			break
		}
		delete(s.flying, other)
	}
}

// maxFlying bounds how many such claims are remembered; beyond it any one of them is forgotten.
const maxFlying = 1 << 16

// landing reports whether a request to make the claim may still be under way.
func (s *Store) landing(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.flying[id]
	return ok
}

// answered notes that one such request is under way no more.
func (s *Store) answered(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flying[id]--; s.flying[id] <= 0 {
		delete(s.flying, id)
	}
}

// landed forgets a claim that was released and barred.
func (s *Store) landed(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flying, id)
}

func (s *Store) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.life.Done():
		return driver.ErrClosed
	}
}
