package zookeeper

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// table is ZooKeeper as a record.Table: one node per record. When a node is removed and created again, its
// versions begin at 0 again. So each record has a child with a random name, which the data begin with: a swap is a
// transaction that also checks that the child exists, and so cannot replace a later record of the same name. The
// transaction that created the node would tell the records apart as well, but no request can be made to depend on it.
type table struct {
	record.Unsupported

	t         *nodeStore
	folder    string          // the node above its records, below the namespace
	life      context.Context // ends with the table, or with the store
	end       context.CancelFunc
	closeTree func() error // ends the connections, which may also serve a store of locks
	// markSessions are the sessions of the marks next to the records; nil if the table keeps none.
	markSessions *driverutil.Rotation[*zk.Conn]
	runs         *oldRuns // of the run ledger; otherwise nil
}

func newTable(t *nodeStore, folder string) *table {
	tb := &table{t: t, folder: folder, closeTree: func() error { return nil }}
	tb.life, tb.end = context.WithCancel(t.life)
	return tb
}

// records is the node above the records of a table, runs the one above the folders of the run ledger, and oldFolder
// the one that earlier programs use for it. No lock's path contains them: in a lock's path two digits follow a %.
const (
	records   = "%records"
	runs      = "%ledger"
	oldFolder = "%runs"
)

// OpenLedger opens the run ledger next to the locks.
func (s *store) OpenLedger(context.Context) (driver.Ledger, error) {
	tb := newTable(s.nodeStore, runs)
	tb.runs = &oldRuns{path: s.nodeStore.root + "/" + oldFolder}
	tb.keepMarks()
	return record.NewLedger(tb), nil
}

// tokenGap is how far the wall clocks of two clients may differ before a token could be smaller than one before,
// if there is no record of that one any more.
const tokenGap = time.Minute

func (tb *table) recordPath(name string) string {
	return tb.folderOf(name) + "/" + flattenName(name, false)
}

// Info returns the ensemble's Info, for the record engine.
func (tb *table) Info() driver.Info {
	i := tb.t.info
	if i.Clock.Monotonic == nil {
		i.Clock = driver.SystemClock
	}
	i.Kinds = nil
	i.ExpiryClock = driver.ExpiryClockObserver
	i.TokenGap = tokenGap
	return i
}

// TokenFloor returns this machine's wall clock, but never less than before.
func (tb *table) TokenFloor() int64 {
	tb.t.mu.Lock()
	defer tb.t.mu.Unlock()
	tb.t.lastMicros = max(tb.t.lastMicros, time.Now().UnixMicro())
	return tb.t.lastMicros
}

// Clock is nil: ZooKeeper reports a time only with what was written (mtime), by the clock of whichever server led then.
func (tb *table) Clock() record.Clock { return nil }

// requestTimeout limits one request for a record.
const requestTimeout = 2 * time.Second

func callServer(ctx context.Context, request func(context.Context) error) error {
	return driverutil.CallWithTimeout(ctx, requestTimeout, "ZooKeeper", request)
}

// readBounded is the node store's read, within requestTimeout.
func (tb *table) readBounded(
	ctx context.Context, fresh bool, makeReads func() []*zk.Call,
) (calls []*zk.Call, err error) {
	err = callServer(ctx, func(ctx context.Context) (err error) {
		calls, _, err = tb.t.read(ctx, fresh, makeReads)
		return err
	})
	return calls, err
}

// decodeRow decodes a record's node as it was read.
func decodeRow(name string, read *zk.Call) (record.Row, error) {
	data, stat, err := read.Data()
	life, text, ok := bytes.Cut(data, []byte("\n"))
	if err != nil || !ok {
		return record.Row{Name: name}, fmt.Errorf("%w: record %q: %q", driver.ErrCorrupt, name, data)
	}
	return record.Row{
		Name: name, Version: string(life) + "." + strconv.Itoa(int(stat.Version)), Data: text,
		Marked: stat.Children > 1, // the other one is the life
	}, nil
}

// Load sends one read, behind a barrier.
func (tb *table) Load(ctx context.Context, name string) (record.Row, error) {
	if tb.life.Err() != nil {
		return record.Row{}, driver.ErrClosed
	}
	return tb.readRecord(ctx, name)
}

// Swap sends one transaction. For a new record of a ledger it first reads the old folder, unless there is nothing in
// it.
func (tb *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > record.MaxData {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	path := tb.pathOf(r.Name, r.Version)
	life, version, err := tb.parseVersion(r)
	if err != nil {
		return record.Row{}, err
	}
	if life == "" {
		if row, err := tb.checkIsNew(ctx, r.Name); err != nil {
			return row, err
		}
	}
	if life == "" { // a new record: the create fails if there is one
		life = strings.ToLower(rand.Text())
		data := append([]byte(life+"\n"), r.Data...)
		err = tb.swapMarked(ctx, r, path, zk.CreatePersistent(path, data, tb.t.acl),
			zk.CreatePersistent(path+"/"+life, nil, tb.t.acl))
		r.Version = life + ".0"
	} else {
		data := append([]byte(life+"\n"), r.Data...)
		err = tb.swapMarked(ctx, r, path, zk.Check(path+"/"+life, zk.AnyVersion), zk.SetData(path, data, version))
		where, _, _ := strings.Cut(r.Version, life)
		r.Version = where + life + "." + strconv.Itoa(int(version)+1)
	}
	if err != nil {
		return record.Row{}, err
	}
	r.Marked = r.MarkTTL > 0 || r.Marked && r.MarkTTL == 0
	return r, nil
}

// Delete sends one transaction, and reads the record if it was refused: after a lost reply, the refusal may come from
// the first request, which has removed the record. Both nodes go together, because a node with a child cannot be
// deleted.
func (tb *table) Delete(ctx context.Context, r record.Row) error {
	life, version, err := tb.parseVersion(r)
	if err != nil {
		return err
	}
	if life != "" {
		path := tb.pathOf(r.Name, r.Version)
		err := tb.writeSteps(ctx, tb.sendMulti, path, false, zk.Delete(path+"/"+life, zk.AnyVersion), zk.Delete(path, version))
		if err != record.ErrConflict {
			return err
		}
	}
	now, err := tb.Load(ctx, r.Name)
	if err == nil && now.Version != "" {
		return record.ErrConflict
	}
	return err
}

// parseVersion splits the version of a row into the name of its child and the version of its node.
func (tb *table) parseVersion(r record.Row) (life string, version int32, err error) {
	if tb.life.Err() != nil {
		return "", 0, driver.ErrClosed
	}
	if r.Version == "" {
		return "", 0, nil
	}
	life, text, _ := strings.Cut(strings.TrimPrefix(r.Version, oldVersion), ".")
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return "", 0, fmt.Errorf("%w: the version %q", driver.ErrInvalid, r.Version)
	}
	return life, int32(v), nil
}

// multiSender sends one transaction, and returns CodeOK or why it was refused.
type multiSender func(context.Context, []*zk.Call) (zk.Code, error)

// writeSteps makes changes together, and creates the nodes above a new record if there are none.
func (tb *table) writeSteps(ctx context.Context, send multiSender, path string, isNew bool, steps ...*zk.Call) error {
	for try := 0; ; try++ {
		code, err := send(ctx, steps)
		if err != nil {
			return tb.t.explainError(err, path)
		}
		switch code {
		case zk.CodeOK:
			return nil
		case zk.CodeNoNode:
			// Of an existing record, the node or its child is gone. A new one has no folder above it; the bound is for
			// a folder that somebody else keeps removing.
			if !isNew || try >= 3 {
				return record.ErrConflict
			}
			if err := tb.createFolder(ctx, path[:strings.LastIndexByte(path, '/')]); err != nil {
				return tb.t.explainError(err, path)
			}
		case zk.CodeNodeExists, zk.CodeBadVersion:
			return record.ErrConflict
		default:
			return tb.t.explainError(code, path)
		}
	}
}

// sendMulti is the multiSender for changes that belong to no session.
func (tb *table) sendMulti(ctx context.Context, steps []*zk.Call) (zk.Code, error) {
	multi := zk.Multi(steps...)
	err := callServer(ctx, func(ctx context.Context) error {
		return tb.t.write(ctx, &zk.Write{Calls: []*zk.Call{multi}, Alone: true})
	})
	if err != nil {
		return zk.CodeOK, err
	}
	return readOutcome(multi)
}

func readOutcome(multi *zk.Call) (zk.Code, error) {
	results, err := multi.Results()
	_, code := zk.FailedStep(results)
	return code, err
}

// createFolder creates the node above all records.
func (tb *table) createFolder(ctx context.Context, path string) error {
	err := callServer(ctx, func(ctx context.Context) error {
		c, err := tb.t.anyConn(ctx)
		if err == nil {
			err = tb.t.createParents(ctx, c, path)
		}
		return err
	})
	if err == zk.ErrSessionExpired || err == sequence.ErrSessionExpired {
		return nil // the caller tries again, by another session
	}
	return err
}

// List lists the children of the nodes above all records, and reads those that have the prefix.
func (tb *table) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if tb.life.Err() != nil {
			yield(record.Row{}, driver.ErrClosed)
			return
		}
		where, err := tb.listFolders(ctx)
		for some := range slices.Chunk(where, sequence.MaxRead/4) {
			var names [][]string
			if err == nil {
				names, err = tb.listNames(ctx, some, prefix)
			}
			for i := range names {
				if !tb.readListed(ctx, some[i], names[i], yield) {
					return
				}
			}
		}
		if err != nil {
			yield(record.Row{}, tb.t.explainError(err, tb.t.root+"/"+tb.folder))
		}
	}
}

// listFolders returns the nodes above the records. What is listed later is as fresh: see nodeStore.read.
func (tb *table) listFolders(ctx context.Context) (paths []string, err error) {
	path := tb.t.root + "/" + tb.folder
	if tb.runs == nil {
		_, err := tb.readBounded(ctx, true, func() []*zk.Call { return []*zk.Call{zk.Exists(path)} })
		return []string{path}, err
	}
	calls, err := tb.readBounded(ctx, true, func() []*zk.Call { return []*zk.Call{zk.GetChildren(path)} })
	if err != nil {
		return nil, err
	}
	names, _, err := calls[0].Children()
	if err != nil && err != zk.CodeNoNode {
		return nil, err
	}
	for _, name := range names {
		paths = append(paths, path+"/"+name)
	}
	if !tb.runs.empty.Load() {
		paths = append(paths, tb.runs.path)
	}
	return paths, nil
}

// readListed reads and yields the records with these names in a folder. Each is read when its turn comes. One that was
// removed meanwhile is left out. It returns false if the listing is to end.
func (tb *table) readListed(
	ctx context.Context, folder string, names []string, yield func(record.Row, error) bool,
) bool {
	for some := range slices.Chunk(names, sequence.MaxRead) {
		calls, err := tb.readBounded(ctx, false, func() (calls []*zk.Call) {
			for _, name := range some {
				calls = append(calls, zk.GetData(folder+"/"+flattenName(name, false)))
			}
			return calls
		})
		if err != nil {
			yield(record.Row{}, tb.t.explainError(err, folder))
			return false
		}
		for i, read := range calls {
			if read.Err == zk.CodeNoNode {
				continue
			}
			r, err := record.Row{Name: some[i]}, tb.t.explainError(read.Err, folder)
			if err == nil {
				r, err = decodeRow(some[i], read)
			}
			if tb.runs != nil && folder == tb.runs.path {
				r.Version = oldVersion + r.Version
			}
			if !yield(r, err) {
				return false
			}
		}
	}
	return true
}

// listNames lists the records with the prefix in each folder.
func (tb *table) listNames(ctx context.Context, paths []string, prefix string) (names [][]string, err error) {
	calls, err := tb.readBounded(ctx, false, func() (calls []*zk.Call) {
		for _, path := range paths {
			calls = append(calls, zk.GetChildren(path))
		}
		return calls
	})
	if err != nil {
		return nil, err
	}
	for _, c := range calls {
		keys, _, err := c.Children()
		if err != nil && err != zk.CodeNoNode {
			return nil, err
		}
		var found []string
		for _, key := range keys {
			if name, ok := unescapeElement(key); ok && strings.HasPrefix(name, prefix) {
				found = append(found, name)
			}
		}
		names = append(names, found)
	}
	return names, nil
}

// Watcher notifies of each change.
func (tb *table) Watcher() record.Watcher { return record.WatcherFunc(tb.wait) }

// wait subscribes first and loads second, so that a change between the two is not missed. A watch fires once and says
// only that something has happened (Programmer's Guide, "Things to Remember about Watches"), so each one is
// followed by another look.
func (tb *table) wait(ctx context.Context, name, version string) error {
	changed := make(chan struct{}, 1)
	watch := tb.t.subscribe(zk.Watcher{Path: tb.pathOf(name, version), Recurs: true}, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}, "")
	defer watch.Stop()
	for {
		if now, err := tb.Load(ctx, name); err != nil || now.Version != version {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-tb.life.Done():
			return driver.ErrClosed
		}
	}
}

// Close ends the table's calls, and the connections if they are its own.
func (tb *table) Close() error {
	tb.end()
	return tb.closeTree()
}
