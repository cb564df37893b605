package sequence

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The one rule: a node is granted when the weight of all nodes ahead of it, plus its own weight, fits in the limit.
// This file only computes; it makes no requests.

// effectiveWeight is how much of a lock n takes, as seen by a claim of this kind and limit. That is all of it if n has
// another kind or limit: such a claim is about to leave with ErrMismatch, or it came when the lock was idle, and both
// exclude each other. A foreign client's claim is exclusive unless the store knows its kind; then it may have no limit
// of its own.
func effectiveWeight(n *Node, kind driver.Kind, limit int64) int64 {
	if n.Kind != kind || n.Limit != limit && !(n.Foreign && n.Limit == 0) {
		return limit
	}
	return n.Weight
}

// isGranted reports whether nodes[i] is granted. Once granted it stays so: the nodes ahead become fewer, and heavier
// only where that leaves room (see SetWeight).
func isGranted(nodes []Node, i int) bool {
	me := &nodes[i]
	left := me.Limit - me.Weight
	for k := range nodes[:i] {
		if left -= effectiveWeight(&nodes[k], me.Kind, me.Limit); left < 0 {
			return false
		}
	}
	return true
}

// isSuperseded reports whether nodes[i], which has waited, must give up: it is newest-only, and so is a node behind
// it that still waits. The last node never gives up.
func isSuperseded(nodes []Node, i int) bool {
	if nodes[i].Foreign || !driver.IsNewestOnly(nodes[i].ID) {
		return false
	}
	for k := len(nodes) - 1; k > i; k-- {
		if n := &nodes[k]; !n.Foreign && driver.IsNewestOnly(n.ID) && !isGranted(nodes, k) {
			return true
		}
	}
	return false
}

// kindAndLimit returns the kind and limit of a lock: those of the first claim that decides which others checkMismatch
// refuses. If only foreign claims exclude all kinds alike, it is the first kind that is known, or else a mutex.
func kindAndLimit(nodes []Node) (kind driver.Kind, limit int64) {
	for i := range nodes {
		n := &nodes[i]
		isKnown := n.Kind != "" && n.Limit > 0
		switch {
		case !n.Foreign, isKnown && n.KindConflictHint != "":
			return n.Kind, n.Limit
		case isKnown && kind == "":
			kind, limit = n.Kind, n.Limit
		}
	}
	if len(nodes) > 0 && kind == "" {
		return driver.KindMutex, 1
	}
	return kind, limit
}

// countGranted is how many nodes are granted, counted from the first. The first that is not granted stops all behind
// it, because the order is strict.
func countGranted(nodes []Node) int {
	kind, limit := kindAndLimit(nodes)
	left := limit
	for i := range nodes {
		if left -= effectiveWeight(&nodes[i], kind, limit); left < 0 {
			return i
		}
	}
	return len(nodes)
}

// findOwn finds a claim's own node by its ID, bound to the claim's present session. A node that is left from an earlier
// session does not count. It returns -1 if there is none.
func findOwn(nodes []Node, id, session string) int {
	for i := range nodes {
		if n := &nodes[i]; n.ID == id && n.Session == session && !n.Foreign {
			return i
		}
	}
	return -1
}

// findBlocker is the key of the node that nodes[i], which is not granted, must watch. It is WatchRemovals (empty) if
// the claim must notice the removal of any node.
//
//   - A claim that needs the whole lock waits for all ahead of it. It watches the one before it, which goes last, or
//     soon enough.
//   - A reader waits only for writers, and watches the nearest.
//   - Of a semaphore's waiters only the first watches the holders. Each of the others waits until the one before it
//     is admitted.
func findBlocker(nodes []Node, i int) string {
	me := &nodes[i]
	switch {
	case me.Weight == me.Limit:
		return nodes[i-1].Key
	case me.Kind == driver.KindRW:
		for k := i - 1; k >= 0; k-- {
			if effectiveWeight(&nodes[k], me.Kind, me.Limit) == me.Limit {
				return nodes[k].Key
			}
		}
	case i > 0 && !isGranted(nodes, i-1):
		return nodes[i-1].Key
	}
	return ""
}

// mustMarkAdmitted reports whether the claim behind nodes[i] waits for the mark that nodes[i] was admitted.
func mustMarkAdmitted(nodes []Node, i int) bool {
	if nodes[i].Kind != driver.KindSemaphore || i+1 >= len(nodes) {
		return false
	}
	next := &nodes[i+1]
	return !next.Foreign && next.Weight < next.Limit
}

// checkMismatch returns an error if the lock has another kind or limit than the claim. Foreign claims are no reason for
// one: every claim behind them waits. The exception are foreign clients that ignore claims of this kind, and so would
// not wait for the claim in turn.
func checkMismatch(nodes []Node, c *driver.Claim) error {
	for i := range nodes {
		if n := &nodes[i]; n.KindConflictHint != "" && n.Kind != c.Kind {
			return fmt.Errorf("%w: another program holds the lock, and a %s would not exclude it: %s",
				driver.ErrMismatch, c.Kind, n.KindConflictHint)
		}
		if n := &nodes[i]; !n.Foreign && n.ID != c.ID {
			if n.Kind == c.Kind && n.Limit == c.Limit {
				return nil
			}
			return driverutil.Mismatch(n.Kind, n.Limit, c.Kind, c.Limit)
		}
	}
	return nil
}

// hasRoom reports whether a claim that joins now would be granted at once.
func hasRoom(nodes []Node, c *driver.Claim) bool {
	left := c.Limit - c.Weight
	for i := range nodes {
		left -= effectiveWeight(&nodes[i], c.Kind, c.Limit)
	}
	return left >= 0
}

// exceedsBounds reports whether nodes[i], which has just joined, is one holder or waiter too many.
func exceedsBounds(nodes []Node, i int, info driver.Info) bool {
	if isGranted(nodes, i) {
		return i >= info.MaxHolders
	}
	return i-countGranted(nodes) >= info.MaxWaiters
}

// newHeldError is the refusal of a claim that does not wait.
func newHeldError(nodes []Node) *driver.HeldError {
	l := describeLock(Snapshot{Nodes: nodes})
	return &driver.HeldError{Holders: l.Holders, Waiting: len(l.Waiters)}
}

// describeLock turns a snapshot into what Inspect shows. The Revision is a hash of all nodes and versions.
func describeLock(snapshot Snapshot) driver.Lock {
	l := driver.Lock{Name: snapshot.Name}
	l.Kind, l.Limit = kindAndLimit(snapshot.Nodes)
	n := countGranted(snapshot.Nodes)
	state := fnv.New128a()
	for i := range snapshot.Nodes {
		node := &snapshot.Nodes[i]
		s := ClaimInfoOf(*node, l.Limit)
		if i < n {
			l.Holders = append(l.Holders, s)
			l.Token = max(l.Token, s.Token)
		} else {
			s.Token = 0
			l.Waiters = append(l.Waiters, s)
		}
		fmt.Fprintf(state, "%s@%x.%x ", node.Key, node.Token, node.Version)
	}
	l.Revision = hex.EncodeToString(state.Sum(nil))
	return l
}

// ClaimInfoOf turns a node into what Inspect shows. The limit is the lock's, which foreign claims of unknown kind
// take whole.
func ClaimInfoOf(n Node, limit int64) driver.ClaimInfo {
	s := driver.ClaimInfo{
		Ref: FormatRef(n.Key, n.Token), Owner: n.Owner, Meta: n.Meta, Weight: n.Weight, Token: n.Token, TTL: n.TTL,
		Detached: n.Detached, ReleaseRequested: n.ReleaseRequested, Broken: n.Broken, Foreign: n.Foreign,
	}
	if n.Foreign {
		if s.Owner == "" {
			s.Owner = "session " + n.Session
		}
		if n.Kind == "" {
			s.Weight = limit
		}
	}
	if n.CreatedAt > 0 {
		s.Since = time.UnixMicro(n.CreatedAt)
	}
	return s
}

// FormatRef names a node so that another process can find it again. The token guards against another node with the same
// key.
func FormatRef(key string, token int64) string { return key + "@" + strconv.FormatInt(token, 16) }

// parseRef is the reverse of FormatRef. The error is ErrInvalid.
func parseRef(r string) (key string, token int64, err error) {
	at := strings.LastIndexByte(r, '@')
	if at > 0 {
		if token, err = strconv.ParseInt(r[at+1:], 16, 64); err == nil && token > 0 {
			return r[:at], token, nil
		}
	}
	return "", 0, fmt.Errorf("%w: %q is not a ref of this store", driver.ErrInvalid, r)
}
