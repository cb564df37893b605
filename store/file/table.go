package file

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// table is record.Table over a directory:
//
//	holdfast.v1                      the mark by which a store is known
//	locks/<encoded name>/<version>   the records: see cell
//	clock/<version>                  the clock and the floor: see dirClock
//	clients/<session>                who is alive: see presence
//	tmp/                             what is being made
//	broken/                          what was torn by a power cut
type table struct {
	storeDir
	locksDir     int
	clientsDir   int
	clock        dirClock
	liveness     livenessFile
	events       *eventHub // nil if file events can't be had at all
	processClock driver.Clock

	// callsMu is held for reading by calls under way, so that Close does not close the directories under their hands. No
	// call holds it while it blocks.
	callsMu sync.RWMutex
	closed  chan struct{}

	listMu sync.Mutex // of locks: an open directory has one place at which it is read
}

// environment is what a table takes from the machine, and a test from elsewhere.
type environment struct {
	fsys
	rootHandle    int    // handle of the store's directory
	path          string // its path
	bootID        string
	readBootClock func() time.Duration // the kernel's boot clock
	readWallClock func() time.Time
	clock         driver.Clock
	syncParents   func() // puts the names above root on the disk
	logger        *slog.Logger
	isReplaced    func(handle int, name string) bool // whether another directory than the open one stands at that name below dir
	create        bool                               // whether to make a store where there is none
}

// tmpMaxAge is how old a thing in tmp must be to be nobody's. Whoever was stopped for longer while making it notices.
const tmpMaxAge = time.Hour

// openTable takes over the handle of the store's directory, also if it fails.
func openTable(ctx context.Context, s environment) (*table, error) {
	t := &table{processClock: s.clock, closed: make(chan struct{}), locksDir: -1, clientsDir: -1}
	t.storeDir = storeDir{fsys: s.fsys, path: s.path, root: s.rootHandle, tmp: -1, newNonce: nonceSource()}
	t.isReplaced = func() bool {
		return s.isReplaced(t.root, "") || s.isReplaced(t.locksDir, "locks") || s.isReplaced(t.clientsDir, "clients") || t.liveness.isRemoved()
	}
	t.liveness = livenessFile{fsys: s.fsys, handle: -1}
	if err := t.openParts(ctx, s); err != nil {
		t.closeHandles()
		return nil, err
	}
	return t, nil
}

func (t *table) openParts(ctx context.Context, s environment) (err error) {
	if err := t.ensureMarker(s.create); err != nil {
		return err
	}
	for _, folder := range []struct {
		name   string
		handle *int
	}{{"locks", &t.locksDir}, {"clients", &t.clientsDir}, {"tmp", &t.tmp}} {
		if *folder.handle, err = t.openFolder(folder.name); err != nil {
			return err
		}
	}
	t.liveness.clients = t.clientsDir
	t.clock = dirClock{versionedFile: versionedFile{storeDir: &t.storeDir, parent: s.rootHandle, dirName: "clock", lockName: "clock"}, liveness: &t.liveness,
		readBootClock: s.readBootClock, readWallClock: s.readWallClock, syncParents: s.syncParents, bootID: s.bootID}
	if err := t.clock.startClock(ctx, func(fresh bool) error { return t.prepareBoot(ctx, fresh, s.logger) }); err != nil {
		return err
	}
	return errors.Join(t.liveness.removeDeadFiles(), t.removeOldTmp())
}

// closeHandles closes the handles that are open.
func (t *table) closeHandles() {
	if t.liveness.handle >= 0 {
		t.liveness.endLiveness()
	}
	for _, handle := range []int{t.locksDir, t.clientsDir, t.tmp, t.root} {
		if handle >= 0 {
			t.closeHandle(handle)
		}
	}
}

// noncePrefix is the length of what is random in a nonce.
const noncePrefix = 13

// nonceSource makes names that nobody else makes: 64 random bits for this table, and a number.
func nonceSource() func() string {
	prefix := strings.ToLower(rand.Text()[:noncePrefix])
	var last atomic.Uint64
	return func() string { return prefix + strconv.FormatUint(last.Add(1), 36) }
}

// openFolder opens one of the store's directories, and makes it if need be.
func (t *table) openFolder(name string) (int, error) {
	err := t.makeDir(t.root, name)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return -1, describeError("make the directory "+name+" in "+t.path, err)
	}
	d, err := t.openDir(t.root, name)
	if err != nil {
		return -1, describeError("open the directory "+name+" in "+t.path, err)
	}
	return d, nil
}

// prepareBoot is called before the clock is fixed for this boot.
func (t *table) prepareBoot(ctx context.Context, fresh bool, log *slog.Logger) error {
	if !fresh {
		return repairTornRecords(ctx, &t.storeDir, t.locksDir, log)
	}
	// The clock comes before the first lock and goes never. Look at the locks first, so that whoever has just made a
	// clock and a lock is not taken for somebody who has lost his clock.
	entries, err := t.listNames(t.locksDir)
	if err != nil || len(entries) == 0 {
		return describeError("list locks", err)
	}
	if f, _, err := t.clock.readState(ctx); err != nil || f.isLive() {
		return err
	}
	return fmt.Errorf("%w: %s has locks but no clock, without which tokens could fall; restore the directory clock, or remove all of %s",
		driver.ErrCorrupt, t.path, t.path)
}

// removeOldTmp removes what processes that died left unfinished, and nothing that Holdfast cannot have made.
func (t *table) removeOldTmp() error {
	names, err := t.listNames(t.tmp)
	if err != nil {
		return describeError("list tmp", err)
	}
	for _, name := range names {
		age, emptyFile, err := t.entryAge(t.tmp, name)
		switch {
		case err != nil, age < tmpMaxAge, !isOwnName(name):
		case emptyFile: // of a presence
			_ = t.removeFile(t.tmp, name)
		default:
			t.removeTmpDir(name)
		}
	}
	return nil
}

// removeTmpDir removes a directory that holds versions and nothing else. It is renamed first, so that its maker, should it
// only have been stopped, can't put into place one that is half swept.
func (t *table) removeTmpDir(name string) {
	d, err := t.openDir(t.tmp, name)
	if err != nil {
		return
	}
	defer t.closeHandle(d)
	files, err := t.listNames(d)
	foreign := func(file string) bool {
		v, staged, ok := parseFile(file)
		return !ok || staged || !isOwnName(v.incarnation)
	}
	swept := t.newNonce()
	if err != nil || slices.ContainsFunc(files, foreign) || t.renameEntry(t.tmp, name, t.tmp, swept) != nil {
		return
	}
	for _, file := range files {
		_ = t.removeFile(d, file)
	}
	_ = t.removeDir(t.tmp, swept)
}

func (t *table) Info() driver.Info { return storeInfo(t.path, t.processClock) }

func storeInfo(dir string, hands driver.Clock) driver.Info {
	return driver.Info{
		Store:       "file:" + dir,
		Clock:       hands,
		Tier:        driver.TierFenceSafe,
		ExpiryClock: driver.ExpiryClockStore,
		// A claim that is not detached belongs to a process that the power cut ends as well; a detached one is synced.
		Survives:          driver.Survives{Restart: true, PowerCut: true},
		DeadHolderTimeout: 500 * time.Millisecond,
	}
}

// Now is exact: all clients read the same kernel's clock.
func (t *table) Now() (int64, time.Duration) { return t.clock.readMicros(), 0 }

// beginCall holds the table open until the returned function is called.
func (t *table) beginCall(ctx context.Context) (func(), error) {
	t.callsMu.RLock()
	select {
	case <-t.closed:
		t.callsMu.RUnlock()
		return nil, driver.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		t.callsMu.RUnlock()
		return nil, err
	}
	return t.callsMu.RUnlock, nil
}

// checkInPlace is a loss if another directory stands where this one was, or others take this client for gone.
func (t *table) checkInPlace(ctx context.Context) error {
	done, err := t.beginCall(ctx)
	if err != nil {
		return err
	}
	defer done()
	if !t.isReplaced() {
		return nil
	}
	t.clock.floor.Store(0) // so that the next write finds out as well
	return &driver.LossError{Cause: driver.LossGone, Err: errReplaced}
}

func (t *table) recordFile(name string) versionedFile {
	return versionedFile{storeDir: &t.storeDir, parent: t.locksDir, dirName: encodeName(name), lockName: name}
}

func rowOf(name string, f storedRecord) record.Row {
	if !f.isLive() {
		return record.Row{Name: name}
	}
	return record.Row{Name: name, Version: f.version.String(), Data: f.data}
}

func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	if err := checkName(name); err != nil {
		return record.Row{}, err
	}
	done, err := t.beginCall(ctx)
	if err != nil {
		return record.Row{}, err
	}
	defer done()
	f, err := t.recordFile(name).loadRecord(ctx)
	if err != nil {
		return record.Row{Name: name}, err
	}
	return rowOf(name, f), nil
}

func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	base, staged, ok := parseFile(row.Version)
	err := checkName(row.Name)
	switch {
	case err != nil:
		return record.Row{}, err
	case len(row.Data) > record.MaxData:
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes; %d are allowed", driver.ErrInvalid, len(row.Data), record.MaxData)
	case row.Version != "" && (!ok || staged):
		return record.Row{}, fmt.Errorf("%w: %q is no version of a file record", driver.ErrInvalid, row.Version)
	}
	done, err := t.beginCall(ctx)
	if err != nil {
		return record.Row{}, err
	}
	defer done()
	if err := t.clock.ensureFloor(ctx, row.Token); err != nil {
		return record.Row{}, err
	}
	c, to := t.recordFile(row.Name), recordContent{name: row.Name, data: row.Data}
	if row.Version == "" {
		f, err := c.createRecord(ctx, to, row.Durable)
		if err != nil && !f.isLive() {
			return record.Row{}, cmp.Or(t.replacedError(), err)
		}
		return rowOf(row.Name, f), err
	}
	next, err := c.swapVersion(ctx, base, to, row.Durable)
	if err != nil {
		return record.Row{}, cmp.Or(t.replacedError(), err)
	}
	row.Version = next.String()
	return row, nil
}

func (t *table) Delete(ctx context.Context, row record.Row) error {
	if err := checkName(row.Name); err != nil {
		return err
	}
	done, err := t.beginCall(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := t.recordFile(row.Name)
	base, staged, ok := parseFile(row.Version)
	if ok && !staged {
		err = c.deleteRecord(ctx, base)
	} else {
		err = record.ErrConflict
	}
	if errors.Is(err, record.ErrConflict) {
		if f, err := c.loadRecord(ctx); err != nil || !f.isLive() {
			return err
		}
	}
	return err
}

func (t *table) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		entries, err := t.listEntries(ctx)
		if err != nil {
			yield(record.Row{}, err)
			return
		}
		for _, entry := range entries {
			name, whole, ok := decodeName(entry)
			if !ok || !strings.HasPrefix(name, prefix) && (whole || !strings.HasPrefix(prefix, name)) {
				continue
			}
			f, err := t.loadEntry(ctx, entry)
			switch {
			case errors.Is(err, driver.ErrClosed) || ctx.Err() != nil:
				yield(record.Row{}, cmp.Or(ctx.Err(), err))
				return
			case err == nil && !f.isLive() || err == nil && !strings.HasPrefix(f.name, prefix):
				continue
			case err != nil && !whole:
				f.name = entry // all that is known of it
			case err != nil:
				f.name = name
			}
			row := record.Row{Name: f.name}
			if err == nil {
				row = rowOf(f.name, f)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

func (t *table) listEntries(ctx context.Context) ([]string, error) {
	done, err := t.beginCall(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	t.listMu.Lock()
	defer t.listMu.Unlock()
	entries, err := t.listNames(t.locksDir)
	return entries, describeError("list locks", err)
}

func (t *table) loadEntry(ctx context.Context, entry string) (storedRecord, error) {
	done, err := t.beginCall(ctx)
	if err != nil {
		return storedRecord{}, err
	}
	defer done()
	return versionedFile{storeDir: &t.storeDir, parent: t.locksDir, dirName: entry}.loadRecord(ctx)
}

func (t *table) Session() string { return t.liveness.session }

func (t *table) IsDead(session string) bool {
	done, err := t.beginCall(context.Background())
	if err != nil {
		return false
	}
	defer done()
	return t.liveness.isDead(session)
}

// LivenessFile is the presence file: its flock belongs to the open file, whichever processes have it.
func (t *table) LivenessFile() (*os.File, error) {
	done, err := t.beginCall(context.Background())
	if err != nil {
		return nil, err
	}
	defer done()
	return t.liveness.shareFile()
}

// recordPaths are paths.
func recordPaths(dir, name string) []string {
	return []string{
		filepath.Join(dir, "locks", encodeName(name)) + "/", filepath.Join(dir, "clock") + "/",
		filepath.Join(dir, "clients") + "/",
	}
}

func (t *table) Wait(ctx context.Context, name, version string) error {
	if t.events == nil {
		return fmt.Errorf("file events: %w", driver.ErrUnsupported)
	}
	changed, cancel, err := t.events.subscribe(encodeName(name))
	if err != nil {
		return fmt.Errorf("watch %q: %w", name, err)
	}
	defer cancel()
	row, err := t.Load(ctx, name)
	if err != nil || row.Version != version {
		return err
	}
	select {
	case <-changed:
		return nil
	case <-t.closed:
		return driver.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *table) Close() error {
	t.callsMu.Lock()
	defer t.callsMu.Unlock()
	select {
	case <-t.closed:
		return nil
	default:
	}
	close(t.closed)
	t.closeHandles()
	if t.events != nil {
		return t.events.close()
	}
	return nil
}
