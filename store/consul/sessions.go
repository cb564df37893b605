package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// maxSessionTTL is the largest TTL that Consul grants.
const maxSessionTTL = 24 * time.Hour

// usualMinTTL is the smallest TTL that servers grant with the usual settings.
const usualMinTTL = 10 * time.Second

// OpenSession makes a session that ends by nothing but its TTL: see the package comment. If the servers do not grant
// such a small TTL, it asks for the smallest one, which their refusal names.
func (t *nodeStore) OpenSession(ctx context.Context, ttl time.Duration) (sequence.Session, error) {
	registered := false
	for {
		granted := max(ttl, t.knownMinTTL())
		// A session whose reply is lost has no keys, and expires: a repeated request does no harm.
		id, _, err := t.client.Session().CreateNoChecks(&api.SessionEntry{Name: "holdfast", Node: t.opts.Node,
			TTL: granted.String(), Behavior: api.SessionBehaviorDelete, LockDelay: time.Millisecond},
			(&api.WriteOptions{}).WithContext(ctx))
		switch {
		case err == nil:
			t.mu.Lock()
			t.hasOpened = true
			t.mu.Unlock()
			return sequence.Session{ID: id, TTL: granted, KeepAliveWithin: granted}, nil
		case t.learnMinTTL(err) > granted:
		case strings.Contains(err.Error(), "Missing node registration") && !registered:
			if err := t.registerNode(ctx); err != nil {
				return sequence.Session{}, err
			}
			registered = true
		case t.isWrongDatacenter(err):
			return sequence.Session{}, fmt.Errorf("%w: Consul says: %s; dc must be a datacenter that the agent can reach, "+
				"and for another one than the agent's own, the agent must be a server", driver.ErrInvalid, agentMessage(err))
		default:
			return sequence.Session{}, t.explainError(err)
		}
	}
}

// isWrongDatacenter reports whether a session was refused because of its datacenter. A path to that may also fail for a
// while: of a client that has opened a session before, this says nothing of its settings.
func (t *nodeStore) isWrongDatacenter(refusal error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := refusal.Error()
	return strings.Contains(text, "cross datacenter lock must be created at server agent") ||
		strings.Contains(text, "No path to datacenter") && !t.hasOpened
}

// registerNode registers the node of the sessions. It has no check, so the servers never take it for one that has
// failed, and never remove it by themselves: they do that only with nodes of agents.
func (t *nodeStore) registerNode(ctx context.Context) error {
	_, err := t.client.Catalog().Register(&api.CatalogRegistration{Node: t.opts.Node, Address: "127.0.0.1",
		Datacenter: t.datacenter, // this request takes it from its body alone

		NodeMeta: map[string]string{"used-by": "holdfast"}}, (&api.WriteOptions{}).WithContext(ctx))
	return t.explainError(err)
}

// isOwnSession reports whether a session is one with which this client has made claims, and has not ended.
func (t *nodeStore) isOwnSession(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ownSessions[id]
}

func (t *nodeStore) noteOwnSession(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ownSessions[id] = true
}

// forgetSession forgets what is known of a session that has ended.
func (t *nodeStore) forgetSession(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.gates, id)
	delete(t.ownSessions, id)
}

// sessionTTL is the TTL that is granted for a requested one, as far as it is known.
func (t *nodeStore) sessionTTL(ttl time.Duration) time.Duration {
	known := t.knownMinTTL()
	if known == 0 {
		known = usualMinTTL
	}
	return max(ttl, known)
}

func (t *nodeStore) knownMinTTL() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.minTTL
}

// ttlRange is in the text by which a TTL is refused.
var ttlRange = regexp.MustCompile(`Invalid Session TTL.*\[([0-9a-zµ.]+)=`)

// learnMinTTL returns the smallest TTL that the servers grant if that is why they have refused one, and remembers it.
// Otherwise it returns 0.
func (t *nodeStore) learnMinTTL(refusal error) time.Duration {
	m := ttlRange.FindStringSubmatch(refusal.Error())
	if m == nil {
		return 0
	}
	least, err := time.ParseDuration(m[1])
	if err != nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.minTTL = least
	return least
}

// KeepAlive renews a session.
//
// The reply alone proves little. The leader answers, which counts the session's time, but from what it has in memory.
// It does not ask the others whether it still leads. And when twice the TTL has passed, it forgets the session's timer
// before it deletes the session, which takes a write, and if that fails, further tries up to several minutes later.
// Until the session is deleted, the leader answers renewals of it, which then change nothing.
//
// So a reply is trusted only if it came within one TTL of the start of the renewal before, which is what
// KeepAliveWithin says. Twice the TTL has not passed then. Even if this renewal had no effect, the session lasts until
// two TTLs after the one before, and nobody trusts it for longer than that. A leader that was cut off from the others
// steps down within its lease, at most a few seconds, and a new one counts twice the TTL for each session from its own
// election on.
//
// A process that renews a claim of another one, by its handle, does not know when that was last renewed. If nobody has
// for twice the TTL, it may get such a reply, and trust the claim for up to a TTL too long: see GUARANTEES.md.
func (t *nodeStore) KeepAlive(ctx context.Context, session string) (promise time.Duration, err error) {
	var entries []api.SessionEntry
	// Not the client's own Renew, whose errors do not have what the agent says.
	_, err = t.client.Raw().Write("/v1/session/renew/"+session, nil, &entries, (&api.WriteOptions{}).WithContext(ctx))
	var status api.StatusError
	switch {
	case errors.As(err, &status) && status.Code == http.StatusNotFound, err == nil && len(entries) == 0:
		return 0, t.explainMissing(ctx, session)
	case err != nil:
		return 0, t.explainError(err)
	}
	promise, err = time.ParseDuration(entries[0].TTL)
	if err != nil || promise == 0 {
		return 0, errors.New("the session has no TTL")
	}
	return promise, nil
}

// explainMissing says whether a session that could not be renewed has ended. A server that has just become the leader
// may answer renewals before it has applied all that was written, so only a consistent read can tell.
func (t *nodeStore) explainMissing(ctx context.Context, session string) error {
	entry, _, err := t.client.Session().Info(session, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	switch {
	case err != nil:
		return t.explainError(err)
	case entry != nil:
		return errors.New("the leader does not know the session yet")
	}
	t.forgetSession(session)
	return sequence.ErrSessionExpired
}

// EndSession destroys a session, which deletes its keys. Consul does not say whether it existed.
func (t *nodeStore) EndSession(ctx context.Context, session string) error {
	t.forgetSession(session)
	_, err := t.client.Session().Destroy(session, (&api.WriteOptions{}).WithContext(ctx))
	return t.explainError(err)
}
