package file

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// memDisk is a machine's disk in memory. It remembers what was synced, and so exists after a power cut. All else can
// then be damaged in each way that POSIX allows.
type memDisk struct {
	mu   sync.Mutex
	root *node
}

type node struct {
	dir     bool
	data    []byte
	synced  []byte           // of a file: its content at the last sync
	entries map[string]*node // of a directory
	durable map[string]*node // of a directory: its entries at the last sync
	removed bool
	locked  bool
}

func newDir() *node {
	return &node{dir: true, entries: map[string]*node{}, durable: map[string]*node{}}
}

func newMemDisk() *memDisk { return &memDisk{root: newDir()} }

// damage is what happens to unsynced names and files in a power cut.
type damage string

const (
	kept   damage = "kept"
	lost   damage = "lost"
	torn1  damage = "torn"   // names are there, the data are half
	empty  damage = "empty"  // names are there, the data are not
	random damage = "random" // each name and each file its own way
)

// cutPower returns the disk after a power cut.
func (m *memDisk) cutPower(how damage, r *rand.Rand) *memDisk {
	done := map[*node]*node{}
	var after func(n *node) *node
	after = func(n *node) *node {
		if c := done[n]; c != nil {
			return c
		}
		if !n.dir {
			c := &node{data: n.contentAfterCut(how, r)}
			c.synced = slices.Clone(c.data)
			done[n] = c
			return c
		}
		c := newDir()
		done[n] = c
		names := slices.Sorted(maps.Keys(n.entries))
		for name := range n.durable {
			if _, ok := n.entries[name]; !ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			from := n.entries
			if how == lost || how == random && r.IntN(2) == 0 {
				from = n.durable
			}
			if child := from[name]; child != nil {
				c.entries[name] = after(child)
				c.durable[name] = c.entries[name]
			}
		}
		return c
	}
	return &memDisk{root: after(m.root)}
}

func (n *node) contentAfterCut(how damage, r *rand.Rand) []byte {
	if slices.Equal(n.data, n.synced) && n.synced != nil {
		return slices.Clone(n.data)
	}
	if how == random {
		how = []damage{kept, lost, torn1, empty}[r.IntN(4)]
	}
	switch how {
	case kept:
		return slices.Clone(n.data)
	case torn1:
		return slices.Clone(n.data[:len(n.data)/2])
	case empty:
		return nil
	}
	return slices.Clone(n.synced)
}

// proc is one process's view of a memDisk: its open files, and at which step it stops, fails or dies.
type proc struct {
	disk       *memDisk
	handles    map[int]*node
	last       int
	steps      int
	dieAt      int               // the step at which the process dies; 0: never
	beforeStep func(step string) // called before each step, if set
	fail       string            // the step that fails with EROFS
	full       func() bool       // whether there is no room for a new file's content, if set
	noLinks    bool              // whether files can have one name only
	badLinks   bool              // whether links are made, and an error is returned
	// betweenLists is called once, if it is set: the next list is made in two parts, and this happens between them.
	betweenLists func()
}

var errDead = errors.New("this process is dead")

func (m *memDisk) process() *proc {
	p := &proc{disk: m, handles: map[int]*node{}}
	p.addHandle(m.root)
	return p
}

func (p *proc) addHandle(n *node) int {
	p.last++
	p.handles[p.last] = n
	return p.last
}

// beginStep begins one atomic operation. The disk is locked until the returned function is called.
func (p *proc) beginStep(what string) (func(), error) {
	if p.beforeStep != nil {
		p.beforeStep(what)
	}
	p.disk.mu.Lock()
	if p.steps++; p.dieAt != 0 && p.steps >= p.dieAt {
		p.disk.mu.Unlock()
		return nil, errDead
	}
	if what == p.fail {
		p.disk.mu.Unlock()
		return nil, syscall.EROFS
	}
	return p.disk.mu.Unlock, nil
}

// endProcess does what the kernel does when a process has ended.
func (p *proc) endProcess() {
	for _, n := range p.handles {
		n.locked = false
	}
}

func (p *proc) findEntry(dir int, name string) (*node, *node) {
	d := p.handles[dir]
	return d, d.entries[name]
}

func (p *proc) openDir(dir int, name string) (int, error) { return p.openEntry(dir, name, true) }

func (p *proc) openEntry(dir int, name string, isDir bool) (int, error) {
	done, err := p.beginStep("open")
	if err != nil {
		return -1, err
	}
	defer done()
	_, n := p.findEntry(dir, name)
	if n == nil {
		return -1, syscall.ENOENT
	}
	if isDir && !n.dir {
		return -1, errNotDirectory
	}
	return p.addHandle(n), nil
}

func (p *proc) closeHandle(handle int) {
	if done, err := p.beginStep("close"); err == nil {
		defer done()
		p.handles[handle].locked = false
		delete(p.handles, handle)
	}
}

func (p *proc) listNames(dir int) (names []string, whole bool, err error) {
	done, err := p.beginStep("list")
	if err != nil {
		return nil, false, err
	}
	defer func() { done() }()
	if p.handles[dir].removed {
		return nil, false, syscall.ENOENT
	}
	names = slices.Collect(maps.Keys(p.handles[dir].entries))
	if p.betweenLists == nil {
		return names, true, nil
	}
	// The names of versions are in the second part, but not those of versions that are made meanwhile.
	done()
	between := p.betweenLists
	p.betweenLists = nil
	between()
	if done, err = p.beginStep("list the rest"); err != nil {
		done = func() {}
		return nil, false, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		_, staged, _ := parseFile(name)
		return !staged && p.handles[dir].entries[name] == nil
	}), false, nil
}

func (p *proc) entryExists(dir int, name string) (bool, error) {
	done, err := p.beginStep("look")
	if err != nil {
		return false, err
	}
	defer done()
	_, n := p.findEntry(dir, name)
	return n != nil, nil
}

func (p *proc) entryAge(int, string) (time.Duration, bool, error) { return 0, false, nil }

func (p *proc) fileSize(dir int, name string) (int, error) {
	done, err := p.beginStep("stat")
	if err != nil {
		return 0, err
	}
	defer done()
	_, n := p.findEntry(dir, name)
	if n == nil {
		return 0, syscall.ENOENT
	}
	return len(n.data), nil
}

func (p *proc) extendFile(dir int, name string, size int) error {
	done, err := p.beginStep("extend")
	if err != nil {
		return err
	}
	defer done()
	_, n := p.findEntry(dir, name)
	switch {
	case n == nil:
		return syscall.ENOENT
	case p.full != nil && p.full():
		return syscall.ENOSPC
	}
	n.data = append(slices.Clone(n.data), make([]byte, max(0, size-len(n.data)))...)
	return nil
}

func (p *proc) readFile(dir int, name string, _ int) ([]byte, error) {
	done, err := p.beginStep("open to read")
	if err != nil {
		return nil, err
	}
	_, n := p.findEntry(dir, name)
	done()
	if n == nil {
		return nil, syscall.ENOENT
	}
	if done, err = p.beginStep("read"); err != nil {
		return nil, err
	}
	defer done()
	return slices.Clone(n.data), nil
}

func (p *proc) writeNewFile(dir int, name string, data []byte, sync bool) error {
	done, err := p.beginStep("create")
	if err != nil {
		return err
	}
	d, n := p.findEntry(dir, name)
	switch {
	case d.removed:
		err = syscall.ENOENT
	case n != nil:
		err = syscall.EEXIST
	default:
		n = &node{}
		d.entries[name] = n
	}
	done()
	if err != nil {
		return err
	}
	if p.full != nil && p.full() {
		return syscall.ENOSPC
	}
	return p.writeContent(n, data, sync)
}

func (p *proc) overwriteFile(dir int, name string, data []byte, sync bool) error {
	done, err := p.beginStep("open")
	if err != nil {
		return err
	}
	_, n := p.findEntry(dir, name)
	done()
	if n == nil {
		return syscall.ENOENT
	}
	return p.overwriteNode(n, data, sync)
}

func (p *proc) overwriteNode(n *node, data []byte, sync bool) error {
	if p.full != nil && countBlocks(len(data)) > countBlocks(len(n.data)) && p.full() {
		return syscall.ENOSPC
	}
	if len(data) < len(n.data) {
		half := slices.Concat(data[:len(data)/2], n.data[len(data)/2:]) // a write that was seen or cut off half-way
		done, err := p.beginStep("write half")
		if err != nil {
			return err
		}
		n.data = half
		done()
		data = slices.Concat(data, n.data[len(data):])
	}
	return p.writeContent(n, data, sync)
}

func (p *proc) openFile(dir int, name string) (int, error) { return p.openEntry(dir, name, false) }

func (p *proc) overwriteHandle(handle int, data []byte) error {
	return p.overwriteNode(p.nodeOf(handle), data, false)
}

func (p *proc) nodeOf(handle int) *node {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	return p.handles[handle]
}

func (p *proc) writeContent(n *node, data []byte, sync bool) error {
	done, err := p.beginStep("write")
	if err != nil {
		return err
	}
	n.data = slices.Clone(data)
	done()
	if !sync {
		return nil
	}
	if done, err = p.beginStep("sync file"); err != nil {
		return err
	}
	defer done()
	n.synced = slices.Clone(n.data)
	return nil
}

func (p *proc) syncHandle(dir int) error {
	done, err := p.beginStep("sync directory")
	if err != nil {
		return err
	}
	defer done()
	d := p.handles[dir]
	d.durable = maps.Clone(d.entries)
	return nil
}

func (p *proc) makeDir(dir int, name string) error {
	done, err := p.beginStep("mkdir")
	if err != nil {
		return err
	}
	defer done()
	d, n := p.findEntry(dir, name)
	if n != nil {
		return syscall.EEXIST
	}
	d.entries[name] = newDir()
	return nil
}

func (p *proc) renameExclusive(dir int, name, to string) error {
	done, err := p.beginStep("move")
	if err != nil {
		return err
	}
	defer done()
	d, n := p.findEntry(dir, name)
	switch {
	case n == nil:
		return syscall.ENOENT
	case d.entries[to] != nil:
		return syscall.EEXIST
	}
	delete(d.entries, name)
	d.entries[to] = n
	return nil
}

// linkFile is two steps, as in Linux: between them the name can be removed, and then the link fails only if the file
// has no other name.
func (p *proc) linkFile(dir int, name, to string) error {
	done, err := p.beginStep("find to link")
	if err != nil {
		return err
	}
	d, n := p.findEntry(dir, name)
	done()
	if n == nil {
		return syscall.ENOENT
	}
	if done, err = p.beginStep("link"); err != nil {
		return err
	}
	defer done()
	switch {
	case p.noLinks:
		return errors.ErrUnsupported
	case d.entries[to] != nil:
		return syscall.EEXIST
	case !slices.Contains(slices.Collect(maps.Values(d.entries)), n):
		return syscall.ENOENT
	}
	d.entries[to] = n
	if p.badLinks {
		return syscall.EIO
	}
	return nil
}

func (p *proc) renameEntry(dir int, name string, toDir int, to string) error {
	done, err := p.beginStep("place")
	if err != nil {
		return err
	}
	defer done()
	d, n := p.findEntry(dir, name)
	t, there := p.findEntry(toDir, to)
	switch {
	case n == nil || t.removed:
		return syscall.ENOENT
	case there != nil && there.dir && len(there.entries) > 0:
		return syscall.ENOTEMPTY
	case there != nil && there.dir:
		there.removed = true
	}
	delete(d.entries, name)
	t.entries[to] = n
	return nil
}

func (p *proc) removeFile(dir int, name string) error {
	done, err := p.beginStep("remove")
	if err != nil {
		return err
	}
	defer done()
	d, n := p.findEntry(dir, name)
	if n == nil {
		return syscall.ENOENT
	}
	delete(d.entries, name)
	return nil
}

func (p *proc) removeDir(dir int, name string) error {
	done, err := p.beginStep("rmdir")
	if err != nil {
		return err
	}
	defer done()
	d, n := p.findEntry(dir, name)
	switch {
	case n == nil:
		return syscall.ENOENT
	case len(n.entries) > 0:
		return syscall.ENOTEMPTY
	}
	n.removed = true
	delete(d.entries, name)
	return nil
}

func (p *proc) createLocked(dir int, name string) (int, error) {
	done, err := p.beginStep("create locked")
	if err != nil {
		return -1, err
	}
	defer done()
	d, _ := p.findEntry(dir, name)
	n := &node{locked: true}
	d.entries[name] = n
	return p.addHandle(n), nil
}

func (p *proc) shareHandle(int) (*os.File, error) { return nil, errors.ErrUnsupported }

func (p *proc) isLocked(dir int, name string) (bool, error) {
	done, err := p.beginStep("locked")
	if err != nil {
		return false, err
	}
	defer done()
	_, n := p.findEntry(dir, name)
	if n == nil {
		return false, syscall.ENOENT
	}
	return n.locked, nil
}

// machine is a memDisk with a clock.
type machine struct {
	*memDisk
	bootID string
	up     time.Duration
	wall   time.Time
}

func newMachine() *machine {
	return &machine{memDisk: newMemDisk(), bootID: "first boot", up: time.Minute, wall: time.Unix(1_700_000_000, 0)}
}

func (m *machine) open(p *proc) (*table, error) {
	t := newTable("disk", Options{Clock: driver.SystemClock})
	t.newEnvironment = func(create bool) (environment, error) {
		return environment{
			fsys: p, rootHandle: 1, bootID: m.bootID,
			readBootClock: func() time.Duration { return m.up }, readWallClock: func() time.Time { return m.wall },
			syncParents: func() {}, logger: slog.New(slog.DiscardHandler),
			isReplaced: func(int, string) bool { return false }, create: create,
			checkFolder: func(int, string) error { return nil },
		}, nil
	}
	if err := t.openStore(context.Background(), true); err != nil {
		return nil, err
	}
	return t, nil
}

func (m *machine) mustOpen(t testing.TB) *table {
	t.Helper()
	tab, err := m.open(m.process())
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// reboot returns the machine after a power cut, with a wall clock that is an hour behind.
func (m *machine) reboot(how damage, r *rand.Rand) *machine {
	return &machine{memDisk: m.cutPower(how, r), bootID: m.bootID + ", then another", up: time.Second,
		wall: m.wall.Add(-time.Hour)}
}
