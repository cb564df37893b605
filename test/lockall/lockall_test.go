package lockall

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	_ "github.com/holdfast-go/holdfast/store/file"
)

var duration = flag.Duration("lockall", 5*time.Second, "how long the processes run")

const (
	processes = 16
	locks     = 8
	each      = 5
	waitLimit = 2 * time.Minute // only a deadlock makes a process wait for so long
)

// TestMain is also the main function of a worker process.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LOCKALL"); dir != "" {
		d, err := time.ParseDuration(os.Getenv("LOCKALL_FOR"))
		if err == nil {
			err = runWorker(dir, d)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestLockAll: sixteen processes take five of eight locks at a time, again and again, each time others in another
// order. None waits forever, each of them makes progress, and under each lock a number in a plain file is raised
// without losing an update.
func TestLockAll(t *testing.T) {
	dir := t.TempDir()
	for i := range locks {
		if err := os.WriteFile(counterFile(dir, i), []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type worker struct {
		*exec.Cmd
		out, err bytes.Buffer
	}
	var workers []*worker
	for range processes {
		w := &worker{Cmd: exec.Command(os.Args[0])}
		w.Env = append(os.Environ(), "LOCKALL="+dir, "LOCKALL_FOR="+duration.String())
		w.Stdout, w.Stderr = &w.out, &w.err
		if err := servertest.StartProcess(w.Cmd); err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	var turns []int
	sum := 0
	for _, w := range workers {
		if err := w.Wait(); err != nil {
			t.Errorf("%v: %s", err, w.err.String())
		}
		n, err := strconv.Atoi(strings.TrimSpace(w.out.String()))
		if err != nil {
			t.Fatalf("%v: %q", err, w.out.String())
		}
		turns = append(turns, n)
		sum += n
	}
	total := 0
	for i := range locks {
		n, err := readCounter(counterFile(dir, i))
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if total != sum*each {
		t.Errorf("%d locks were taken, and the numbers add up to %d", sum*each, total)
	}
	if slices.Min(turns) == 0 {
		t.Errorf("a process made no progress: %v", turns)
	}
	t.Logf("%d times %d of %d locks in %v by %d processes, no deadlock; by process %v", sum, each, locks, *duration,
		processes, turns)
}

func counterFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprint("number", i)) }

func readCounter(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(data))
}

// runWorker is the main function of a worker process. It prints how often it had its locks.
func runWorker(dir string, d time.Duration) error {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "file://"+filepath.Join(dir, "store"), &holdfast.Options{TTL: waitLimit})
	if err != nil {
		return err
	}
	defer client.Close()
	turns := 0
	for until := time.Now().Add(d); time.Now().Before(until) || turns == 0; turns++ {
		if err := runTurn(ctx, client, dir); err != nil {
			return err
		}
	}
	fmt.Println(turns)
	return nil
}

func runTurn(ctx context.Context, client *holdfast.Client, dir string) error {
	var items []holdfast.Lockable
	which := rand.Perm(locks)[:each]
	for _, i := range which {
		items = append(items, client.Mutex(fmt.Sprint("lock", i), nil))
	}
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	set, err := holdfast.LockAll(ctx, items...)
	if err != nil {
		return err
	}
	for _, i := range which {
		n, err := readCounter(counterFile(dir, i))
		if err != nil {
			return fmt.Errorf("two wrote at the same time: %w", err)
		}
		if err := os.WriteFile(counterFile(dir, i), []byte(strconv.Itoa(n+1)), 0o600); err != nil {
			return err
		}
	}
	return set.Release()
}
