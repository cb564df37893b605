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
	area
	locks    int
	clients  int
	clock    dirClock
	presence presence
	watch    *hub // nil if file events can't be had at all
	hands    driver.Clock

	// using is held for reading by calls under way, so that Close does not close the directories under their hands. No
	// call holds it while it blocks.
	using  sync.RWMutex
	closed chan struct{}

	listing sync.Mutex // of locks: an open directory has one place at which it is read
}

// surroundings is what a table takes from the machine, and a test from elsewhere.
type surroundings struct {
	fsys
	root     int    // handle of the store's directory
	dir      string // its path
	bootID   string
	boot     func() time.Duration // the kernel's boot clock
	wall     func() time.Time
	hands    driver.Clock
	up       func() // puts the names above root on the disk
	log      *slog.Logger
	replaced func(handle int, name string) bool // whether another directory than the open one stands at that name below dir
	create   bool                               // whether to make a store where there is none
}

// sweepAge is how old a thing in tmp must be to be nobody's. Whoever was stopped for longer while making it notices.
const sweepAge = time.Hour

// openTable takes over the handle of the store's directory, also if it fails.
func openTable(ctx context.Context, s surroundings) (*table, error) {
	t := &table{hands: s.hands, closed: make(chan struct{}), locks: -1, clients: -1}
	t.area = area{fsys: s.fsys, dir: s.dir, root: s.root, tmp: -1, nonce: nonces()}
	t.replaced = func() bool {
		return s.replaced(t.root, "") || s.replaced(t.locks, "locks") || s.replaced(t.clients, "clients") || t.presence.lost()
	}
	t.presence = presence{fsys: s.fsys, handle: -1}
	if err := t.open(ctx, s); err != nil {
		t.release()
		return nil, err
	}
	return t, nil
}

func (t *table) open(ctx context.Context, s surroundings) (err error) {
	if err := t.mark(s.create); err != nil {
		return err
	}
	for _, folder := range []struct {
		name   string
		handle *int
	}{{"locks", &t.locks}, {"clients", &t.clients}, {"tmp", &t.tmp}} {
		if *folder.handle, err = t.folder(folder.name); err != nil {
			return err
		}
	}
	t.presence.clients = t.clients
	t.clock = dirClock{cell: cell{area: &t.area, at: s.root, entry: "clock", name: "clock"}, presence: &t.presence,
		boot: s.boot, wall: s.wall, up: s.up, bootID: s.bootID}
	if err := t.clock.start(ctx, func(fresh bool) error { return t.firstOfBoot(ctx, fresh, s.log) }); err != nil {
		return err
	}
	return errors.Join(t.presence.sweep(), t.sweepTmp())
}

// release closes the handles that are open.
func (t *table) release() {
	if t.presence.handle >= 0 {
		t.presence.leave()
	}
	for _, handle := range []int{t.locks, t.clients, t.tmp, t.root} {
		if handle >= 0 {
			t.close(handle)
		}
	}
}

// noncePrefix is the length of what is random in a nonce.
const noncePrefix = 13

// nonces makes names that nobody else makes: 64 random bits for this table, and a number.
func nonces() func() string {
	prefix := strings.ToLower(rand.Text()[:noncePrefix])
	var last atomic.Uint64
	return func() string { return prefix + strconv.FormatUint(last.Add(1), 36) }
}

// folder opens one of the store's directories, and makes it if need be.
func (t *table) folder(name string) (int, error) {
	err := t.mkdir(t.root, name)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return -1, explain("make the directory "+name+" in "+t.dir, err)
	}
	d, err := t.openDir(t.root, name)
	if err != nil {
		return -1, explain("open the directory "+name+" in "+t.dir, err)
	}
	return d, nil
}

// firstOfBoot is called before the clock is fixed for this boot.
func (t *table) firstOfBoot(ctx context.Context, fresh bool, log *slog.Logger) error {
	if !fresh {
		return repair(ctx, &t.area, t.locks, log)
	}
	// The clock comes before the first lock and goes never. Look at the locks first, so that whoever has just made a
	// clock and a lock is not taken for somebody who has lost his clock.
	entries, err := t.names(t.locks)
	if err != nil || len(entries) == 0 {
		return explain("list locks", err)
	}
	if f, _, err := t.clock.state(ctx); err != nil || f.alive() {
		return err
	}
	return fmt.Errorf("%w: %s has locks but no clock, without which tokens could fall; restore the directory clock, or remove all of %s",
		driver.ErrCorrupt, t.dir, t.dir)
}

// sweepTmp removes what processes that died left unfinished, and nothing that Holdfast cannot have made.
func (t *table) sweepTmp() error {
	names, err := t.names(t.tmp)
	if err != nil {
		return explain("list tmp", err)
	}
	for _, name := range names {
		age, emptyFile, err := t.left(t.tmp, name)
		switch {
		case err != nil, age < sweepAge, !ownName(name):
		case emptyFile: // of a presence
			_ = t.remove(t.tmp, name)
		default:
			t.sweepDir(name)
		}
	}
	return nil
}

// sweepDir removes a directory that holds versions and nothing else. It is renamed first, so that its maker, should it
// only have been stopped, can't put into place one that is half swept.
func (t *table) sweepDir(name string) {
	d, err := t.openDir(t.tmp, name)
	if err != nil {
		return
	}
	defer t.close(d)
	files, err := t.names(d)
	foreign := func(file string) bool {
		v, aside, ok := parseFile(file)
		return !ok || aside || !ownName(v.inc)
	}
	swept := t.nonce()
	if err != nil || slices.ContainsFunc(files, foreign) || t.place(t.tmp, name, t.tmp, swept) != nil {
		return
	}
	for _, file := range files {
		_ = t.remove(d, file)
	}
	_ = t.removeDir(t.tmp, swept)
}

func (t *table) Info() driver.Info { return infoOf(t.dir, t.hands) }

func infoOf(dir string, hands driver.Clock) driver.Info {
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
func (t *table) Now() (int64, time.Duration) { return t.clock.now(), 0 }

// use holds the table open until the returned function is called.
func (t *table) use(ctx context.Context) (func(), error) {
	t.using.RLock()
	select {
	case <-t.closed:
		t.using.RUnlock()
		return nil, driver.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		t.using.RUnlock()
		return nil, err
	}
	return t.using.RUnlock, nil
}

// inPlace is a loss if another directory stands where this one was, or others take this client for gone.
func (t *table) inPlace(ctx context.Context) error {
	done, err := t.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	if !t.replaced() {
		return nil
	}
	t.clock.floor.Store(0) // so that the next write finds out as well
	return &driver.LossError{Cause: driver.LossGone, Err: errReplaced}
}

func (t *table) cell(name string) cell {
	return cell{area: &t.area, at: t.locks, entry: encodeName(name), name: name}
}

func rowOf(name string, f found) record.Row {
	if !f.alive() {
		return record.Row{Name: name}
	}
	return record.Row{Name: name, Version: f.version.String(), Data: f.data}
}

func (t *table) Load(ctx context.Context, name string) (record.Row, error) {
	if err := checkName(name); err != nil {
		return record.Row{}, err
	}
	done, err := t.use(ctx)
	if err != nil {
		return record.Row{}, err
	}
	defer done()
	f, err := t.cell(name).load(ctx)
	if err != nil {
		return record.Row{Name: name}, err
	}
	return rowOf(name, f), nil
}

func (t *table) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	base, aside, ok := parseFile(row.Version)
	err := checkName(row.Name)
	switch {
	case err != nil:
		return record.Row{}, err
	case len(row.Data) > record.MaxData:
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes; %d are allowed", driver.ErrInvalid, len(row.Data), record.MaxData)
	case row.Version != "" && (!ok || aside):
		return record.Row{}, fmt.Errorf("%w: %q is no version of a file record", driver.ErrInvalid, row.Version)
	}
	done, err := t.use(ctx)
	if err != nil {
		return record.Row{}, err
	}
	defer done()
	if err := t.clock.cover(ctx, row.Token); err != nil {
		return record.Row{}, err
	}
	c, to := t.cell(row.Name), content{name: row.Name, data: row.Data}
	if row.Version == "" {
		f, err := c.create(ctx, to, row.Durable)
		if err != nil && !f.alive() {
			return record.Row{}, cmp.Or(t.outdated(), err)
		}
		return rowOf(row.Name, f), err
	}
	next, err := c.swap(ctx, base, to, row.Durable)
	if err != nil {
		return record.Row{}, cmp.Or(t.outdated(), err)
	}
	row.Version = next.String()
	return row, nil
}

func (t *table) Delete(ctx context.Context, row record.Row) error {
	if err := checkName(row.Name); err != nil {
		return err
	}
	done, err := t.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	c := t.cell(row.Name)
	base, aside, ok := parseFile(row.Version)
	if ok && !aside {
		err = c.destroy(ctx, base)
	} else {
		err = record.ErrConflict
	}
	if errors.Is(err, record.ErrConflict) {
		if f, err := c.load(ctx); err != nil || !f.alive() {
			return err
		}
	}
	return err
}

func (t *table) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		entries, err := t.entries(ctx)
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
			case err == nil && !f.alive() || err == nil && !strings.HasPrefix(f.name, prefix):
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

func (t *table) entries(ctx context.Context) ([]string, error) {
	done, err := t.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	t.listing.Lock()
	defer t.listing.Unlock()
	entries, err := t.names(t.locks)
	return entries, explain("list locks", err)
}

func (t *table) loadEntry(ctx context.Context, entry string) (found, error) {
	done, err := t.use(ctx)
	if err != nil {
		return found{}, err
	}
	defer done()
	return cell{area: &t.area, at: t.locks, entry: entry}.load(ctx)
}

func (t *table) Session() string { return t.presence.session }

func (t *table) IsDead(session string) bool {
	done, err := t.use(context.Background())
	if err != nil {
		return false
	}
	defer done()
	return t.presence.gone(session)
}

// LivenessFile is the presence file: its flock belongs to the open file, whichever processes have it.
func (t *table) LivenessFile() (*os.File, error) {
	done, err := t.use(context.Background())
	if err != nil {
		return nil, err
	}
	defer done()
	return t.presence.heirloom()
}

// keysOf are paths.
func keysOf(dir, name string) []string {
	return []string{
		filepath.Join(dir, "locks", encodeName(name)) + "/", filepath.Join(dir, "clock") + "/",
		filepath.Join(dir, "clients") + "/",
	}
}

func (t *table) Wait(ctx context.Context, name, version string) error {
	if t.watch == nil {
		return fmt.Errorf("file events: %w", driver.ErrUnsupported)
	}
	changed, cancel, err := t.watch.subscribe(encodeName(name))
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
	t.using.Lock()
	defer t.using.Unlock()
	select {
	case <-t.closed:
		return nil
	default:
	}
	close(t.closed)
	t.release()
	if t.watch != nil {
		return t.watch.close()
	}
	return nil
}
