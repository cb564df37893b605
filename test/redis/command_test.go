package redis

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// build returns the path of the command, which is built once.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "holdfast-redis-command-")
	if err != nil {
		return "", err
	}
	built = dir
	program := filepath.Join(dir, "holdfast")
	cmd := exec.Command("go", "build", "-o", program, ".")
	cmd.Dir = "../../cmd/holdfast"
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return program, nil
})

// built is the directory of the command. TestMain removes it.
var built string

// holdfastCommand makes a command line of the built program. The store's URL is in the environment, as it should be: it
// may contain a password, and all users of a machine can read command lines.
func holdfastCommand(t *testing.T, store string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_STORE="+store, "HOLDFAST_CONFIG=")
	return cmd
}

// runCommand runs a command line, and returns its output and its exit code.
func runCommand(t *testing.T, store string, args ...string) (out, errs string, code int) {
	t.Helper()
	cmd := holdfastCommand(t, store, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// expectOutput checks the exit code, and that the output has all words and no secret.
func expectOutput(t *testing.T, what, said string, code, want int, words ...string) {
	t.Helper()
	if code != want {
		t.Errorf("%s: exit %d, want %d: %s", what, code, want, said)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("%s: printed %q, want %q in it", what, said, w)
		}
	}
	if strings.Contains(said, "hunter") {
		t.Errorf("%s: the output contains a secret: %s", what, said)
	}
}

func startServer(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	s, err := redistest.Start(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// holdingCommand is a command line that holds a lock.
type holdingCommand struct {
	*exec.Cmd
	errs  bytes.Buffer
	ended chan struct{}
}

// startHolding starts a command that holds a lock, and returns when it does.
func startHolding(t *testing.T, store, name string, args ...string) *holdingCommand {
	t.Helper()
	h := &holdingCommand{Cmd: holdfastCommand(t, store, args...), ended: make(chan struct{})}
	h.Stderr = &h.errs
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = h.Wait(); close(h.ended) }()
	t.Cleanup(func() { _ = h.Process.Kill(); <-h.ended })
	if err := redistest.Until(t.Context(), func() bool {
		out, _, code := runCommand(t, store, "list")
		return code == 0 && strings.Contains(out, name)
	}); err != nil {
		t.Fatalf("%v does not hold %q", args, name)
	}
	return h
}

// expectExit checks how the command ends.
func (h *holdingCommand) expectExit(t *testing.T, what string, want int) {
	t.Helper()
	select {
	case <-h.ended:
		expectOutput(t, what, h.errs.String(), h.ProcessState.ExitCode(), want)
	case <-time.After(time.Minute):
		t.Fatalf("%s: it does not end", what)
	}
}

// TestCommandOnRedis: all subcommands work on Redis: run, hold, list, show, explain, stores, and break.
func TestCommandOnRedis(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	if _, err := server.Do("ACL", "SETUSER", "default", "resetpass", ">hunter2"); err != nil {
		t.Fatal(err)
	}
	store := "redis://:hunter2@" + server.Addr + "/1?prefix=app:"
	shown := "redis://" // the store's address, without the password

	out, errs, code := runCommand(t, store, "run", "job", "--", "sh", "-c", "echo $HOLDFAST_TOKEN; exit 7")
	expectOutput(t, "run", out+errs, code, 7)
	if len(strings.TrimSpace(out)) != 16 {
		t.Errorf("token %q", out)
	}
	_, _, code = runCommand(t, store, "show", "job")
	expectOutput(t, "nothing stands", "", code, 0)

	holder := startHolding(t, store, "job", "hold", "--ttl", "30s", "job")
	out, errs, code = runCommand(t, store, "run", "-n", "job", "--", "true")
	expectOutput(t, "a second run", out+errs, code, 75, "held by")
	out, errs, code = runCommand(t, store, "list")
	expectOutput(t, "list", out+errs, code, 0, "job")
	out, errs, code = runCommand(t, store, "show", "job")
	expectOutput(t, "show", out+errs, code, 0, "job", "mutex")
	out, errs, code = runCommand(t, store, "explain", "job")
	expectOutput(t, "explain", out+errs, code, 0, "app:job", "holdfast:{app:job}", shown, "allkeys-lru", "noeviction")
	out, errs, code = runCommand(t, store, "stores")
	expectOutput(t, "stores", out+errs, code, 0, "advisory", "redis+sentinel", "redlock", "allkeys-lru", "failover")
	_ = holder.Process.Signal(syscall.SIGTERM)
	holder.expectExit(t, "hold", 0)

	// The holder learns of a graceful break at its next renewal. After a break by force the lock is free at once.
	holder = startHolding(t, store, "broken", "run", "--ttl", "9s", "--grace", "200ms", "broken", "--", "sleep", "600")
	out, errs, code = runCommand(t, store, "break", "broken")
	expectOutput(t, "break", out+errs, code, 0)
	holder.expectExit(t, "what was broken", 76)
	holder = startHolding(t, store, "forced", "run", "--ttl", "9s", "--grace", "200ms", "forced", "--", "sleep", "600")
	out, errs, code = runCommand(t, store, "break", "--force", "forced")
	expectOutput(t, "break --force", out+errs, code, 0)
	out, errs, code = runCommand(t, store, "run", "-n", "forced", "--", "true")
	expectOutput(t, "the next after a forced break", out+errs, code, 0)
	holder.expectExit(t, "what was broken by force", 76)
	_, _, code = runCommand(t, store, "break", "forced")
	expectOutput(t, "a break of nothing", "", code, 1)

	out, errs, code = runCommand(t, "redis://boss:hunter3@"+server.Addr, "list")
	expectOutput(t, "a wrong password", out+errs, code, 69, "credentials")
	out, errs, code = runCommand(t, "redis://127.0.0.1:1", "run", "x", "--", "true")
	expectOutput(t, "no server", out+errs, code, 69, "127.0.0.1:1", "refused")
	out, errs, code = runCommand(t, "redis://u:hunter2@host/x", "list")
	expectOutput(t, "a wrong URL", out+errs, code, 64, "database")
}

// TestCommandLosesTheServer: if its server stops answering, a run ends its command before another client can acquire
// the lock, and exits 76. If the server forgot the lock, the run learns that by its next renewal.
func TestCommandLosesTheServer(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	server := startServer(t)
	store := "redis://" + server.Addr
	holder := startHolding(t, store, "flushed", "run", "--ttl", ttl.String(), "--grace", "200ms", "flushed", "--",
		"sleep", "600")
	start := time.Now()
	if _, err := server.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	holder.expectExit(t, "a forgotten lock", 76)
	t.Logf("the server forgot the lock: ended after %v of a TTL of %v", time.Since(start).Round(time.Millisecond), ttl)

	file := filepath.Join(t.TempDir(), "pid")
	holder = startHolding(t, store, "stopped", "run", "--ttl", ttl.String(), "--grace", "200ms", "stopped", "--", "sh",
		"-c", "echo $$ >"+file+"; exec sleep 600")
	pid := 0
	if err := redistest.Until(t.Context(), func() bool {
		text, _ := os.ReadFile(file) // the shell makes the file before it writes
		number, whole := strings.CutSuffix(string(text), "\n")
		pid, _ = strconv.Atoi(number)
		return whole && pid > 0
	}); err != nil {
		t.Fatal("the command does not start")
	}
	var machine pace.Pace
	defer machine.Watch()()
	start = time.Now()
	server.Signal(syscall.SIGSTOP)
	t.Cleanup(func() { server.Signal(syscall.SIGCONT) })
	if err := redistest.Until(t.Context(), func() bool { return syscall.Kill(pid, 0) != nil }); err != nil {
		t.Error("the command goes on running")
	}
	took, late := time.Since(start), machine.Worst(start)
	t.Logf("the server stopped: the command was ended after %v of a TTL of %v", took.Round(time.Millisecond), ttl)
	if took > ttl+500*time.Millisecond+10*late {
		t.Errorf("the command was ended after %v; the machine was late by %v", took, late)
	}
	holder.expectExit(t, "a stopped server", 76)
	t.Logf("and run has ended after %v", time.Since(start).Round(time.Millisecond))
}
