package sequence

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The one rule: a node is granted when the weight of all nodes ahead of it, plus its own, fits in the limit. What is
// here is pure.

// effectiveWeight is how much of a lock n takes, as seen by a claim of this kind and limit: all of it, if n is not of the same. A
// foreign client's lock is exclusive, unless the tree knows its kind; it may have no limit of its own then. A claim of
// another kind is one that is about to leave with ErrMismatch, or one that came when the lock was idle; either way it
// excludes.
func effectiveWeight(n *Node, kind driver.Kind, limit int64) int64 {
	if n.Kind != kind || n.Limit != limit && !(n.Foreign && n.Limit == 0) {
		return limit
	}
	return n.Weight
}

// isGranted reports whether nodes[i] is granted. Once it is it stays so: those ahead become fewer, and heavier only where that
// leaves room (see Reweigh).
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

// kindAndLimit gives kind and limit of a lock: those of the first claim that has them. What only foreign clients hold is a
// mutex.
func kindAndLimit(nodes []Node) (driver.Kind, int64) {
	for i := range nodes {
		if !nodes[i].Foreign {
			return nodes[i].Kind, nodes[i].Limit
		}
	}
	if len(nodes) > 0 {
		return driver.KindMutex, 1
	}
	return "", 0
}

// countGranted is how many nodes, from the first on, are granted. Under strict order the first that is not stops all behind.
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

// findOwn finds a claim's own node: by its id, and bound to the claim's own session. One that is left over from an earlier
// session is not it.
func findOwn(nodes []Node, id, session string) int {
	for i := range nodes {
		if n := &nodes[i]; n.ID == id && n.Session == session && !n.Foreign {
			return i
		}
	}
	return -1
}

// findBlocker is the key of the node that nodes[i], which does not fit, must wait for; empty where it must watch for the
// going of any.
//
//   - Who needs the whole lock waits for all ahead: the one before it goes last, or soon enough.
//   - A reader waits for writers only, the nearest first.
//   - Of a semaphore's waiters only the first looks at the holders; the others wait until the one before them is let in.
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

// mustMarkAdmitted reports whether the one behind nodes[i] waits for it to be let in, and has to be told.
func mustMarkAdmitted(nodes []Node, i int) bool {
	if nodes[i].Kind != driver.KindSemaphore || i+1 >= len(nodes) {
		return false
	}
	next := &nodes[i+1]
	return !next.Foreign && next.Weight < next.Limit
}

// checkMismatch is the refusal of a claim of another kind or limit than the lock stands under. Foreign holders make none: whatever comes
// behind them waits. But those make one whose clients would not wait for the claim in turn.
func checkMismatch(nodes []Node, c *driver.Claim) error {
	for i := range nodes {
		if n := &nodes[i]; n.KindConflictHint != "" && n.Kind != c.Kind {
			return fmt.Errorf("%w: a foreign client holds it that a %s would not keep out: %s", driver.ErrMismatch, c.Kind, n.KindConflictHint)
		}
		if n := &nodes[i]; !n.Foreign && n.ID != c.ID {
			if n.Kind == c.Kind && n.Limit == c.Limit {
				return nil
			}
			return fmt.Errorf("%w: it stands as a %s of %d, and a %s of %d was claimed", driver.ErrMismatch, n.Kind, n.Limit, c.Kind, c.Limit)
		}
	}
	return nil
}

// hasRoom reports whether a claim that comes now would be granted at once.
func hasRoom(nodes []Node, c *driver.Claim) bool {
	left := c.Limit - c.Weight
	for i := range nodes {
		left -= effectiveWeight(&nodes[i], c.Kind, c.Limit)
	}
	return left >= 0
}

// exceedsBounds reports whether nodes[i], having just come, stands beyond what a lock may carry.
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

// describeLock is a look as others see it.
func describeLock(look Snapshot) driver.Lock {
	l := driver.Lock{Name: look.Name}
	l.Kind, l.Limit = kindAndLimit(look.Nodes)
	n := countGranted(look.Nodes)
	state := fnv.New128a()
	for i := range look.Nodes {
		node := &look.Nodes[i]
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

// ClaimInfoOf is a node as others see it.
func ClaimInfoOf(n Node, limit int64) driver.ClaimInfo {
	s := driver.ClaimInfo{
		Ref: formatRef(n), Owner: n.Owner, Meta: n.Meta, Weight: n.Weight, Token: n.Token, TTL: n.TTL,
		Detached: n.Detached, ReleaseRequested: n.ReleaseRequested, Broken: n.Broken, Foreign: n.Foreign,
	}
	if n.Foreign {
		s.Owner = "session " + n.Session
		if n.Kind == "" {
			s.Weight = limit
		}
	}
	if n.CreatedAt > 0 {
		s.Since = time.UnixMicro(n.CreatedAt)
	}
	return s
}

// formatRef finds a node again from another process.
func formatRef(n Node) string { return n.Key + "@" + strconv.FormatInt(n.Token, 16) }

func parseRef(r string) (key string, token int64, err error) {
	at := strings.LastIndexByte(r, '@')
	if at > 0 {
		if token, err = strconv.ParseInt(r[at+1:], 16, 64); err == nil && token > 0 {
			return r[:at], token, nil
		}
	}
	return "", 0, fmt.Errorf("%w: %q is no ref of this store", driver.ErrInvalid, r)
}
