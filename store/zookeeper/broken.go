package zookeeper

import (
	"context"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/engine/sequence"
)

// A claim that is removed by force leaves a note: a node of its own, made in the step that removes the claim's. A holder whose release had
// no answer finds by it that it was not its own release that ended the claim. The note is ephemeral, of a session that nobody
// renews: the servers remove it some time after the claim's TTL has passed, or at its end if they grant no more than that.

// broken and itsEnd are what the names of notes begin and end with. They stand where a claim's node may be made: so whoever could make
// the claim can read them. No lock's name has such an element. Other clients sort all children by what follows the name of their recipe,
// and by the whole of what has none, or by all but its beginning: so the letters come behind every number, and go-zookeeper, which wants
// each child to end in a number, takes that for a late one.
const (
	broken = "/broken-note%-"
	itsEnd = "__9999999999"
)

// noteOf is the path of the note of a claim, by the key of its node. Curator's semaphore counts whatever stands among its permits, so there
// it is made above them.
func (t *tree) noteOf(name, key string) string {
	folder := t.pathOf(name)
	if t.opts.Layout == layoutLeases {
		folder = strings.TrimSuffix(folder, inLeases)
	}
	c, _ := parse(key)
	return folder + broken + c.ID + "-" + c.Session + itsEnd
}

// BreakNode removes a claim's nodes, and leaves a note of it, in one step.
func (t *tree) BreakNode(ctx context.Context, name string, n sequence.Node) (bool, error) {
	path := t.pathOf(name)
	keys, stands, err := t.nodesOf(ctx, path, n)
	if err != nil || !stands {
		return false, err
	}
	return t.withNote(ctx, t.noteOf(name, n.Key), n.TTL, func(c *conn, note *call) (bool, error) {
		var steps []*call
		for _, key := range keys {
			steps = append(steps, deleteCall(path+"/"+key, -1))
		}
		multi := multiCall(append(steps, note)...)
		if err := c.do(ctx, multi); err != nil {
			return false, t.fault(err, path)
		}
		results, err := multi.results()
		if err != nil {
			return false, t.fault(err, path)
		}
		switch _, why := refused(results); why {
		case codeOK:
			t.removed(path, keys...)
			return true, nil
		case codeNoNode: // one of them has gone meanwhile: it is looked at again
			return false, nil
		default:
			return false, t.fault(why, path)
		}
	})
}

// WasBroken looks for the note.
func (t *tree) WasBroken(ctx context.Context, name string, n sequence.Node) (bool, error) {
	return t.noted(ctx, t.noteOf(name, n.Key))
}

// noted reports whether a note is there.
func (t *tree) noted(ctx context.Context, note string) (bool, error) {
	calls, _, err := t.read(ctx, true, func() []*call { return []*call{readCall(opExists, note, false)} })
	if err == nil && calls[0].err != codeNoNode {
		err = calls[0].err
	}
	return err == nil && calls[0].err == nil, t.fault(err, note)
}

// withNote opens the session of a note, and has the step made by it that makes the note. What comes of an answer that was lost, or came
// late, is left to that session.
func (t *tree) withNote(ctx context.Context, note string, ttl time.Duration, step func(c *conn, note *call) (bool, error)) (made bool, err error) {
	c := t.newConn(sequence.BreakNoteTime(ttl), true)
	defer c.stop()
	t.spawn(c.run)
	if _, err := c.up(ctx); err != nil {
		return false, t.fault(err, note)
	}
	made, err = step(c, createCall(opCreate, note, nil, t.opts.ACL, modeEphemeral))
	if err == nil && !made {
		t.leave(c)
	}
	return made, err
}
