//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// openTurnTables returns two clients of one directory, and the path of the turn of the lock "a/b".
func openTurnTables(t *testing.T) (one, two *table, path string) {
	t.Helper()
	dir := t.TempDir() + "/store"
	for _, to := range []**table{&one, &two} {
		table, err := openTable(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = table.Close() })
		*to = table
	}
	return one, two, filepath.Join(dir, "turns", encodeName("a/b"))
}

// turnResult is what a call of takeTurn returned.
type turnResult struct {
	pass func()
	err  error
}

func takeTurnLater(ctx context.Context, table *table) <-chan turnResult {
	results := make(chan turnResult, 1)
	go func() {
		pass, err := table.takeTurn(ctx, "a/b")
		results <- turnResult{pass, err}
	}()
	return results
}

// TestTurn: one client has the turn at a time. The next has it as soon as it is passed on, and nothing remains of it.
func TestTurn(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pass, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		next := takeTurnLater(t.Context(), two)
		findTicket(t, two, "")
		select {
		case r := <-next:
			t.Fatalf("two clients have the turn: %v", r.err)
		default:
		}
		pass()
		r := <-next
		if r.err != nil {
			t.Fatal(r.err)
		}
		pass, one, two = r.pass, two, one
	}
	pass()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the turn has left a file: %v", err)
	}
}

// findTicket waits until a client has a ticket that is not the one given, and returns its path.
func findTicket(t *testing.T, table *table, not string) (path string) {
	t.Helper()
	dir := filepath.Join(table.path, "turns")
	waitUntil(t, func() bool {
		for _, file := range listDir(t, dir) {
			if path = filepath.Join(dir, file); strings.HasSuffix(file, table.liveness.session) && path != not {
				return true
			}
		}
		return false
	})
	return path
}

// openTestTurns opens the directory of turns for the lock "a/b".
func openTestTurns(t *testing.T, table *table) turnFile {
	t.Helper()
	f, err := table.openTurns(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.closeHandle(f.dir) })
	return f
}

// waitContext closes a channel when somebody waits for the end of the context, which takeTurn does when it has nothing
// else left to do.
type waitContext struct {
	context.Context
	waits chan struct{}
	once  sync.Once
}

func (c *waitContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waits) })
	return c.Context.Done()
}

// TestTurnPassesToOne: the turn is passed on to the client that has waited longest, and no other is notified. A client
// that has ended is passed over.
func TestTurnPassesToOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	open := func() *table {
		table, err := openTable(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = table.Close() })
		return table
	}
	pass, err := open().takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	const waiters = 6
	var next [waiters]<-chan turnResult
	turns := filepath.Join(dir, "turns")
	var tables [waiters]*table
	for i := range tables { // all of them first: a client that begins removes the tickets of dead ones
		tables[i] = open()
	}
	for i, table := range tables {
		waits := &waitContext{Context: t.Context(), waits: make(chan struct{})}
		next[i] = takeTurnLater(waits, table)
		<-waits.waits // it has a ticket, and has tried once more to take the turn
		if i == 2 {   // as a process that is killed leaves it
			ticket := findTicket(t, table, "")
			if err := table.Close(); err != nil {
				t.Fatal(err)
			}
			if r := <-next[i]; !errors.Is(r.err, driver.ErrClosed) {
				t.Fatal(r.err)
			}
			if err := unix.Mkfifo(ticket, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	anyone := make(chan int, waiters)
	results := make([]turnResult, waiters)
	for i := range next {
		if i != 2 {
			go func() {
				results[i] = <-next[i]
				anyone <- i
			}()
		}
	}
	for i := range next {
		if i == 2 {
			continue
		}
		pass()
		if got := <-anyone; got != i {
			t.Fatalf("client %d has the turn of client %d: %v", got, i, results[got].err)
		}
		r := results[i]
		if r.err != nil {
			t.Fatal(r.err)
		}
		if i < waiters-1 {
			left := waiters - i // the file of the turn, and a ticket of each client behind it
			if got := listDir(t, turns); len(got) != left {
				t.Errorf("turn %d: %d files are left, want %d: %v", i, len(got), left, got)
			}
		}
		pass = r.pass
	}
	pass()
	if left := listDir(t, turns); len(left) != 0 {
		t.Errorf("left in turns: %v", left)
	}
}

// TestNotice: a client is notified about the lock for which it listens, and about no other.
func TestNotice(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	noticed, stop, err := two.listenForNotice(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	other, stopOther, err := two.listenForNotice(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	one.notifyClients("a/b", []string{one.liveness.session})
	one.notifyClients("a/b", []string{"../../clock"})
	one.notifyClients("a/b", []string{two.liveness.session})
	<-noticed
	select {
	case <-other:
		t.Error("it was notified about another lock")
	default:
	}
	stop()
	stopOther()
	two.Close()
	if left := listDir(t, filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left in turns: %v", left)
	}
}

// TestNoticeOverlaps: a client that listens again before it has ended to listen is notified, and nothing is left of
// both.
func TestNoticeOverlaps(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	_, stopFirst, err := two.listenForNotice(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	noticed, stop, err := two.listenForNotice(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	stopFirst()
	for range 3 {
		one.notifyClients("a/b", []string{two.liveness.session})
	}
	<-noticed
	stop()
	two.Close()
	if left := listDir(t, filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left in turns: %v", left)
	}
}

// TestNoticePipeStays: a client that listens again and again for one lock makes no file each time, is notified each
// time, and removes the pipe when it has not listened for a while.
func TestNoticePipeStays(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pipe := filepath.Join(filepath.Dir(path), noticePrefix("a/b")+two.liveness.session)
	two.pipeKeep = time.Hour
	var first os.FileInfo
	for i := range 3 {
		if i == 2 {
			two.pipeKeep = time.Millisecond
		}
		noticed, stop, err := two.listenForNotice(t.Context(), "a/b")
		if err != nil {
			t.Fatal(err)
		}
		there, err := os.Stat(pipe)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = there
			open, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0) // else another file may get its inode number
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
		}
		if !os.SameFile(first, there) {
			t.Error("another pipe was made")
		}
		one.notifyClients("a/b", []string{two.liveness.session})
		<-noticed
		stop()
	}
	waitUntil(t, func() bool { return len(listDir(t, filepath.Dir(path))) == 0 })
	noticed, stop, err := two.listenForNotice(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := os.Remove(pipe); err != nil { // as that of a client that was taken for dead
		t.Fatal(err)
	}
	again, stopAgain, err := two.listenForNotice(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer stopAgain()
	<-noticed // the first call may have missed a notice
	one.notifyClients("a/b", []string{two.liveness.session})
	<-again
}

// TestNoticeBetweenWaits: a client in the queue misses no notice that comes before its first wait, or between two, and
// is woken once by each.
func TestNoticeBetweenWaits(t *testing.T) {
	t.Parallel()
	one, two, _ := openTurnTables(t)
	notify := func() { one.notifyClients("a/b", []string{two.liveness.session}) }
	w := two.Watch("a/b")
	defer w.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	notify() // nobody listens
	if _, err := w.Wait(ctx, "", record.InQueue); err != nil {
		t.Fatalf("a notice before the first wait: %v", err)
	}
	hasCome := func() bool {
		two.noticeMu.Lock()
		defer two.noticeMu.Unlock()
		return len(two.pipes["a/b"].listener) == 1
	}
	for range 3 {
		notify()
		waitUntil(t, hasCome)
		if _, err := w.Wait(ctx, "", record.InQueue); err != nil {
			t.Fatalf("a notice between two waits: %v", err)
		}
		ended, end := context.WithCancel(ctx)
		end()
		for range 10 {
			if _, err := w.Wait(ended, "", record.InQueue); err == nil {
				t.Fatal("one notice ends two waits")
			}
		}
	}
}

// TestRemovedNoticePipe: if somebody removes the pipe of a client that waits, it listens again with its next wait.
func TestRemovedNoticePipe(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	w := two.Watch("a/b")
	defer w.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := w.Wait(ctx, "", record.InQueue); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(path), noticePrefix("a/b")+two.liveness.session)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Wait(ctx, "", record.InQueue); err != nil {
		t.Errorf("it waits where nobody notifies it: %v", err)
	}
	one.notifyClients("a/b", []string{two.liveness.session})
	if _, err := w.Wait(ctx, "", record.InQueue); err != nil {
		t.Errorf("after that it is not notified: %v", err)
	}
}

// TestNoticePipesOfManyLocks: a client that waits for very many locks, one after the other, keeps a few pipes only.
func TestNoticePipesOfManyLocks(t *testing.T) {
	t.Parallel()
	one, _, path := openTurnTables(t)
	one.pipeKeep = time.Hour
	for i := range 2 * maxNoticePipes {
		_, stop, err := one.listenForNotice(t.Context(), fmt.Sprint("lock", i))
		if err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if got := listDir(t, filepath.Dir(path)); len(got) != maxNoticePipes {
		t.Errorf("%d pipes, want %d", len(got), maxNoticePipes)
	}
}

// TestListenWhileClosed: a client that begins to listen while it is closed blocks nothing.
func TestListenWhileClosed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	for range 100 {
		table, err := openTable(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		table.callsMu.RLock() // as a call in progress, so that Close waits
		var calls sync.WaitGroup
		calls.Go(func() { _ = table.Close() })
		waitUntil(t, func() bool {
			waits := !table.callsMu.TryRLock()
			if !waits {
				table.callsMu.RUnlock()
			}
			return waits
		})
		calls.Go(func() {
			if _, _, err := table.listenForNotice(t.Context(), "a/b"); !errors.Is(err, driver.ErrClosed) {
				t.Error(err)
			}
		})
		runtime.Gosched()
		table.callsMu.RUnlock()
		calls.Wait()
	}
}

// TestPipesOfKilled: a client that begins removes the pipes that killed clients have left, and no others.
func TestPipesOfKilled(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pass, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	next := takeTurnLater(t.Context(), two)
	ticket := filepath.Base(findTicket(t, two, ""))
	if _, _, err := one.listenForNotice(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
	alive := listDir(t, filepath.Dir(path))
	for _, place := range []string{"", "0000000000000001"} {
		left := filepath.Join(filepath.Dir(path), noticePrefix("a/b")+place+strings.Repeat("d", sessionLength))
		if err := unix.Mkfifo(left, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	three, err := openTable(t.Context(), one.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer three.Close()
	if got := listDir(t, filepath.Dir(path)); !slices.Equal(got, alive) || !slices.Contains(got, ticket) {
		t.Errorf("left in turns: %v, not %v", got, alive)
	}
	pass()
	if r := <-next; r.err == nil {
		r.pass()
	}
}

// TestNoticeOfDead: to notify a dead client does not block, and nothing is written into a file that has the place of
// its pipe.
func TestNoticeOfDead(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pipe := filepath.Join(filepath.Dir(path), noticePrefix("a/b")+two.liveness.session)
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	one.notifyClients("a/b", []string{two.liveness.session})
	victim := t.TempDir() + "/victim"
	if err := errors.Join(os.Remove(pipe), os.WriteFile(victim, []byte("x"), 0o600), os.Link(victim, pipe)); err != nil {
		t.Fatal(err)
	}
	one.notifyClients("a/b", []string{two.liveness.session})
	if text, err := os.ReadFile(victim); err != nil || string(text) != "x" {
		t.Errorf("a file has %q now, %v", text, err)
	}
}

// TestTurnsOfIdleLock: what dead clients have left of the turns of a lock is removed with its record.
func TestTurnsOfIdleLock(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	row, err := one.Swap(t.Context(), record.Row{Name: "a/b", Data: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	_, stop, err := two.listenForNotice(t.Context(), "another")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	pipe := noticePrefix("a/b") + strings.Repeat("a", sessionLength)
	for _, file := range []string{path, filepath.Join(filepath.Dir(path), pipe)} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.Delete(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if left := listDir(t, filepath.Dir(path)); len(left) != 1 || !strings.HasPrefix(left[0], noticePrefix("another")) {
		t.Errorf("left in turns: %v", left)
	}
}

// TestTurnEnds: a call that waits for the turn ends with its context, and with its client.
func TestTurnEnds(t *testing.T) {
	t.Parallel()
	one, two, _ := openTurnTables(t)
	pass, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer pass()
	ctx, cancel := context.WithCancel(t.Context())
	next := takeTurnLater(ctx, two)
	findTicket(t, two, "")
	cancel()
	if r := <-next; !errors.Is(r.err, context.Canceled) {
		t.Errorf("after the end of the context: %v", r.err)
	}
	next = takeTurnLater(t.Context(), two)
	findTicket(t, two, "")
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-next; !errors.Is(r.err, driver.ErrClosed) {
		t.Errorf("after Close: %v", r.err)
	}
}

// TestTurnOfDeadProcess: the file of a process that was killed with the turn is nobody's turn.
func TestTurnOfDeadProcess(t *testing.T) {
	t.Parallel()
	one, _, path := openTurnTables(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pass, err := one.takeTurn(ctx, "a/b")
	if err != nil {
		t.Fatal(err)
	}
	pass()
}

// TestRemovedTurn: a client that opened the file of a turn before it was passed on does not get the turn by that file.
func TestRemovedTurn(t *testing.T) {
	t.Parallel()
	one, two, _ := openTurnTables(t)
	passFirst, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	f := openTestTurns(t, one)
	late, err := f.open(true)
	if err != nil {
		t.Fatal(err)
	}
	passFirst()
	passSecond, err := two.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer passSecond()
	if fd, err := f.lock(late); fd >= 0 || err != nil {
		t.Errorf("two clients have the turn: %v", err)
	}
}

// TestTurnWithoutStore: there are no turns before there is a store, and none where a file has their directory's name.
func TestTurnWithoutStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	none := newTable(dir, (&Options{}).withDefaults())
	if _, err := none.takeTurn(t.Context(), "a"); err == nil {
		t.Error("a turn without a store")
	}
	one, err := openTable(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	if err := os.WriteFile(filepath.Join(dir, "turns"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := one.takeTurn(t.Context(), "a"); err == nil {
		t.Error("a turn in a file")
	}
}

// TestTicketNotOpenYet: a client that has made its ticket, but not opened it, keeps it when another is notified.
func TestTicketNotOpenYet(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pass, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	early := filepath.Join(filepath.Dir(path), noticePrefix("a/b")+"0000000000000001"+one.liveness.session)
	if err := unix.Mkfifo(early, 0o600); err != nil {
		t.Fatal(err)
	}
	next := takeTurnLater(t.Context(), two)
	findTicket(t, two, "")
	pass()
	r := <-next
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.pass()
	if got := listDir(t, filepath.Dir(path)); len(got) != 1 {
		t.Errorf("left in turns: %v", got)
	}
}

// TestNotifiedWithoutEffect: a client that is notified while another one has the turn waits on, with another ticket.
// The same goes for a client whose ticket was removed by one that was killed before it notified anybody.
func TestNotifiedWithoutEffect(t *testing.T) {
	t.Parallel()
	one, two, path := openTurnTables(t)
	pass, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	next := takeTurnLater(t.Context(), two)
	first := findTicket(t, two, "")
	f := openTestTurns(t, one)
	one.notifyNext(f)
	second := findTicket(t, two, first)
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	findTicket(t, two, second)
	pass()
	r := <-next
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.pass()
	if got := listDir(t, filepath.Dir(path)); len(got) != 0 {
		t.Errorf("left in turns: %v", got)
	}
}

// endedContext is a context that has ended, but has notified nobody yet.
type endedContext struct {
	context.Context
	ended atomic.Bool
}

func (c *endedContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// TestNotifiedTooLate: a client that is notified when its wait has just ended leaves the turn to the next one.
func TestNotifiedTooLate(t *testing.T) {
	t.Parallel()
	one, two, _ := openTurnTables(t)
	pass, err := one.takeTurn(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	ctx := &endedContext{Context: context.Background()}
	tooLate := takeTurnLater(ctx, two)
	findTicket(t, two, "")
	f := openTestTurns(t, one)
	noticed, stop, err := f.listen(f.prefix + "ffffffffffffffff" + one.liveness.session)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx.ended.Store(true)
	pass()
	if r := <-tooLate; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r.err)
	}
	if got := f.listTickets(); len(got) > 0 {
		t.Fatalf("left in turns: %v", got)
	}
	<-noticed
}

// TestNotifiedByOne: of two clients that notify the same ticket, one does; the other notifies the next one.
func TestNotifiedByOne(t *testing.T) {
	t.Parallel()
	one, two, _ := openTurnTables(t)
	f := openTestTurns(t, one)
	ticket := f.prefix + "0000000000000001" + two.liveness.session
	noticed, stop, err := f.listen(ticket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if !one.notifyTicket(f, ticket) {
		t.Error("nobody was notified")
	}
	<-noticed
	if one.notifyTicket(f, ticket) {
		t.Error("it was notified twice")
	}
}
