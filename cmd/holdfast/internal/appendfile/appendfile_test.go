package appendfile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, where string) *File {
	t.Helper()
	f, err := Open(where, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func (f *File) want(t *testing.T, line string) {
	t.Helper()
	if err := f.Append([]byte(line+"\n"), true); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, path, want string) {
	t.Helper()
	if data, err := os.ReadFile(path); err != nil || string(data) != want {
		t.Errorf("%s: want %q: %q %v", filepath.Base(path), want, data, err)
	}
}

// TestRotation: a file that was renamed, removed or replaced gets no line any more: the next one is in the file that
// has the name then.
func TestRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	f := open(t, path)
	f.want(t, "1")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	f.want(t, "2")
	check(t, path+".1", "1\n")
	check(t, path, "2\n")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.want(t, "3")
	check(t, path, "3\n")
	if err := errors.Join(os.WriteFile(path+".new", []byte("new\n"), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	if err := f.Reopen(); err != nil {
		t.Fatal(err)
	}
	f.want(t, "4")
	check(t, path, "new\n4\n")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	f.want(t, "5")
	check(t, path, "5\n")
	// What cannot be created is an error each time, and not a line that nobody finds.
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Append([]byte("6\n"), false); err == nil {
			t.Error("a line was written although there is a directory with the name")
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.want(t, "7")
	check(t, path, "7\n")
}

// TestTornLine: a line that was cut off, by this process or by another one, does not spoil the line after it.
func TestTornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("1\n{\"torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	f.want(t, "2")
	other, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.WriteString("{\"also torn"); err != nil {
		t.Fatal(err)
	}
	f.want(t, "3")
	f.want(t, "4")
	check(t, path, "1\n{\"torn\n2\n{\"also torn\n3\n4\n")
}

// TestLineTornByAnother: a line that another process tears while it has the file locked is ended before the next one,
// which waits for that process.
func TestLineTornByAnother(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	f := open(t, path)
	other, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	appended := make(chan error, 1)
	go func() { appended <- f.Append([]byte("whole\n"), false) }()
	time.Sleep(50 * time.Millisecond) // so that a line that does not wait comes first
	if _, err := other.WriteString("to"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := <-appended; err != nil {
		t.Fatal(err)
	}
	check(t, path, "to\nwhole\n")
}

// TestFIFO: a FIFO without a reader is an error at once. If its reader stops reading, a line is given up after a while,
// and does not spoil the line after it.
func TestFIFO(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		_, err := Open(path, 0o600)
		opened <- err
	}()
	select {
	case err := <-opened:
		if err == nil || !strings.Contains(err.Error(), "nobody reads") {
			t.Errorf("a FIFO without a reader: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the open of a FIFO waits for a reader")
	}
	reader, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(reader)
	testSlowReader(t, open(t, path), reader)
}

// TestInheritedPipe: the same is true for a pipe that this process was started with.
func TestInheritedPipe(t *testing.T) {
	t.Parallel()
	var ends [2]int
	if err := unix.Pipe(ends[:]); err != nil {
		t.Fatal(err)
	}
	reader := ends[0]
	defer unix.Close(reader)
	unix.CloseOnExec(reader)
	f := open(t, "fd:"+strconv.Itoa(ends[1]))
	if err := unix.SetNonblock(reader, true); err != nil {
		t.Fatal(err)
	}
	testSlowReader(t, f, reader)
}

func testSlowReader(t *testing.T, f *File, reader int) {
	t.Helper()
	readAll := func() string {
		var all strings.Builder
		for buf := make([]byte, 4096); ; {
			n, err := unix.Read(reader, buf)
			if err != nil || n <= 0 {
				return strings.TrimLeft(all.String(), "x")
			}
			all.Write(buf[:n])
		}
	}
	long := strings.Repeat("x", 1<<20) // more than a pipe holds
	appended := make(chan error, 1)
	go func() { appended <- f.Append([]byte(long+"\n"), true) }()
	select {
	case err := <-appended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a reader that does not read: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a line waits for a reader that does not read")
	}
	if got := readAll(); got != "" {
		t.Errorf("%q", got)
	}
	f.want(t, "1")
	f.want(t, "2")
	if got := readAll(); got != "\n1\n2\n" {
		t.Errorf("%q", got)
	}
}

// TestLink: a symbolic link is refused, also one that appears in place of the file, and what it leads to is not
// changed.
func TestLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, target := filepath.Join(dir, "log"), filepath.Join(dir, "target")
	f := open(t, path)
	if err := errors.Join(os.WriteFile(target, []byte("x\n"), 0o600), os.Remove(path), os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, 0o600); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("open: %v", err)
	}
	if err := f.Append([]byte("1\n"), false); err == nil {
		t.Error("a line was written through a link")
	}
	check(t, target, "x\n")
}

// TestUnreadableFile: a file that this process may only write, and a device, get their lines.
func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o200); err != nil {
		t.Fatal(err)
	}
	f := open(t, path)
	f.want(t, "1")
	f.want(t, "2")
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, path, "1\n2\n")
	open(t, os.DevNull).want(t, "1")
}
