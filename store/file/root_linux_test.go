package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// needRoot skips a test that only root can run. For root nothing is skipped.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts and namespaces can only be made by root")
	}
}

// TestPidNamespaces: clients in different containers, each the only process of its own pid namespace, know which of
// them are alive.
func TestPidNamespaces(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir() + "/store"
	tab := openTest(t, dir)
	apart := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c, line := startHelper(t, apart, "be present", dir)
	session, _, _ := strings.Cut(line, " ")
	judge := func() string {
		j, verdict := startHelper(t, apart, "judge", dir, session)
		j.finishHelper(t)
		return verdict
	}
	if tab.IsDead(session) || judge() != "false" {
		t.Error("a living client in another pid namespace is taken for dead")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if judge() != "true" || !tab.IsDead(session) {
		t.Error("a killed client in another pid namespace is taken for alive")
	}
}

// TestTimeNamespace: a client whose boot clock is shifted by a day has the same clock.
func TestTimeNamespace(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir() + "/store"
	tab := openTest(t, dir)
	cmd := exec.Command("unshare", "--time", "--fork", "--boottime", "86400", "--", os.Args[0], dir)
	cmd.Env = append(os.Environ(), helperEnv+"=be present")
	c, line := runCommand(t, cmd)
	defer c.finishHelper(t)
	_, at, _ := strings.Cut(line, " ")
	theirs, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	ours := tab.TokenFloor()
	if d := ours - theirs; d < 0 || d > 30e6 {
		t.Errorf("our clock is %d µs ahead of theirs", d)
	}
}

// TestContainerOwnBoot: a client in a container with its own boot id has the same clock.
func TestContainerOwnBoot(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir() + "/store"
	tab := openTest(t, dir)
	tab.clock.offset += time.Hour.Microseconds() // as if the wall clock had been set since
	f, s, err := tab.clock.readState(t.Context())
	if s.Offset = tab.clock.offset; err != nil || tab.clock.writeState(t.Context(), f, s) != nil {
		t.Fatal(err)
	}
	c, line := runCommand(t, inContainer(dir, "be present"))
	defer c.finishHelper(t)
	session, at, _ := strings.Cut(line, " ")
	theirs, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if ours := tab.TokenFloor(); ours-theirs < 0 || ours-theirs > 30e6 {
		t.Errorf("our clock is %d µs ahead of theirs", ours-theirs)
	}
	if tab.IsDead(session) {
		t.Error("a living client in such a container is taken for dead")
	}
}

// inContainer returns the command of a helper in a container with its own boot id.
func inContainer(dir, do string) *exec.Cmd {
	cmd := exec.Command("unshare", "--mount", "--", "sh", "-c",
		`echo a-boot-of-its-own >"$1.id" && mount --bind "$1.id" /proc/sys/kernel/random/boot_id && exec "$0" "$1"`, os.Args[0], dir)
	cmd.Env = append(os.Environ(), helperEnv+"="+do)
	return cmd
}

// TestContainerAndHostInTurn: a client in such a container and one on the host, which are open one after the other
// and never at the same time, do not move the clock.
func TestContainerAndHostInTurn(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir() + "/store"
	tab := openTest(t, dir)
	fixed := tab.clock.offset
	_ = tab.Close()
	for range 3 {
		c, _ := runCommand(t, inContainer(dir, "be present"))
		c.finishHelper(t)
		tab := openTest(t, dir)
		if moved := tab.clock.offset - fixed; moved != 0 {
			t.Fatalf("the clock was moved by %d µs", moved)
		}
		_ = tab.Close()
	}
}

func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestFullDisk: the error of a full disk says so, nothing is changed, and writes work again once there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	mount := mountTmpfs(t, "size=1m,mode=0700")
	tab := openTest(t, mount+"/store")
	row, err := tab.Swap(t.Context(), record.Row{Name: "a", Data: []byte("before")})
	if err != nil {
		t.Fatal(err)
	}
	empty := fillDisk(t, mount)
	next := row
	next.Data = make([]byte, 9000)
	if _, err := tab.Swap(t.Context(), next); !errors.Is(err, syscall.ENOSPC) ||
		!strings.Contains(err.Error(), "full") {
		t.Errorf("swap on a full disk: %v", err)
	}
	if _, err := tab.Swap(t.Context(), record.Row{Name: "b", Data: next.Data}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("creation on a full disk: %v", err)
	}
	if now := mustLoad(t, tab, "a"); now.Version != row.Version || string(now.Data) != "before" {
		t.Errorf("the record is %q now", now.Data)
	}
	if left := listDir(t, filepath.Join(mount, "store", "tmp")); len(left) != 0 {
		t.Errorf("left in tmp: %v", left)
	}
	if left := listDir(t, filepath.Join(mount, "store", "locks/a")); len(left) != firstSeq+1 {
		t.Errorf("left in locks/a: %v", left)
	}
	empty()
	if _, err := tab.Swap(t.Context(), next); err != nil {
		t.Error(err)
	}
}

// TestFullDiskAmongOthers: on a full disk, a lock that has been written to for a while is renewed and released, also
// by a client that has seen few of those writes.
func TestFullDiskAmongOthers(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for before := removeEvery; before <= 3*removeEvery; before++ {
		mount := mountTmpfs(t, "size=1m,mode=0700")
		one, other := openTest(t, mount+"/store"), openTest(t, mount+"/store")
		row := record.Row{Name: "a", Data: []byte("some")}
		for range before {
			row = mustSwap(t, one, row)
		}
		fillDisk(t, mount)
		for range 3 * removeEvery {
			for _, tab := range []*table{other, other, one} {
				var err error
				if row, err = tab.Swap(t.Context(), row); err != nil {
					t.Fatalf("after %d writes: %v", before, err)
				}
			}
		}
	}
}

// TestFullDiskAmongMany: on a full disk, clients that want the same record at the same time all swap it in the end,
// also if some swaps are given up.
func TestFullDiskAmongMany(t *testing.T) {
	t.Parallel()
	needRoot(t)
	mount := mountTmpfs(t, "size=1m,mode=0700")
	var tabs []*table
	for range 4 {
		tabs = append(tabs, openTest(t, mount+"/store"))
	}
	mustSwap(t, tabs[0], record.Row{Name: "a", Data: []byte("some")})
	fillDisk(t, mount)
	var all sync.WaitGroup
	for n, tab := range tabs {
		all.Go(func() {
			for asked, done := 0, 0; done < 100 && !t.Failed(); {
				row, err := tab.Load(t.Context(), "a")
				if err != nil {
					t.Error(err)
				}
				_, err = tab.Swap(endingContext{t.Context(), func() bool { asked++; return asked%19 == n }}, row)
				switch {
				case err == nil:
					done++
				case errors.Is(err, record.ErrConflict), errors.Is(err, context.Canceled):
				case !errors.Is(err, record.ErrUnsent) || driverutil.IsFinal(err):
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// TestGrowthOnFullDisk: on a full disk, a record can be written that is as large as before, or a little larger.
func TestGrowthOnFullDisk(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for size := blockSize - 300; size < blockSize+100; size += 20 {
		mount := mountTmpfs(t, "size=1m,mode=0700")
		tab := openTest(t, mount+"/store")
		row := mustSwap(t, tab, record.Row{Name: "a"})
		row.Data = make([]byte, size)
		row = mustSwap(t, tab, row)
		fillDisk(t, mount)
		for grown := size; grown < size+size/20; grown += size / 60 {
			row.Data = make([]byte, grown)
			var err error
			if row, err = tab.Swap(t.Context(), row); err != nil {
				t.Fatalf("from %d to %d bytes: %v", size, grown, err)
			}
		}
	}
}

// TestNoFreeFileEndsNoLock: on a file system that can hold no more names, a client that is alone at a lock goes on,
// however many swaps it has made before. Others use at once what becomes free.
func TestNoFreeFileEndsNoLock(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for before := range 5 * removeEvery {
		mount := mountTmpfs(t, "size=1m,nr_inodes=60,mode=0700")
		tab := openTest(t, mount+"/store")
		row := record.Row{Name: "a", Data: []byte("some")}
		for range before + 1 {
			row = mustSwap(t, tab, row)
		}
		ballast := 0
		for range 5 * removeEvery {
			var err error
			for ; err == nil; ballast++ {
				err = os.WriteFile(filepath.Join(mount, fmt.Sprint(ballast)), nil, 0o600)
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			if row, err = tab.Swap(t.Context(), row); err != nil {
				t.Fatalf("after %d swaps: %v", before, err)
			}
		}
	}
}

func fillDisk(t *testing.T, mount string) (empty func()) {
	t.Helper()
	ballast := filepath.Join(mount, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDiskRefusedAtOnce: on a full disk a new claim is refused at once, and the error says why.
func TestFullDiskRefusedAtOnce(t *testing.T) {
	t.Parallel()
	needRoot(t)
	mount := mountTmpfs(t, "size=1m,mode=0700")
	s := record.New(openTest(t, mount+"/store"))
	empty := fillDisk(t, mount)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := claimOf("b")
	for _, c.Wait = range []bool{false, true} {
		if _, err := s.Acquire(ctx, c); !errors.Is(err, driver.ErrDenied) || !errors.Is(err, syscall.ENOSPC) ||
			errors.Is(err, driver.ErrLost) {
			t.Errorf("a claim that waits (%t): %v", c.Wait, err)
		}
	}
	empty()
	if _, err := s.Acquire(ctx, c); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// TestFullDiskEndsNoLock: a disk that becomes full right after the first claim on a lock ends nothing. The lock is
// renewed, also by a process that has never written to it and while the clock's floor has to be raised, and is then
// released.
func TestFullDiskEndsNoLock(t *testing.T) {
	t.Parallel()
	needRoot(t)
	// The record grows from one block to several, and every size at which it needs another block is tried.
	for holders := 1; holders < 30; holders++ {
		mount := mountTmpfs(t, "size=1m,mode=0700")
		tab, other := openTest(t, mount+"/store"), openTest(t, mount+"/store")
		first, second := record.New(tab), record.New(other)
		var held []driver.Grant
		for n := range holders {
			c := claimOf("held")
			c.ID = fmt.Sprintf("%026d", n)
			c.Kind, c.Limit = driver.KindSemaphore, int64(holders)
			g, err := first.Acquire(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, g)
		}
		fillDisk(t, mount)
		for n := range 20 {
			s := []driver.Store{first, second}[n%2]
			for _, clock := range []*dirClock{&tab.clock, &other.clock} {
				// beyond the floor, so that the next write raises it
				boot := clock.readBootClock
				clock.readBootClock = func() time.Duration { return boot() + 2*time.Duration(floorAhead)*time.Microsecond }
			}
			s.Renew(t.Context(), held, func(_ int, r driver.Renewal) {
				if r.Err != nil {
					t.Errorf("%d holders, renewal %d: %v", holders, n, r.Err)
				}
			})
		}
		for _, g := range held {
			if err := second.Release(t.Context(), g.Claim, g.Ref); err != nil {
				t.Fatalf("%d holders, release: %v", holders, err)
			}
		}
	}
}

// TestReadOnly: a store on a read-only file system returns ErrDenied, when it is opened and later.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	needRoot(t)
	mount := mountTmpfs(t, "size=1m,mode=0700")
	tab := openTest(t, mount+"/store")
	_, err := tab.Swap(t.Context(), record.Row{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	_ = tab.Close() // its liveness file is open for writing
	// A child process that another test is starting has the files of this process open until its exec.
	storetest.Eventually(t, "the file system is read-only", func() bool {
		err := unix.Mount("", mount, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		if err != nil && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err == nil
	})
	if _, err := openTable(t.Context(), mount+"/store", nil); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("opened: %v", err)
	}
}

// TestOtherUser: the directory of another user is refused with ErrDenied.
func TestOtherUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := openTable(t.Context(), dir, nil); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("root in nobody's directory: %v", err)
	}
}

// TestFileSystems: network and unknown file systems are not taken for local ones.
func TestFileSystems(t *testing.T) {
	t.Parallel()
	for magic, want := range map[uint32]bool{0x6969: false, 0xff534d42: false, 0x65735546: false, 0x01021997: false,
		0xc36400:   false,
		0x12345678: false, 0xef53: true, 0x58465342: true, 0x01021994: true, 0x794c7630: true} {
		name, local := fileSystemKind(magic)
		if local != want {
			t.Errorf("%s: local %v", name, local)
		}
		kind := func(int) (string, bool, error) { return name, local, nil }
		fd, err := openRoot(t.TempDir(), sharing{}, false, kind)
		if (err == nil) != want || err != nil &&
			(!errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(),
				name)) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			unix.Close(fd)
		}
		if fd, err = openRoot(t.TempDir(), sharing{}, true, kind); err != nil {
			t.Errorf("%s, forced: %v", name, err)
		}
		unix.Close(fd)
	}
}
