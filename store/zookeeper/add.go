package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// add is one call of Add. It has up to four steps: settle an earlier add of the same claim that had no answer, check
// the condition, create the nodes, and take in what was created. Only the first of them makes Add idempotent: a
// sequential node is created under a new name each time, so a create must never be sent while an earlier one may
// still take effect.
//
// The reply to a create can be lost while the node exists, and its number is known to the server alone. ZooKeeper's
// documentation (Recipes and Solutions, "Important Note About Error Handling") advises what is done here: the name
// of the node contains an id that the client has chosen, so that after a lost reply the client can look for its
// node among the children. Curator calls this protection, and uses the same form of name.
type add struct {
	t         *nodeStore
	conn      *zk.Conn
	name      string
	path      string
	claim     claimKey
	payload   sequence.Payload
	data      []byte // the payload, encoded
	condition sequence.AddCondition
}

// Add creates a node and lists the lock with one request: the list shows all nodes that came before.
func (t *nodeStore) Add(
	ctx context.Context, name string, s sequence.Session, _ int64,
	payload sequence.Payload, condition sequence.AddCondition,
) (sequence.Snapshot, error) {
	a, err := t.newAdd(name, s, payload, condition)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	if t.isAddPending(a.claim) {
		if found, exists, err := a.settleEarlierAdd(ctx); err != nil || exists {
			return found, err
		}
	}
	if condition >= 0 {
		if found, met, err := a.checkCondition(ctx); err != nil || !met {
			return found, err
		}
	}
	nodes, listing, err := a.createNodes(ctx)
	if err != nil {
		return sequence.Snapshot{}, err
	}
	return a.finishAdd(ctx, nodes, listing)
}

// newAdd checks whether the layout can hold the claim.
func (t *nodeStore) newAdd(
	name string, s sequence.Session, payload sequence.Payload, condition sequence.AddCondition,
) (*add, error) {
	if t.info.Kinds != nil && !slices.Contains(t.info.Kinds, payload.Kind) {
		return nil, fmt.Errorf("%w: the layout %s has no %s", driver.ErrUnsupported, t.opts.Layout, payload.Kind)
	}
	conn, err := t.sessionConn(s.ID)
	if err != nil {
		return nil, err
	}
	if !isClaimID(payload.ID) {
		return nil, fmt.Errorf("%w: the claim's id %q is not 26 characters of lower-case base32",
			driver.ErrInvalid, payload.ID)
	}
	if _, _, ok := parseStem(formatStem(s.ID, payload)); !ok {
		return nil, fmt.Errorf("%w: a claim of kind %q, limit %d and weight %d",
			driver.ErrInvalid, payload.Kind, payload.Limit, payload.Weight)
	}
	// The key of the node says all that other claims must know, so that a list of names is enough for them. The
	// data are for people, and for what can change.
	data, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return &add{t: t, conn: conn, name: name, path: t.pathOf(name), claim: claimKey{s.ID, payload.ID},
		payload: payload, data: data, condition: condition}, nil
}

// isOwn reports whether a node is the claim's.
func (a *add) isOwn(n sequence.Node) bool { return n.ID == a.claim.id && n.Session == a.claim.session }

// settleEarlierAdd finds out, by the session of the claim, what has become of an add without an answer. If the
// claim exists, it returns how the lock is held. If not, the claim may be added again.
//
// Another session would not do. The servers keep the order of the requests of one session only, so a list by another
// session may be made before the add takes effect.
//
// Of the nodes it reads only the claim's own, for its token. The servers have left adds without an answer because they
// had too much to do, and many clients may be here at once: to read all nodes, each would send as many requests as
// there are claims.
func (a *add) settleEarlierAdd(ctx context.Context) (found sequence.Snapshot, exists bool, err error) {
	listed, err := a.t.listBySession(ctx, a.conn, a.name, a.path)
	if err != nil {
		return sequence.Snapshot{}, false, err
	}
	i := slices.IndexFunc(listed.Nodes, a.isOwn)
	if i < 0 {
		return sequence.Snapshot{}, false, a.clearForReAdd(ctx, listed)
	}
	// If that fails, the add remains pending: the next call looks again and does not create a node.
	if err := a.readOwnNode(ctx, listed, i); err != nil {
		return sequence.Snapshot{}, true, err
	}
	a.t.settleAdd(a.claim)
	return a.readFirstNode(ctx, listed), true, nil
}

// readOwnNode reads the claim's node, which a list has shown, and caches it.
func (a *add) readOwnNode(ctx context.Context, listed childrenSnapshot, i int) error {
	c := &listed.children[i]
	path := a.path + "/" + c.Key
	read := zk.GetData(path)
	if err := a.conn.Do(ctx, read); err != nil {
		return a.t.explainError(err, path)
	}
	n, err := c.decodeNode(read)
	switch {
	case err == zk.CodeNoNode:
		return errRemovedTooSoon
	case err != nil:
		return a.t.explainError(err, path)
	}
	listed.Nodes[i] = n
	if a.isOwn(n) {
		a.t.cacheOwnNode(path, n)
		if c.second != "" {
			a.t.noteSecondNode(path, a.path+"/"+c.second)
		}
	}
	return nil
}

// clearForReAdd removes what there may be of a claim that does not exist: of the two nodes that a claim must have,
// one alone would keep the claim itself out.
func (a *add) clearForReAdd(ctx context.Context, listed childrenSnapshot) error {
	var keys []string
	for _, c := range listed.children {
		keys = append(keys, c.Key)
	}
	if _, err := a.t.removeClaimNodes(ctx, a.conn, a.path, keys, a.claim); err != nil {
		return err
	}
	a.t.noteReAdded(a.claim)
	return nil
}

// checkCondition reports whether the condition of the add is met now, and returns the lock as it is if it is not.
//
// ZooKeeper cannot make a create depend on what other children a node has: a transaction checks the versions of data,
// not of the list of children. So the condition only saves a node that would have to be removed again. Whether the
// claim is granted is decided by the list that comes with the create, which shows a claim that came in between.
func (a *add) checkCondition(ctx context.Context) (found sequence.Snapshot, met bool, err error) {
	listed, err := a.t.listBySession(ctx, a.conn, a.name, a.path)
	if err != nil {
		return listed.Snapshot, false, err
	}
	if a.condition == sequence.AddIfAlone {
		return listed.Snapshot, len(listed.Nodes) == 0, nil
	}
	return listed.Snapshot, listed.changed <= int64(a.condition), nil
}

// createNodes creates the claim's nodes, and their parents if there are none, and lists the lock behind that.
func (a *add) createNodes(ctx context.Context) (nodes []zk.Result, listing *zk.Call, err error) {
	twoNodes := a.t.layout.secondEnding != nil
	for {
		create, listing := a.newCreateCall(), zk.GetChildren(a.path)
		// Before the request is sent: from then on the node may exist, however this call ends.
		a.t.noteAddPending(a.claim)
		// All nodes that one transaction creates have the same token, so it must not create two of one lock.
		w := &zk.Write{
			Calls: []*zk.Call{create, listing}, Alone: twoNodes, Exclusive: a.path,
			Unhurried: a.condition == sequence.AddBatched,
		}
		if err := a.conn.Write(ctx, w); err != nil {
			return nil, nil, a.t.explainError(err, a.path)
		}
		a.t.settleAdd(a.claim)
		nodes, err := create.CreatedBelow(a.path)
		switch err {
		case nil:
			return nodes, listing, nil
		case zk.CodeNoNode:
			// This may happen more than once: a container is removed when it is empty, so also between the two
			// requests. ZooKeeper's documentation (Programmer's Guide, "Container Nodes") demands this loop.
			err = a.t.createParents(ctx, a.conn, a.path)
		default:
			err = a.t.explainError(err, a.path)
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// newCreateCall returns the request that creates the claim's one or two nodes. Two are created in one transaction, so
// that no client ever sees one without the other, and none can come between them.
func (a *add) newCreateCall() *zk.Call {
	claim := driver.Claim{Kind: a.payload.Kind, Limit: a.payload.Limit, Weight: a.payload.Weight}
	stem := a.path + "/" + formatStem(a.claim.session, a.payload)
	create := zk.CreateSequential(joinEnding(stem, a.t.layout.ending(claim)), a.data, a.t.acl)
	if a.t.layout.secondEnding == nil {
		return create
	}
	return zk.Multi(create, zk.CreateSequential(joinEnding(stem, a.t.layout.secondEnding(claim)), a.data, a.t.acl))
}

// errRemovedTooSoon says that the node was removed before its token was read. The engine asks again, and the claim
// is added again.
var errRemovedTooSoon = errors.New("the claim's node was removed while it was being made")

// errAddedTwice says that an earlier node of the claim precedes the one that was just created. The engine asks
// again, and learns of that node.
var errAddedTwice = errors.New("the claim exists already")

// finishAdd takes in what was created, and returns how the lock is held. A claim that it cannot vouch for is
// removed, or left to the next call as a pending add.
func (a *add) finishAdd(ctx context.Context, nodes []zk.Result, listing *zk.Call) (sequence.Snapshot, error) {
	if err := a.fetchStats(ctx, nodes); err != nil {
		a.t.noteAddPending(a.claim) // the nodes exist, without a token that anybody knows
		// One node of two would keep its own claim out; and the engine does not withdraw an add that was refused
		// for good.
		if err == errRemovedTooSoon || driverutil.IsFinal(err) {
			err = a.removeCreated(nodes, err)
		}
		return sequence.Snapshot{}, err
	}
	a.cacheCreated(nodes)
	if listing.Err != nil { // the claim cannot know whether it is granted: it must not remain
		return sequence.Snapshot{}, a.removeCreated(nodes, a.t.explainError(listing.Err, a.path))
	}
	listed, err := a.t.decodeListing(ctx, a.conn, a.name, a.path, listing)
	if i := slices.IndexFunc(listed.Nodes, a.isOwn); err == nil && i >= 0 && listed.Nodes[i].Token == 0 {
		err = errAddedTwice
	}
	if err != nil {
		a.t.noteAddPending(a.claim)
		return sequence.Snapshot{}, err
	}
	return a.readFirstNode(ctx, listed), nil
}

// fetchStats asks for the Stat of nodes that a transaction has created: the servers answer that with paths alone. The
// claim needs it for its token, which is the transaction that created the node (czxid). The number in the name cannot
// be the token, because it begins at 0 again when the parent is created again.
func (a *add) fetchStats(ctx context.Context, nodes []zk.Result) error {
	if nodes[0].Stat.Czxid != 0 {
		return nil
	}
	calls := make([]*zk.Call, len(nodes))
	for i, n := range nodes {
		calls[i] = zk.Exists(n.Path)
	}
	if err := a.conn.Do(ctx, calls...); err != nil {
		return a.t.explainError(err, nodes[0].Path)
	}
	for i, call := range calls {
		stat, err := call.Stat()
		switch {
		case err == zk.CodeNoNode:
			return errRemovedTooSoon
		case err != nil:
			return a.t.explainError(err, nodes[i].Path)
		}
		nodes[i].Stat = stat
	}
	return nil
}

// cacheCreated remembers the nodes that the server has just created, so that no read is needed.
func (a *add) cacheCreated(nodes []zk.Result) {
	for _, n := range nodes {
		a.t.cacheOwnNode(n.Path, sequence.Node{
			Key: n.Path[len(a.path)+1:], Token: n.Stat.Czxid, Version: int64(n.Stat.Version) + 1,
			Session: a.claim.session, Payload: a.payload,
		})
	}
	if len(nodes) > 1 {
		a.t.noteSecondNode(nodes[0].Path, nodes[1].Path)
	}
}

// removeCreated removes nodes that were created a moment ago, and returns why. If one may remain, the claim counts as
// pending, and the error is none of those after which nothing is left of it.
func (a *add) removeCreated(nodes []zk.Result, why error) error {
	// Not bounded by the caller's context: that may be what has ended, and the nodes would keep others out.
	ctx, cancel := context.WithTimeout(a.t.life, time.Second)
	defer cancel()
	for _, n := range nodes {
		remove := zk.Delete(n.Path, zk.AnyVersion)
		err := a.conn.Do(ctx, remove)
		if err == nil {
			err = remove.Err
		}
		if err != nil && err != zk.CodeNoNode {
			a.t.noteAddPending(a.claim)
			return fmt.Errorf("the claim's node could not be removed (%v) after: %v", err, why)
		}
	}
	return why
}

// readFirstNode reads the node of the holder if the claim has to wait, so that it can say for whom. If that node
// directly precedes the claim, the engine will watch it, and the same read sets the watch: a lock with one waiter is
// the usual case, and so costs no request of its own for the watch. A node of this session that is not cached was
// removed meanwhile.
func (a *add) readFirstNode(ctx context.Context, listed childrenSnapshot) sequence.Snapshot {
	i := slices.IndexFunc(listed.Nodes, func(n sequence.Node) bool { return !n.Foreign && n.ID == a.claim.id })
	if i < 1 || listed.Nodes[0].Token != 0 || listed.Nodes[0].Session == listed.Nodes[i].Session {
		return listed.Snapshot
	}
	path := a.path + "/" + listed.Nodes[0].Key
	var read *zk.Call
	if i == 1 {
		read = a.conn.GetDataAndWatch(path)
	} else {
		read = zk.GetData(path)
	}
	if err := a.conn.Do(ctx, read); err != nil || read.Err != nil {
		return listed.Snapshot // the claim exists, whether or not its holder is known
	}
	if n, err := listed.children[0].decodeNode(read); err == nil {
		listed.Nodes[0] = n
		a.t.cacheNode(path, n)
	}
	return listed.Snapshot
}

// createParents creates the nodes above a claim: containers, which the servers remove when they have been empty for a
// while. Mostly all but the last exist, and it tries that one first: its user may have no right to create the others,
// and a server may give such a refusal ahead of the answers to earlier requests, which ends the link (see
// zk.BarrierError). A node that we may not create may exist nevertheless, so the outcome of the last one decides. If
// that had no parent, the one before it that could not be created says why.
func (t *nodeStore) createParents(ctx context.Context, c *zk.Conn, path string) error {
	create, asContainers, lastAlone := zk.CreateContainer, true, true
	for {
		var calls []*zk.Call
		var paths []string
		for i := 1; i <= len(path); i++ {
			if i == len(path) || path[i] == '/' && !lastAlone {
				calls, paths = append(calls, create(path[:i], nil, t.acl)), append(paths, path[:i])
			}
		}
		if err := c.Do(ctx, calls...); err != nil {
			return t.explainError(err, path)
		}
		i := len(calls) - 1
		for i > 0 && calls[i].Err == zk.CodeNoNode {
			i--
		}
		switch err := calls[i].Err; {
		case err == zk.CodeNoNode && lastAlone:
			lastAlone = false
		case err == nil || err == zk.CodeNodeExists || err == zk.CodeNoNode:
			return nil // if one was removed meanwhile, the caller tries again
		case err == zk.CodeUnimplemented && asContainers:
			create, asContainers = zk.CreatePersistent, false
		default:
			return t.explainError(err, paths[i])
		}
	}
}

// A pending add is one whose answer has not come: the claim's node may exist, or come to exist. It is settled by an
// answer, by a list of the same session that shows what became of it, or by the end of the session, with which the
// servers delete all its nodes.

func (t *nodeStore) noteAddPending(k claimKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pendingAdds[k] = true
}

func (t *nodeStore) settleAdd(k claimKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pendingAdds, k)
}

func (t *nodeStore) isAddPending(k claimKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pendingAdds[k]
}

// noteReAdded settles a pending add whose claim does not exist. That is final as long as a server carries out what
// came over a broken link before what comes over the next. If one is very late with that, the claim has a node too
// many; so its release looks for both.
func (t *nodeStore) noteReAdded(k claimKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pendingAdds, k)
	t.reAdded[k] = true
}

// forgetReAdded notes that all nodes of a claim were removed.
func (t *nodeStore) forgetReAdded(k claimKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.reAdded, k)
}

// mayHaveTwoNodes reports whether a claim has, or may have, two nodes.
func (t *nodeStore) mayHaveTwoNodes(key string) bool {
	if t.layout.secondEnding != nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.reAdded) == 0 {
		return false
	}
	c, _ := parseKey(key)
	return t.reAdded[claimKey{c.Session, c.ID}]
}

// Withdraw removes what an add may have created. A [zk.Barrier] and the list are sent by the session of the add, after
// it: what they do not see will not come. So nothing has to be left behind that would refuse a late add.
func (t *nodeStore) Withdraw(ctx context.Context, name string, s sequence.Session, _ int64, id string) (bool, error) {
	c, err := t.sessionConn(s.ID)
	if err != nil {
		return false, err
	}
	path := t.pathOf(name)
	keys, err := t.listKeysBySession(ctx, c, path)
	if err != nil {
		return false, err
	}
	claim := claimKey{s.ID, id}
	existed, err := t.removeClaimNodes(ctx, c, path, keys, claim)
	if err != nil {
		return false, err
	}
	t.settleAdd(claim)
	t.forgetReAdded(claim)
	return existed, nil
}

// listKeysBySession returns the children of a lock as a session sees them behind all that it has sent.
func (t *nodeStore) listKeysBySession(ctx context.Context, c *zk.Conn, path string) ([]string, error) {
	children := zk.GetChildren(path)
	if err := readFresh(ctx, c, children); err != nil {
		return nil, t.explainError(err, path)
	}
	keys, _, err := children.Children()
	if err == zk.CodeNoNode {
		return nil, nil
	}
	return keys, t.explainError(err, path)
}

// removeClaimNodes removes all nodes of a claim, whatever they end in.
func (t *nodeStore) removeClaimNodes(
	ctx context.Context, c *zk.Conn, path string, keys []string, claim claimKey,
) (existed bool, err error) {
	prefix := claimPrefix(claim)
	for _, key := range keys {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		t.uncacheNode(path + "/" + key)
		remove := zk.Delete(path+"/"+key, zk.AnyVersion)
		if err := c.Do(ctx, remove); err != nil {
			return false, t.explainError(err, path)
		}
		if remove.Err != nil && remove.Err != zk.CodeNoNode {
			return false, t.explainError(remove.Err, path)
		}
		existed = existed || remove.Err == nil
	}
	return existed, nil
}
