package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// The records of the run ledger are below 256 nodes, so that none has too many children: a list of children is one
// reply, which travels over a session that may renew locks, and keys may be kept forever.
//
// Earlier programs have all records below one node, the old folder, which each of them makes when it needs it. They
// would not see what is below the 256, and run a key once more. So before the 256 are made, the old folder is closed:
// its ACL lets nobody create a child. Such a program begins each run of a key that it does not know with a try to
// create it, and so begins none any more. It can renew and end what it has begun. What is in the folder stays there,
// and is read and changed there, until it is forgotten. A new key is made below the 256 only after a look at the old
// folder, from a time when that was closed: what is missing then will not be there later.
//
// Servers that check no permissions (skipACL) let nothing be closed. There a ledger whose old folder was empty is
// used, and what earlier programs make later in that folder is still seen. But these programs do not see the new
// keys, and between a look at the old folder and the swap of a new key they may make the same one: so they must not
// run at the same time.
//
// Rejected: to move the records, since a mark cannot go from one session to another; and a marker for each key in the
// old folder, which would have as many children as before.

// folders is the number of nodes among which the records are spread. It never changes.
const folders = 256

// folderOf returns the folder of a record: for records of the ledger one of many, and otherwise the only one.
func (tb *table) folderOf(name string) string {
	path := tb.t.root + "/" + tb.folder
	if tb.runs == nil {
		return path
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return path + fmt.Sprintf("/%02x", h.Sum32()%folders)
}

// oldRuns is what a table knows of the old folder.
type oldRuns struct {
	path   string
	closed atomic.Bool // the folders of the new records exist, and so it is closed if the servers check permissions
	empty  atomic.Bool // it is closed, and there is nothing in it, and never will be
}

// oldVersion begins the versions of records in the old folder.
const oldVersion = "~"

// pathOf returns the path of a record that has been read, by its version.
func (tb *table) pathOf(name, version string) string {
	if strings.HasPrefix(version, oldVersion) {
		return tb.runs.path + "/" + flattenName(name, false)
	}
	return tb.recordPath(name)
}

// readRecord reads a record where it may be. It returns a row without a version if there is none.
func (tb *table) readRecord(ctx context.Context, name string) (record.Row, error) {
	paths := []string{tb.recordPath(name)}
	if tb.runs != nil && !tb.runs.empty.Load() {
		paths = append(paths, tb.pathOf(name, oldVersion))
	}
	calls, err := tb.readBounded(ctx, true, func() (calls []*zk.Call) {
		for _, path := range paths {
			calls = append(calls, zk.GetData(path))
		}
		return calls
	})
	if err != nil {
		return record.Row{}, tb.t.explainError(err, paths[0])
	}
	for i, read := range calls {
		switch {
		case read.Err == zk.CodeNoNode:
			continue
		case read.Err != nil:
			return record.Row{}, tb.t.explainError(read.Err, paths[i])
		}
		row, err := decodeRow(name, read)
		if i > 0 {
			row.Version = oldVersion + row.Version
		}
		return row, err
	}
	return record.Row{Name: name}, nil
}

// checkIsNew returns record.ErrConflict and the row if a new record has one in the old folder. Otherwise it makes
// sure that there never will be one, if the servers check permissions.
func (tb *table) checkIsNew(ctx context.Context, name string) (record.Row, error) {
	if tb.runs == nil || tb.runs.empty.Load() {
		return record.Row{}, nil
	}
	row, err := tb.readRecord(ctx, name)
	if err == nil && row.Version == "" && !tb.runs.closed.Load() {
		if err = tb.prepareFolders(ctx); err == nil && !tb.runs.empty.Load() {
			row, err = tb.readRecord(ctx, name)
		}
	}
	switch {
	case err == nil && row.Version != "":
		return row, record.ErrConflict
	case err != nil && !driverutil.IsFinal(err):
		err = fmt.Errorf("%w: %w", record.ErrUnsent, err) // of the swap
	}
	return record.Row{}, err
}

// keeperName is a node in the old folder that is no record. The folder is a container, which the servers would remove
// with its last child; an old program would then make it again, and not closed.
const (
	keeperName = "%closed"
	probeName  = "%probe"
)

// openMark is the data of the node above the new folders if no try to create a child of the old one was refused.
const openMark = "open"

// prepareFolders closes the old folder and makes the new ones, unless that is done. The node above the new ones is made
// when the old one is closed, and so shows that; its data is openMark if it could not be closed.
func (tb *table) prepareFolders(ctx context.Context) error {
	above := tb.t.root + "/" + tb.folder
	for {
		calls, err := tb.readBounded(ctx, true, func() []*zk.Call {
			return []*zk.Call{zk.GetData(above), zk.Exists(tb.runs.path), zk.Exists(tb.runs.path + "/" + keeperName)}
		})
		for i := 0; err == nil && i < len(calls); i++ {
			if calls[i].Err != zk.CodeNoNode {
				err = calls[i].Err
			}
		}
		if err != nil {
			return tb.t.explainError(err, tb.runs.path)
		}
		old, _ := calls[1].Stat()
		inUse := old.Children > 0
		if calls[2].Err == nil {
			inUse = old.Children > 1
		}
		if mark, _, err := calls[0].Data(); err == nil && calls[1].Err == nil {
			tb.runs.closed.Store(true)
			tb.runs.empty.Store(!inUse && string(mark) != openMark)
			return nil
		}
		isClosed, err := tb.closeOldFolder(ctx, inUse)
		if err != nil {
			return err
		}
		var mark []byte
		if !isClosed {
			mark = []byte(openMark)
		}
		if err := tb.sendAlone(ctx, zk.CreatePersistent(above, mark, tb.t.acl)); err != nil {
			return tb.t.explainError(err, above)
		}
		var nodes []string
		for i := range folders {
			nodes = append(nodes, fmt.Sprintf("%s/%02x", above, i))
		}
		for some := range slices.Chunk(nodes, 64) {
			if err := tb.createNodes(ctx, tb.t.acl, some...); err != nil {
				return err
			}
		}
	}
}

// closeOldFolder takes the permission to create children from the old folder, which it makes if there is none, and
// reports whether it is closed. If the servers check no permissions, only a folder with nothing in it is left open.
//
// The folder is closed when a try to create a child was refused, and its ACL lets nobody create one. A change of an ACL
// alone proves nothing, although it was acknowledged: the leader compares a create with the ACL as it was before any
// change that it has not applied yet, and a follower may have applied and confirmed one by then. So the try is
// repeated for a while. A refusal alone may be for this user only.
func (tb *table) closeOldFolder(ctx context.Context, inUse bool) (isClosed bool, err error) {
	path := tb.runs.path
	closed := slices.Clone(tb.t.acl)
	for i := range closed {
		if closed[i].Perms &^= permCreate; closed[i].Perms == 0 {
			closed[i].Perms = permRead
		}
	}
	for tries, denials := 0, 0; ; {
		probe := path + "/" + probeName
		code, err := tb.sendMulti(ctx, []*zk.Call{
			zk.CreatePersistent(probe, nil, tb.t.acl), zk.Delete(probe, zk.AnyVersion)})
		switch {
		case err != nil:
			return false, tb.t.explainError(err, path)
		case code == zk.CodeNoAuth:
			return true, tb.checkNobodyCreates(ctx)
		case code == zk.CodeNoNode:
			if tb.t.root != "" {
				if err := tb.createFolder(ctx, tb.t.root); err != nil {
					return false, tb.t.explainError(err, path)
				}
			}
			if err := tb.createNodes(ctx, closed, path); err != nil {
				return false, err
			}
			continue
		case code == zk.CodeNodeExists:
			continue // another client probes it
		case code != zk.CodeOK:
			return false, tb.t.explainError(code, path)
		case tries == 0:
			err := tb.createNodes(ctx, tb.t.acl, path+"/"+keeperName)
			if err == nil {
				err = tb.t.explainError(tb.sendAlone(ctx, zk.SetACL(path, closed)), path)
			}
			switch {
			case err == nil:
				tries = 1
				continue
			case !errors.Is(err, driver.ErrDenied):
				return false, err
			case denials == maxDenials:
				return false, tb.errNotClosed()
			}
			denials++ // another client may have closed the folder since the probe, which the next probe shows
		case tries < maxProbes:
			tries++
		case !inUse:
			return false, nil
		default:
			return false, fmt.Errorf("%w: programs of an earlier version may run keys below %s, and the ZooKeeper servers "+
				"check no permissions that could keep them out: end these programs, and remove %s with all nodes below it, "+
				"or use another namespace", driver.ErrInvalid, path, path)
		}
		select {
		case <-time.After(probePause):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// checkNobodyCreates returns an error if the ACL of the old folder lets anybody create children.
func (tb *table) checkNobodyCreates(ctx context.Context) error {
	calls, err := tb.readBounded(ctx, true, func() []*zk.Call { return []*zk.Call{zk.GetACL(tb.runs.path)} })
	if err != nil {
		return tb.t.explainError(err, tb.runs.path)
	}
	acl, err := calls[0].ACL()
	if err == zk.CodeNoAuth || slices.ContainsFunc(acl, func(a zk.ACL) bool { return a.Perms&permCreate != 0 }) {
		return tb.errNotClosed()
	}
	return tb.t.explainError(err, tb.runs.path)
}

func (tb *table) errNotClosed() error {
	return fmt.Errorf("%w: programs of an earlier version may run keys below %s, and the ZooKeeper user lacks the permission "+
		"to administer that node: have the permission to create taken from its ACL", driver.ErrDenied, tb.runs.path)
}

const (
	permRead, permCreate = 1, 4
	maxProbes            = 40
	maxDenials           = 2
	probePause           = 50 * time.Millisecond
)

// createNodes creates nodes that may exist, in their order.
func (tb *table) createNodes(ctx context.Context, acl []zk.ACL, paths ...string) error {
	var calls []*zk.Call
	for _, path := range paths {
		calls = append(calls, zk.CreatePersistent(path, nil, acl))
	}
	if err := tb.sendAlone(ctx, calls...); err != nil {
		return tb.t.explainError(err, paths[0])
	}
	for i, c := range calls {
		if c.Err != nil && c.Err != zk.CodeNodeExists {
			return tb.t.explainError(c.Err, paths[i])
		}
	}
	return nil
}

// sendAlone sends changes that may be made twice without harm. If there is one, it returns its refusal.
func (tb *table) sendAlone(ctx context.Context, calls ...*zk.Call) error {
	err := callServer(ctx, func(ctx context.Context) error {
		c, err := tb.t.anyConn(ctx)
		if err == nil {
			err = c.Do(ctx, calls...)
		}
		return err
	})
	switch {
	case errors.Is(err, zk.ErrSessionExpired):
		return zk.ErrLinkBroken // of no claim
	case err == nil && len(calls) == 1 && calls[0].Err != zk.CodeNodeExists:
		return calls[0].Err
	}
	return err
}
