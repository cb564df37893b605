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
	"runtime"
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
//	holdfast.v1                      the marker by which a store is known
//	locks/<encoded name>/<version>   the records: see versionedFile
//	clock/<version>                  the clock and its floor: see dirClock
//	clients/<session>                which clients are alive: see livenessFile
//	turns/<encoded name>             who looks at changes for the others: see takeTurn
//	turns/<hash>+...                 pipes on which the others are notified: see noticeDir
//	tmp/                             what is being made
//	broken/                          copies of what a power cut has torn
//
// As long as there is no store in the directory, the table is not open: it reads as empty, and reading leaves no trace.
// openStore opens it, and each call tries to: so it opens as soon as another client has made the store.
type table struct {
	record.Unsupported

	storeDir
	locksDir     int
	clientsDir   int
	clock        dirClock
	liveness     livenessFile
	events       *eventHub // nil if the table is in a test's memory
	processClock driver.Clock

	// newEnvironment opens the directory, and makes it if create is set. It returns errAbsent if there is none.
	newEnvironment func(create bool) (environment, error)
	// statFileSystem asks for the state of the file system of a path, and temporaryDirs are the directories from which
	// files are removed by age. Tests replace them.
	statFileSystem func(path string) (fileSystemState, error)
	temporaryDirs  []string
	openMu         sync.Mutex  // held while the table is opened or closed
	opened         atomic.Bool // set when openDirs has set all that it sets, and never cleared

	// callsMu is held for reading by the calls in progress, so that Close does not close the directories while they are
	// in use. No call holds it while it blocks.
	callsMu sync.RWMutex
	calls   atomic.Int32 // how many are under way
	closed  chan struct{}

	noticeMu sync.Mutex             // held while this client begins or ends to listen for notices, which can overlap
	pipes    map[string]*noticePipe // by lock; guarded by noticeMu
	pipeKeep time.Duration          // how long a pipe stays when nobody listens

	listMu sync.Mutex // held while locks is listed: an open directory has one position at which it is read
}

// environment is what a table needs from the machine. Tests provide another one.
type environment struct {
	fsys
	rootHandle    int // of the store's directory
	bootID        string
	readBootClock func() time.Duration // reads the kernel's boot clock
	readWallClock func() time.Time
	syncParents   func() // syncs the directories above the store's, so that its own name is on the disk
	logger        *slog.Logger
	// isReplaced reports whether the path name, below the store's directory, does not lead to the open directory any
	// more.
	isReplaced func(handle int, name string) bool
	// checkFolder refuses a directory in the store that is not for all who share the store, and for nobody else.
	checkFolder func(handle int, path string) error
	events      *eventHub
	create      bool // whether to make a store if there is none
}

// tmpMaxAge is the age above which an entry of tmp belongs to no running operation. A client that was stopped for
// longer than this while it made the entry notices that it is gone.
const tmpMaxAge = time.Hour

// errAbsent says that there is no store in the directory yet. A write fails with it, and reads find nothing.
var errAbsent = fmt.Errorf("%w: there is no store yet", driver.ErrUnsupported)

// newTable returns the table of a directory, not open yet.
func newTable(dir string, o Options) *table {
	t := &table{storeDir: storeDir{path: dir}, processClock: o.Clock, closed: make(chan struct{}),
		pipeKeep:       time.Second,
		statFileSystem: statFileSystem, temporaryDirs: usualTemporaryDirs()}
	t.newEnvironment = func(create bool) (environment, error) { return newEnvironment(dir, o, create) }
	return t
}

// openStore opens the table. If there is no store in the directory, it makes one if create is set, and otherwise
// returns errAbsent. After an error it can be called again.
func (t *table) openStore(ctx context.Context, create bool) error {
	if t.opened.Load() {
		return nil
	}
	t.openMu.Lock()
	defer t.openMu.Unlock()
	switch {
	case t.opened.Load():
		return nil
	case t.isClosed():
		return driver.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	env, err := t.newEnvironment(create)
	if err == nil {
		err = t.openDirs(ctx, env)
	}
	if err != nil {
		return fmt.Errorf("open file store: %w", err)
	}
	t.opened.Store(true)
	return nil
}

// openDirs opens all that is in the store's directory. It takes over the handle of the directory, even if it fails.
func (t *table) openDirs(ctx context.Context, env environment) (err error) {
	t.fsys, t.root, t.tmp, t.newNonce = env.fsys, env.rootHandle, -1, nonceSource()
	t.locksDir, t.clientsDir, t.events = -1, -1, env.events
	t.liveness = livenessFile{fsys: env.fsys, handle: -1}
	t.isReplaced = func() bool {
		return env.isReplaced(t.root, "") || env.isReplaced(t.locksDir, "locks") ||
			env.isReplaced(t.clientsDir, "clients") || t.liveness.isRemoved()
	}
	defer func() {
		if err != nil {
			t.closeHandles()
		}
	}()
	if err := t.ensureMarker(env.create); err != nil {
		return err
	}
	for _, folder := range []struct {
		name   string
		handle *int
	}{{"locks", &t.locksDir}, {"clients", &t.clientsDir}, {"tmp", &t.tmp}} {
		if *folder.handle, err = t.openFolder(folder.name); err != nil {
			return err
		}
		if err := env.checkFolder(*folder.handle, filepath.Join(t.path, folder.name)); err != nil {
			return err
		}
	}
	t.liveness.clients = t.clientsDir
	t.clock = dirClock{
		versionedFile: versionedFile{storeDir: &t.storeDir, parent: t.root, dirName: "clock", lockName: "clock"},
		liveness:      &t.liveness,
		readBootClock: env.readBootClock,
		readWallClock: env.readWallClock,
		syncParents:   env.syncParents,
		bootID:        env.bootID,
	}
	err = t.clock.startClock(ctx, func(newClock bool) error { return t.prepareBoot(ctx, newClock, env.logger) })
	if err != nil {
		return err
	}
	t.removeDeadPipes()
	return errors.Join(t.liveness.removeDeadFiles(), t.removeOldTmp())
}

// closeHandles closes the handles that are open.
func (t *table) closeHandles() {
	t.recycled.closeFiles()
	if t.liveness.handle >= 0 {
		t.liveness.endLiveness()
	}
	for _, handle := range []int{t.locksDir, t.clientsDir, t.tmp, t.root} {
		if handle >= 0 {
			t.closeHandle(handle)
		}
	}
}

// noncePrefix is the length of the random part of a nonce.
const noncePrefix = 13

// nonceSource returns a function that makes unique names: 64 random bits for this table, and a number.
func nonceSource() func() string {
	prefix := strings.ToLower(rand.Text()[:noncePrefix])
	var last atomic.Uint64
	return func() string { return prefix + strconv.FormatUint(last.Add(1), 36) }
}

// openFolder opens one of the directories in the store's, and makes it if it does not exist.
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

// prepareBoot is called before the clock is fixed for this boot, by each client that may be the first of the boot.
// newClock is set if the store has no clock yet.
func (t *table) prepareBoot(ctx context.Context, newClock bool, logger *slog.Logger) error {
	if !newClock {
		return repairTornRecords(ctx, &t.storeDir, t.locksDir, logger)
	}
	// The clock is made before the first lock and is never removed. List the locks before reading the clock: otherwise
	// a client that makes a clock and a lock in between would look like a store that has lost its clock.
	entries, _, err := t.listNames(t.locksDir)
	if err != nil || len(entries) == 0 {
		return describeError("list locks", err)
	}
	if f, _, err := t.clock.readState(ctx); err != nil || f.isLive() {
		return err
	}
	return fmt.Errorf("%w: %s has locks but no clock, without which tokens could fall; "+
		"restore the directory clock, or remove all of %s",
		driver.ErrCorrupt, t.path, t.path)
}

// removeOldTmp removes what dead processes left unfinished in tmp. It touches nothing that Holdfast cannot have made.
func (t *table) removeOldTmp() error {
	names, _, err := t.listNames(t.tmp)
	if err != nil {
		return describeError("list tmp", err)
	}
	for _, name := range names {
		age, emptyFile, err := t.entryAge(t.tmp, name)
		switch {
		case err != nil, age < tmpMaxAge, !isOwnName(name):
		case emptyFile: // a liveness file that never got its place
			_ = t.removeFile(t.tmp, name)
		default:
			t.removeTmpDir(name)
		}
	}
	return nil
}

// removeTmpDir removes a directory that contains versions and nothing else. It renames the directory first, so that its
// maker, if it was only stopped, cannot put a half-emptied directory into place.
func (t *table) removeTmpDir(name string) {
	d, err := t.openDir(t.tmp, name)
	if err != nil {
		return
	}
	defer t.closeHandle(d)
	files, _, err := t.listNames(d)
	isForeign := func(file string) bool {
		v, staged, ok := parseFile(file)
		return !ok || staged || !isOwnName(v.incarnation)
	}
	newName := t.newNonce()
	if err != nil || slices.ContainsFunc(files, isForeign) || t.renameEntry(t.tmp, name, t.tmp, newName) != nil {
		return
	}
	for _, file := range files {
		_ = t.removeFile(d, file)
	}
	_ = t.removeDir(t.tmp, newName)
}

// Info promises what a local file system keeps.
func (t *table) Info() driver.Info {
	return driver.Info{
		Store:       "file:" + t.path,
		Clock:       t.processClock,
		Tier:        driver.TierFenceSafe,
		ExpiryClock: driver.ExpiryClockStore,
		// The process of a claim that is not detached ends with the power cut, too. A detached claim is synced.
		Survives:          driver.Survives{Restart: true, PowerCut: true},
		DeadHolderTimeout: 500 * time.Millisecond,
	}
}

// TokenFloor is the clock of the directory. It is zero until the table is open: there are no claims then, and the
// engine makes none before Acquire has opened the table.
func (t *table) TokenFloor() int64 {
	now, _, _ := t.Bounds()
	return now
}

// Clock is exact, because all clients read the clock of the same kernel.
func (t *table) Clock() record.Clock { return t }

// Bounds implements record.Clock.
func (t *table) Bounds() (early, late int64, known bool) {
	if !t.opened.Load() {
		return 0, 0, false
	}
	now := t.clock.readMicros()
	return now, now, true
}

// IsStale implements record.Clock.
func (t *table) IsStale() bool { return false }

// ReadClock returns the wall clock of the kernel, which all clients of the directory share. The clock by which claims
// expire is another one: it does not follow when the wall clock is set.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	if t.isClosed() {
		return now, 0, driver.ErrClosed
	}
	return time.Now(), 0, ctx.Err()
}

func (t *table) isClosed() bool {
	select {
	case <-t.closed:
		return true
	default:
		return false
	}
}

// beginCall opens the table if there is a store, and keeps it open until endCall. It returns errAbsent if there is no
// store yet; after an error, endCall must not be called.
func (t *table) beginCall(ctx context.Context) error {
	if err := t.openStore(ctx, false); err != nil {
		return err
	}
	t.callsMu.RLock()
	err := ctx.Err()
	if t.isClosed() {
		err = driver.ErrClosed
	}
	if err != nil {
		t.callsMu.RUnlock()
		return err
	}
	t.calls.Add(1)
	return nil
}

func (t *table) endCall() {
	t.calls.Add(-1)
	t.callsMu.RUnlock()
}

// yieldProcessor lets the goroutines of other calls run first. The calls of a local file system hardly ever block, so a
// goroutine that takes one lock after another would keep its processor for 10 ms at a time, and each of 64 would have
// to wait for a third of a second now and then.
func (t *table) yieldProcessor() {
	if t.calls.Load() > 1 {
		runtime.Gosched()
	}
}

// checkInPlace returns a LossError if other clients would open another directory than this one, or take this client for
// dead.
func (t *table) checkInPlace(ctx context.Context) error {
	err := t.beginCall(ctx)
	if errors.Is(err, errAbsent) {
		return nil
	}
	if err != nil {
		return err
	}
	defer t.endCall()
	if !t.isReplaced() {
		return nil
	}
	t.clock.floor.Store(0) // the next write must raise the floor then, which fails: see ensureFloor
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

// Load reads a record. Without a store, every record is absent.
func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	if err := checkName(name); err != nil {
		return record.Row{}, err
	}
	err := t.beginCall(ctx)
	if errors.Is(err, errAbsent) {
		return record.Row{Name: name}, nil
	}
	if err != nil {
		return record.Row{}, err
	}
	defer t.endCall()
	f, err := t.recordFile(name).loadRecord(ctx)
	if err != nil {
		return record.Row{Name: name}, err
	}
	return rowOf(name, f), nil
}

// Swap raises the floor above the row's token before it writes, so that the record can be lost in a power cut: no
// token is granted twice even then. If the write is refused, the error says whether the reason is that this directory
// was replaced.
func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	base, staged, ok := parseFile(row.Version)
	err := checkName(row.Name)
	switch {
	case err != nil:
		return record.Row{}, err
	case len(row.Data) > record.MaxData:
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes; %d are allowed", driver.ErrInvalid, len(row.Data),
			record.MaxData)
	case row.Version != "" && (!ok || staged):
		return record.Row{}, fmt.Errorf("%w: %q is not a version of a file record", driver.ErrInvalid, row.Version)
	}
	if err := t.beginCall(ctx); err != nil {
		return record.Row{}, err
	}
	defer t.endCall()
	t.yieldProcessor()
	if err := t.clock.ensureFloor(ctx, row.Token); err != nil {
		return record.Row{}, err
	}
	c, to := t.recordFile(row.Name), recordContent{name: row.Name, data: row.Data}
	if row.Version == "" {
		f, err := c.createRecord(ctx, to, row.Durable)
		if err != nil && !f.isLive() {
			return record.Row{}, cmp.Or(t.replacedError(), err)
		}
		if err == nil {
			t.notifyClients(row.Name, row.Notify)
		}
		return rowOf(row.Name, f), err
	}
	next, err := c.swapVersion(ctx, base, to, row.Durable)
	if err != nil {
		return record.Row{}, cmp.Or(t.replacedError(), err)
	}
	t.notifyClients(row.Name, row.Notify)
	row.Version = next
	return row, nil
}

// Delete removes a record. A conflict is no error if the record is gone by now.
func (t *table) Delete(ctx context.Context, row record.Row) error {
	if err := checkName(row.Name); err != nil {
		return err
	}
	err := t.beginCall(ctx)
	if errors.Is(err, errAbsent) {
		return nil
	}
	if err != nil {
		return err
	}
	defer t.endCall()
	c := t.recordFile(row.Name)
	base, staged, ok := parseFile(row.Version)
	if ok && !staged {
		err = c.deleteRecord(ctx, base)
	} else {
		err = record.ErrConflict
	}
	if err == nil {
		t.removeTurns(row.Name)
	}
	if errors.Is(err, record.ErrConflict) {
		if f, err := c.loadRecord(ctx); err != nil || !f.isLive() {
			return err
		}
	}
	return err
}

// removeTurns removes what dead clients have left in turns of a lock that nobody uses any more. A client that comes to
// the lock just now misses its notices until it looks at the lock by itself, and then listens again.
func (t *table) removeTurns(name string) {
	dir, err := t.openDir(t.root, "turns")
	if err != nil {
		return
	}
	defer t.closeHandle(dir)
	left, _, _ := t.listNames(dir)
	turn, pipes := encodeName(name), noticePrefix(name)
	for _, file := range left {
		if file == turn || strings.HasPrefix(file, pipes) {
			_ = t.removeFile(dir, file)
		}
	}
}

// List yields the records whose names begin with prefix. The prefix is compared with the directory's name first, so
// that only records that may match are read; for a hashed directory name, the record's header decides.
func (t *table) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		entries, err := t.listEntries(ctx)
		if errors.Is(err, errAbsent) {
			return
		}
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
				f.name = entry // only a part of the lock's name is known
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

// listEntries returns the names of all directories in locks.
func (t *table) listEntries(ctx context.Context) ([]string, error) {
	if err := t.beginCall(ctx); err != nil {
		return nil, err
	}
	defer t.endCall()
	t.listMu.Lock()
	defer t.listMu.Unlock()
	entries, _, err := t.listNames(t.locksDir)
	return entries, describeError("list locks", err)
}

// loadEntry reads the record in a directory of locks, whose lock name may not be known.
func (t *table) loadEntry(ctx context.Context, entry string) (storedRecord, error) {
	if err := t.beginCall(ctx); err != nil {
		return storedRecord{}, err
	}
	defer t.endCall()
	return versionedFile{storeDir: &t.storeDir, parent: t.locksDir, dirName: entry}.loadRecord(ctx)
}

// Liveness tells of clients by the files that living ones have open.
func (t *table) Liveness() record.LivenessChecker { return t }

// Session is empty until the table is open: see Now.
func (t *table) Session() string {
	if !t.opened.Load() {
		return ""
	}
	return t.liveness.session
}

// IsDead reports whether the client of a session is certainly dead. It is false if this cannot be found out.
func (t *table) IsDead(session string) bool {
	if err := t.beginCall(context.Background()); err != nil {
		return false
	}
	defer t.endCall()
	return t.liveness.isDead(session)
}

// LivenessFile returns the liveness file: its flock belongs to the open file, whichever processes have it open. It
// makes the store, because a caller that needs the file is about to make a claim.
func (t *table) LivenessFile() (*os.File, error) {
	if err := t.openStore(context.Background(), true); err != nil {
		return nil, err
	}
	if err := t.beginCall(context.Background()); err != nil {
		return nil, err
	}
	defer t.endCall()
	return t.liveness.shareFile()
}

// Keys returns the directories that are read and written for a lock.
func (t *table) Keys(name string) []string {
	return []string{
		filepath.Join(t.path, "locks", encodeName(name)) + "/",
		filepath.Join(t.path, "clock") + "/",
		filepath.Join(t.path, "clients") + "/",
	}
}

// wait subscribes before it loads the record, so that it misses no change between the two.
func (t *table) wait(ctx context.Context, name, version string) error {
	if err := t.openStore(ctx, false); err != nil {
		return err
	}
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

// Close waits for the calls in progress, and closes the directories. From then on other clients take this one for dead.
// The calls must end first: a handle that is closed may at once mean another file, and a late call would write to that.
func (t *table) Close() error {
	t.openMu.Lock()
	defer t.openMu.Unlock()
	t.callsMu.Lock()
	defer t.callsMu.Unlock()
	if t.isClosed() {
		return nil
	}
	close(t.closed)
	if !t.opened.Load() {
		return nil
	}
	t.closePipes()
	t.closeHandles()
	if t.events != nil {
		return t.events.close()
	}
	return nil
}
