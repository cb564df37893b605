package zookeeper

import (
	"context"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// The removal of a claim by force leaves a note: a node of its own, created in the step that removes the claim's
// node. If a holder gets no answer to its release, the note tells it that its own release was not what ended the
// claim. The note is ephemeral, of a session that is not renewed: the servers remove it some time after the
// claim's TTL has passed, or when the TTL ends if they grant no more. ZooKeeper has nodes with a TTL of their own, but
// only if the servers were started with extendedTypesEnabled (Administrator's Guide), which is off by default.

// notePrefix and noteEnding begin and end the names of notes. A note is a sibling of the claims' nodes: a client
// that could create the claim can read it. No lock's name has such an element. Other clients sort all children by
// what follows the name of their recipe, and by the whole name where there is none, or by all but its beginning:
// so the letters sort behind every number, and go-zookeeper, which wants each child to end in a number, takes that
// for a late one.
const (
	notePrefix = "/broken-note%-"
	noteEnding = "__9999999999"
)

// notePathOf returns the path of the note of a claim, by the key of its node. Curator's semaphore counts all
// children among its permits, so there the note is created above them.
func (t *nodeStore) notePathOf(name, key string) string {
	folder := t.pathOf(name)
	if t.opts.Layout == layoutLeases {
		folder = strings.TrimSuffix(folder, leasesFolder)
	}
	c, _ := parseKey(key)
	return folder + notePrefix + c.ID + "-" + c.Session + noteEnding
}

// BreakNode removes a claim's nodes, and leaves a note of it, in one step.
func (t *nodeStore) BreakNode(ctx context.Context, name string, n sequence.Node, reason string) (bool, error) {
	path := t.pathOf(name)
	keys, exists, err := t.nodesOfClaim(ctx, path, n)
	if err != nil || !exists {
		return false, err
	}
	note := zk.CreateEphemeral(t.notePathOf(name, n.Key), []byte(reason), t.acl)
	return t.withNoteSession(ctx, path, n.TTL, func(c *zk.Conn) (bool, error) {
		return t.replaceByNote(ctx, c, path, keys, note)
	})
}

// replaceByNote removes nodes and creates a note in one step. It returns false if one of the nodes was removed
// meanwhile: the engine then looks again.
func (t *nodeStore) replaceByNote(
	ctx context.Context, c *zk.Conn, path string, keys []string, note *zk.Call,
) (bool, error) {
	var steps []*zk.Call
	for _, key := range keys {
		steps = append(steps, zk.Delete(path+"/"+key, zk.AnyVersion))
	}
	// One transaction: a note without a removal would make the holder's own release look like a break, and a removal
	// without a note would make the break look like its release.
	multi := zk.Multi(append(steps, note)...)
	if err := c.Do(ctx, multi); err != nil {
		return false, t.explainError(err, path)
	}
	results, err := multi.Results()
	if err != nil {
		return false, t.explainError(err, path)
	}
	switch _, code := zk.FailedStep(results); code {
	case zk.CodeOK:
		t.forgetNodes(path, keys...)
		return true, nil
	case zk.CodeNoNode:
		return false, nil
	default:
		return false, t.explainError(code, path)
	}
}

// ReadBreakNote reads the data of the note, which are the reason. It reads behind a barrier, because the break and the
// question come from two clients, perhaps through two servers.
func (t *nodeStore) ReadBreakNote(ctx context.Context, name string, n sequence.Node) (bool, string, error) {
	return t.readNote(ctx, t.notePathOf(name, n.Key))
}

// readNote reads the reason that an operator has left with a broken claim.
func (t *nodeStore) readNote(ctx context.Context, path string) (found bool, reason string, err error) {
	calls, _, err := t.read(ctx, true, func() []*zk.Call { return []*zk.Call{zk.GetData(path)} })
	if err != nil {
		return false, "", t.explainError(err, path)
	}
	data, _, err := calls[0].Data()
	if err == zk.CodeNoNode {
		return false, "", nil
	}
	return err == nil, string(data), t.explainError(err, path)
}

// withNoteSession opens the session of a note, and calls step, which creates the note in it. If the answer is lost or
// late, what the step may have created is left to that session.
func (t *nodeStore) withNoteSession(
	ctx context.Context, path string, ttl time.Duration, step func(c *zk.Conn) (bool, error),
) (created bool, err error) {
	// It pings only while this call runs. After that the servers count its TTL, which is how long the note remains. The
	// session of a claim would not do: it may live for days, or end at once.
	c := t.ensemble.NewConn(sequence.BreakNoteTime(ttl), true)
	defer c.Stop()
	t.life.Go(c.Run)
	if err := c.WaitForLink(ctx); err != nil {
		return false, t.explainError(err, path)
	}
	created, err = step(c)
	if err == nil && !created {
		t.closeUnused(c)
	}
	return created, err
}
