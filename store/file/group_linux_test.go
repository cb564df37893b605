package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// The users and the group of these tests. They need not be on this machine's lists.
const (
	sharingGroup = 54100
	alice, bob   = 54001, 54002 // are in the group
	mallory      = 54003        // is not
)

func isTestMember(uid, group int) bool { return group == sharingGroup && (uid == alice || uid == bob) }

// makeSharedParent makes a directory that all users can enter and make directories in.
func makeSharedParent(t *testing.T) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir += "/any"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// memberProcess is a process of a user with a shared store.
type memberProcess struct {
	*helperProcess
	t *testing.T
}

// startMember starts a process of a user, and returns what it says of opening the store. Its program is this one: by
// this name any user can run it, wherever it is.
func startMember(t *testing.T, uid uint32, dir, group string, inGroup bool) (*memberProcess, string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", dir, group, strconv.Itoa(alice), strconv.Itoa(bob))
	cmd.Env = append(os.Environ(), helperEnv+"=share")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if inGroup {
		cmd.SysProcAttr.Credential.Groups = []uint32{sharingGroup}
	}
	c, line := runCommand(t, cmd)
	return &memberProcess{c, t}, line
}

// startMembers starts a process of each of the two members.
func startMembers(t *testing.T, dir string) (a, b *memberProcess) {
	t.Helper()
	for uid, to := range map[uint32]**memberProcess{alice: &a, bob: &b} {
		m, said := startMember(t, uid, dir, strconv.Itoa(sharingGroup), true)
		if said != "opened <nil>" {
			t.Fatal(said)
		}
		*to = m
	}
	return a, b
}

// send sends commands that are not answered yet.
func (m *memberProcess) send(command string) {
	m.t.Helper()
	if _, err := fmt.Fprintln(m.in.(io.Writer), command); err != nil {
		m.t.Fatal(err)
	}
}

// receive returns the answer to a command.
func (m *memberProcess) receive() string {
	m.t.Helper()
	line, err := m.out.ReadString('\n')
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// expect sends a command, and checks that the answer contains a text.
func (m *memberProcess) expect(command, text string) {
	m.t.Helper()
	m.send(command)
	if got := m.receive(); !strings.Contains(got, text) {
		m.t.Errorf("%s by user %d: %q, want %q", command, m.SysProcAttr.Credential.Uid, got, text)
	}
}

// TestSharedStore: the members of a group see, break and take over one another's locks, whatever their umask, and no
// other user reaches the store.
func TestSharedStore(t *testing.T) {
	t.Parallel()
	dir := makeSharedParent(t) + "/store"
	one, two := startMembers(t, dir)
	one.expect("acquire a", "<nil>")
	two.expect("acquire a", "held by user 54001")
	two.expect("holder a", "user 54001")
	two.expect("break a", "<nil>")
	one.expect("renew a", "lost")
	two.expect("acquire a", "<nil>")
	two.expect("renew a", "<nil>")

	// Who waits for the lock of another user gets it when that is released, and when its process is killed.
	one.send("wait a")
	two.expect("release a", "<nil>")
	if got := one.receive(); got != "<nil>" {
		t.Errorf("after a release: %s", got)
	}
	two.send("wait a")
	_ = one.Process.Kill()
	if got := two.receive(); got != "<nil>" {
		t.Errorf("after the death of the holder: %s", got)
	}

	// Root takes part as well.
	tab, err := New(t.Context(), dir, &Options{Group: strconv.Itoa(sharingGroup), isMember: isTestMember})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tab.Close() })
	if _, err := tab.Acquire(t.Context(), claimOf("a")); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("root, of a member's lock: %v", err)
	}
	if _, err := tab.Acquire(t.Context(), claimOf("root")); err != nil {
		t.Error(err)
	}
	two.expect("break root", "<nil>")
	two.expect("acquire root", "<nil>")

	_, said := startMember(t, mallory, dir, strconv.Itoa(sharingGroup), false)
	if !strings.Contains(said, driver.ErrDenied.Error()) || !strings.Contains(said, "is not in the group") {
		t.Errorf("another user: %s", said)
	}
	_, said = startMember(t, bob, dir, "", true)
	if !strings.Contains(said, driver.ErrDenied.Error()) || !strings.Contains(said, "group=54100 in the URL") {
		t.Errorf("a member who does not say that the store is shared: %s", said)
	}
	checkSharedModes(t, dir)
}

// checkSharedModes checks that everything in a store is for the members of the group, and for nobody else.
func checkSharedModes(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		want := uint32(sharedFileMode)
		if e.IsDir() {
			want = sharedDirMode
		}
		if st.Mode&0o7777 != want || st.Gid != sharingGroup {
			t.Errorf("%s has mode %04o and group %d", path, st.Mode&0o7777, st.Gid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSharedStoreMadeByAll: members who make a store at the same time make one, and lose no update.
func TestSharedStoreMadeByAll(t *testing.T) {
	t.Parallel()
	parent := makeSharedParent(t)
	dir := parent + "/store"
	var all []*memberProcess
	for range 3 {
		one, two := startMembers(t, dir)
		all = append(all, one, two)
	}
	const each = 30
	for _, m := range all {
		m.send(fmt.Sprint("count ", each))
	}
	for _, m := range all {
		if got := m.receive(); got != "<nil>" {
			t.Error(got)
		}
	}
	tab, err := openTable(t.Context(), dir, &Options{Group: strconv.Itoa(sharingGroup), isMember: isTestMember})
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	if n := readCounter(t, tab); n != each*len(all) {
		t.Errorf("%d, want %d", n, each*len(all))
	}
	if left := listDir(t, parent); !slices.Equal(left, []string{"store"}) {
		t.Errorf("left next to the store: %v", left)
	}
	checkSharedModes(t, dir)
}

// TestSharedLedger: the run ledger of a shared store is shared, too.
func TestSharedLedger(t *testing.T) {
	t.Parallel()
	dir := makeSharedParent(t) + "/store"
	s, err := New(t.Context(), dir, &Options{Group: strconv.Itoa(sharingGroup), isMember: isTestMember})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := s.OpenLedger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := s.(*store).table.openStore(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	runs := l.(*ledger).runs
	if err := runs.openStore(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	checkSharedModes(t, dir)
	// A member who has left the group, or is on no list, may have made it.
	if err := os.Chown(runs.path, mallory, sharingGroup); err != nil {
		t.Fatal(err)
	}
	again, err := s.OpenLedger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// TestSharedDirectoryRefused: a directory is refused if others than the group can use it, or if members cannot.
func TestSharedDirectoryRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		mode       uint32
		owner, gid int
		want       string // in the error; empty: it is used
	}{
		{"root's", 0o2770, 0, sharingGroup, ""},
		{"a member's", 0o2770, alice, sharingGroup, ""},
		{"another user's", 0o2770, mallory, sharingGroup, "not known to be in the group"},
		{"another group's", 0o2770, 0, sharingGroup + 1, "belongs to group 54101"},
		{"readable by all", 0o2775, 0, sharingGroup, "mode 2775"},
		{"writable by all", 0o2777, 0, sharingGroup, "mode 2777"},
		{"the owner's alone", 0o2700, 0, sharingGroup, "mode 2700"},
		{"without a set-group-id bit", 0o770, 0, sharingGroup, "mode 0770"},
	} {
		dir := makeSharedParent(t) + "/store"
		err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, c.owner, c.gid), unix.Chmod(dir, c.mode))
		if err != nil {
			t.Fatal(err)
		}
		tab, err := openTable(t.Context(), dir, &Options{Group: strconv.Itoa(sharingGroup), isMember: isTestMember})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, driver.ErrDenied) ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("a directory that is %s: %v", c.name, err)
		}
		if err == nil {
			_ = tab.Close()
		}
		if _, err := openTable(t.Context(), dir, nil); !errors.Is(err, driver.ErrDenied) && c.mode&0o022 != 0 {
			t.Errorf("a directory that is %s, without a group: %v", c.name, err)
		}
	}
}

// TestPrivateStoreIsNotShared: a store that was made for one user is not shared by a change of its directory alone.
func TestPrivateStoreIsNotShared(t *testing.T) {
	t.Parallel()
	dir := makeSharedParent(t) + "/store"
	_ = openTest(t, dir).Close()
	shared := &Options{Group: strconv.Itoa(sharingGroup), isMember: isTestMember}
	if _, err := openTable(t.Context(), dir, shared); !errors.Is(err, driver.ErrDenied) {
		t.Errorf("a private store: %v", err)
	}
	if err := errors.Join(os.Chown(dir, 0, sharingGroup), unix.Chmod(dir, sharedDirMode)); err != nil {
		t.Fatal(err)
	}
	if _, err := openTable(t.Context(), dir, shared); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), dir+"/locks") {
		t.Errorf("a private store in a directory with other modes: %v", err)
	}
}

// TestSharedOptions: wrong settings of a shared store are reported, and make nothing.
func TestSharedOptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct{ dir, group, want string }{
		{dir + "/store", "no-such-group-here", "there is no group"},
		{dir + "/missing/store", strconv.Itoa(os.Getegid()), "there is no directory " + dir + "/missing"},
	} {
		_, err := openTable(t.Context(), c.dir, &Options{Group: c.group})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("group %s: %v", c.group, err)
		}
	}
	if left := listDir(t, dir); len(left) != 0 {
		t.Errorf("made: %v", left)
	}
	if _, err := driver.Open(t.Context(), "file://"+dir+"/store?group="); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("an empty group: %v", err)
	}
	root, err := driver.Open(t.Context(), "file://"+dir+"/store?group="+strconv.Itoa(os.Getegid()))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.Acquire(t.Context(), claimOf("a")); err != nil {
		t.Error(err)
	}
}

// TestSharedLinks: nothing is written through a link that a member has put into the store in the place of a file.
func TestSharedLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := dir + "/victim"
	err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), os.Link(victim, dir+"/hard"),
		os.Symlink(victim, dir+"/soft"), unix.Mkfifo(dir+"/fifo", 0o600), os.WriteFile(dir+"/plain", []byte("old"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	d := disk{sharing: sharing{shared: true, group: os.Getegid()}}
	for _, name := range []string{"hard", "soft", "fifo"} {
		if err := d.overwriteFile(fd, name, []byte("evil"), false); err == nil {
			t.Errorf("%s: it was written", name)
		}
		if err := d.extendFile(fd, name, 100); err == nil {
			t.Errorf("%s: it was extended", name)
		}
	}
	if text, err := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("now it contains %q, %v", text, err)
	}
	if err := d.overwriteFile(fd, "plain", []byte("new"), false); err != nil {
		t.Error(err)
	}
	if err := (disk{}).overwriteFile(fd, "hard", []byte("private"), false); err != nil {
		t.Errorf("in a store of one user: %v", err)
	}
}

// TestSharedTurn: the clients of a shared store take turns, with files that all members may open. A directory of
// turns that a member leads elsewhere is not followed.
func TestSharedTurn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var tables []*table
	for range 2 {
		tab, err := openTable(t.Context(), dir+"/store", &Options{Group: strconv.Itoa(os.Getegid())})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tab.Close() })
		tables = append(tables, tab)
	}
	one, two := tables[0], tables[1]
	turn := dir + "/store/turns/a%2fb"
	pass, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if info, err := os.Stat(turn); err != nil || info.Mode() != sharedFileMode {
			t.Fatalf("the file of the turn: %v, %v", info, err)
		}
		next := takeTurnLater(t.Context(), two)
		findTicket(t, two, "")
		pass()
		r := <-next
		if r.err != nil {
			t.Fatal(r.err)
		}
		pass, one, two = r.pass, two, one
	}
	pass()
	if left := listDir(t, dir+"/store/turns"); len(left) != 0 {
		t.Errorf("left in turns: %v", left)
	}
	if left := listDir(t, dir+"/store/tmp"); len(left) != 0 {
		t.Errorf("left in tmp: %v", left)
	}

	victim := dir + "/elsewhere/a%2fb"
	err = errors.Join(os.Mkdir(dir+"/elsewhere", 0o700), os.WriteFile(victim, nil, 0o600), os.Remove(dir+"/store/turns"),
		os.Symlink(dir+"/elsewhere", dir+"/store/turns"))
	if err != nil {
		t.Fatal(err)
	}
	if pass, err := one.takeTurn(t.Context(), "a/b"); err == nil {
		pass()
		t.Error("a turn in a directory that is elsewhere")
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
}
