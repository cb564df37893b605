//go:build linux || darwin || windows

package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The test binary is also the program of the processes that the tests start, stop and kill. This variable selects
// what such a process does.
const helperEnv = "HOLDFAST_FILE_TEST_HELPER"

func TestMain(m *testing.M) {
	do := os.Getenv(helperEnv)
	if do == "" {
		os.Exit(m.Run())
	}
	if err := runHelper(do, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runHelper(do, dir string, args []string) error {
	if do == "share" {
		return runMember(dir, args)
	}
	tab, err := openTable(context.Background(), dir, nil)
	if err != nil {
		return err
	}
	defer tab.Close()
	switch do {
	case "be present": // until the end of input
		now := tab.TokenFloor()
		fmt.Println(tab.Session(), now)
		_, err = io.Copy(io.Discard, os.Stdin)
	case "judge":
		fmt.Println(tab.IsDead(args[0]))
	case "count": // until the end of input; says how often
		stop := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(stop) }()
		log, err := os.OpenFile(args[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() {
				for errs[i] == nil && !isClosed(stop) {
					if errs[i] = incrementCounter(tab); errs[i] == nil {
						_, errs[i] = log.Write([]byte{'1'})
					}
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	return err
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// incrementCounter adds one to a number in a record.
func incrementCounter(tab *table) error {
	for {
		row, err := tab.Load(context.Background(), "counter")
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(string(row.Data))
		row.Data = strconv.AppendInt(nil, int64(n)+1, 10)
		if _, err = tab.Swap(context.Background(), row); !errors.Is(err, record.ErrConflict) {
			return err
		}
	}
}

func readCounter(t testing.TB, tab *table) int {
	t.Helper()
	row, err := tab.Load(context.Background(), "counter")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(string(row.Data))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type helperProcess struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

// startHelper runs a helper and reads its first line.
func startHelper(t testing.TB, attr *syscall.SysProcAttr, do, dir string, args ...string) (*helperProcess, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{dir}, args...)...)
	cmd.Env = append(os.Environ(), helperEnv+"="+do)
	cmd.SysProcAttr = attr
	return runCommand(t, cmd)
}

func runCommand(t testing.TB, cmd *exec.Cmd) (*helperProcess, string) {
	t.Helper()
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := errors.Join(err1, err2, servertest.StartProcess(cmd)); err != nil {
		t.Fatal(err)
	}
	c := &helperProcess{Cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the helper said nothing: %v", err)
	}
	return c, strings.TrimSpace(line)
}

func (c *helperProcess) finishHelper(t testing.TB) {
	t.Helper()
	c.in.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// TestConcurrentIncrements: several tables of one process, with several goroutines each, lose no update.
func TestConcurrentIncrements(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	const tables, goroutines, each = 3, 8, 40
	var wg sync.WaitGroup
	for range tables {
		tab := openTest(t, dir)
		for range goroutines {
			wg.Go(func() {
				for range each {
					if err := incrementCounter(tab); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := readCounter(t, openTest(t, dir)); n != tables*goroutines*each {
		t.Errorf("%d, want %d", n, tables*goroutines*each)
	}
}

// TestProcessesIncrement: several processes lose no update.
func TestProcessesIncrement(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	log := filepath.Join(t.TempDir(), "log")
	var children []*helperProcess
	for range 4 {
		c, _ := startHelper(t, nil, "count", dir, log)
		children = append(children, c)
	}
	tab := openTest(t, dir)
	waitUntil(t, func() bool { row, _ := tab.Load(t.Context(), "counter"); return len(row.Data) >= 4 })
	for _, c := range children {
		c.finishHelper(t)
	}
	if n, want := readCounter(t, tab), countLogged(t, log); n != want {
		t.Errorf("%d, want %d", n, want)
	}
}

func countLogged(t testing.TB, log string) int {
	t.Helper()
	st, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	return int(st.Size())
}

// waitUntil polls, because it waits for other processes, which are outside any synctest bubble.
func waitUntil(t testing.TB, ok func() bool) {
	t.Helper()
	const timeLimit = 2 * time.Minute
	for end := time.Now().Add(timeLimit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not happen in %v", timeLimit)
		}
	}
}

// TestStopsAndKills: processes that are stopped and killed at random moments of their swaps delay no other, and lose
// nothing that was confirmed.
func TestStopsAndKills(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir()+"/store", filepath.Join(t.TempDir(), "log")
	tab := openTest(t, dir)
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	var done, longest atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for !isClosed(stop) {
			began := time.Now()
			row, err := tab.Load(context.Background(), "mine") // no conflicts: what takes long was a stall
			if err == nil {
				_, err = tab.Swap(context.Background(), row)
			}
			if err := errors.Join(err, incrementCounter(tab)); err != nil {
				t.Error(err)
				return
			}
			longest.Store(max(longest.Load(), int64(time.Since(began))))
			done.Add(1)
		}
	})
	kills := 0
	c, _ := startHelper(t, nil, "count", dir, log)
	for i := range rounds {
		time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
		stopProcess(c.Process)
		before := done.Load()
		waitUntil(t, func() bool { return done.Load() > before+1 }) // the second has begun after the stop
		if i%4 == 3 {
			_ = c.Process.Kill()
			_ = c.Wait()
			kills++
			c, _ = startHelper(t, nil, "count", dir, log)
		} else {
			continueProcess(c.Process)
		}
	}
	c.finishHelper(t)
	close(stop)
	wg.Wait()
	t.Logf("%d stops, %d kills, %d rounds done meanwhile, the longest took %v", rounds, kills, done.Load(),
		time.Duration(longest.Load()))
	// A killed goroutine may have done one increment more than it has logged.
	least := int(done.Load()) + countLogged(t, log)
	if n := readCounter(t, tab); n < least || n > least+4*kills {
		t.Errorf("%d, want %d to %d", n, least, least+4*kills)
	}
}

// TestLiveness: a live client counts as alive even when it is stopped; a killed one counts as dead at once.
func TestLiveness(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	tab, other := openTest(t, dir), openTest(t, dir)
	if tab.IsDead(tab.Session()) || tab.IsDead(other.Session()) || other.IsDead(tab.Session()) {
		t.Error("two tables of one process do not see each other")
	}
	_ = other.Close()
	if !tab.IsDead(other.Session()) {
		t.Error("a closed table is taken for alive")
	}
	for _, nonsense := range []string{"", "../tmp", "x", strings.Repeat("/", sessionLength)} {
		if tab.IsDead(nonsense) {
			t.Errorf("%q is taken for dead", nonsense)
		}
	}
	c, line := startHelper(t, nil, "be present", dir)
	session, _, _ := strings.Cut(line, " ")
	stopProcess(c.Process)
	if tab.IsDead(session) {
		t.Error("a stopped process is taken for dead")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if !tab.IsDead(session) {
		t.Error("a killed process is taken for alive")
	}
	if _, err := os.Stat(filepath.Join(dir, "clients", session)); err != nil {
		t.Error(err)
	}
	openTest(t, dir)
	if _, err := os.Stat(filepath.Join(dir, "clients", session)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its file was not swept: %v", err)
	}
	if !tab.IsDead(session) || tab.IsDead(tab.Session()) {
		t.Error("removing files has changed who is dead")
	}
}
