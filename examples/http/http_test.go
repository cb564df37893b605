// Package clients tests the clients of holdfast serve in other languages.
package clients

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	_ "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// clients are the clients, ready to run: the command that runs a program of testdata, without its arguments.
type clients struct {
	dir      string // where their files are
	holdfast string // the command
}

// prepareClients compiles what must be compiled.
func prepareClients(t *testing.T) *clients {
	t.Helper()
	c := &clients{dir: t.TempDir()}
	c.holdfast = filepath.Join(c.dir, "holdfast")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	run("go", "build", "-o", c.holdfast, "github.com/holdfast-go/holdfast/cmd/holdfast")
	sources := filepath.Join(c.dir, "sources")
	if err := os.Mkdir(sources, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.py", "*.ts", "*.java", "testdata/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(filepath.Join(sources, filepath.Base(file)), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	const modules = "../../bin/typescript/node_modules"
	types, err := filepath.Abs(filepath.Join(modules, "@types"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sources, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(sources, name) }
	run("node", filepath.Join(modules, "typescript/bin/tsc"), "--strict", "--target", "es2022", "--module", "nodenext",
		"--moduleResolution", "nodenext", "--lib", "es2022,esnext.disposable,dom", "--types", "node", "--typeRoots", types,
		"--outDir", sources, in("worker.ts"), in("lost.ts"))
	run("javac", "-Xlint:all", "-Werror", "-d", sources, in("Holdfast.java"), in("Worker.java"), in("Loser.java"))
	return c
}

// command runs a program in one of the languages.
func (c *clients) command(ctx context.Context, language, program string, args ...string) *exec.Cmd {
	java := map[string]string{"worker": "Worker", "lost": "Loser"}[program]
	sources := filepath.Join(c.dir, "sources")
	argv := map[string][]string{
		"python": {"python3", filepath.Join(sources, program+".py")},
		"node":   {"node", filepath.Join(sources, program+".js")},
		"java":   {"java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", sources, java},
	}[language]
	return exec.CommandContext(ctx, argv[0], append(argv[1:], args...)...)
}

// startServe starts a server of HTTP. It returns its process, and its address.
func (c *clients) startServe(t *testing.T, store, listen string) (*exec.Cmd, string) {
	t.Helper()
	if listen == "" {
		port, err := servertest.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		listen = "127.0.0.1:" + port
	}
	// Without the context of the test, which ends before the cleanup.
	cmd := exec.Command(c.holdfast, "serve", "--store", store, "--listen", listen)
	cmd.Stderr = os.Stderr
	if err := servertest.StartProcess(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if path, ok := strings.CutPrefix(listen, "unix:"); ok {
				return (&net.Dialer{}).DialContext(ctx, "unix", path)
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", listen)
		}}}
	for {
		answer, err := client.Get("http://localhost/readyz")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return cmd, listen
			}
		}
		if t.Context().Err() != nil {
			t.Fatalf("the server does not answer: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func startRedis(t *testing.T) string {
	t.Helper()
	server, err := redistest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return "redis://" + server.Addr
}

// TestClients: programs in Python, TypeScript, Java and Go add to one number, through three servers and without one. No
// addition is lost, and each gets its turns. Each learns that its lock is lost: by an operator, by the death of its
// server, and by the silence of a server that was stopped.
func TestClients(t *testing.T) {
	t.Parallel()
	c := prepareClients(t)
	t.Run("counter", func(t *testing.T) {
		t.Parallel()
		testCounter(t, c)
	})
	for _, language := range []string{"python", "node", "java"} {
		for what, lose := range losses {
			t.Run(language+" "+what, func(t *testing.T) {
				t.Parallel()
				testLoss(t, c, language, lose)
			})
		}
	}
}

func testCounter(t *testing.T, c *clients) {
	const each, turns = 2, 5
	store := startRedis(t)
	file := filepath.Join(c.dir, "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, listen := range []string{"", "", "unix:" + filepath.Join(c.dir, "socket")} {
		_, address := c.startServe(t, store, listen)
		addresses = append(addresses, address)
	}
	var done sync.WaitGroup
	for i, language := range []string{"python", "node", "java"} {
		for n := range each {
			address := addresses[(i+n)%len(addresses)]
			if language == "java" {
				address = addresses[n%2] // Java's client has no unix sockets
			}
			done.Go(func() {
				cmd := c.command(t.Context(), language, "worker", address, file, strconv.Itoa(turns))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", language, err, out)
				}
			})
		}
	}
	client, err := holdfast.Open(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range each {
		done.Go(func() {
			for range turns {
				err := client.Mutex("counter", &holdfast.LockOptions{Fair: true}).Do(t.Context(), func(_ context.Context, l *holdfast.Lease) error {
					return addOne(file, l.Token())
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	const want = 4 * each * turns
	if text, err := os.ReadFile(file); err != nil || string(text) != strconv.Itoa(want) {
		t.Errorf("the number is %s, want %d (%v)", text, want, err)
	}
	text, err := os.ReadFile(file + ".tokens")
	if err != nil {
		t.Fatal(err)
	}
	var tokens []int64
	for line := range strings.FieldsSeq(string(text)) {
		n, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, n)
	}
	if len(tokens) != want || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != want {
		t.Errorf("the tokens do not rise: %v", tokens)
	}
}

// addOne does what the programs of testdata do.
func addOne(file string, token int64) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	tokens, err := os.OpenFile(file+".tokens", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(tokens, token)
	return errors.Join(err, tokens.Close(), os.WriteFile(file, []byte(strconv.Itoa(number+1)), 0o600))
}

// losses are the ways in which a program loses its lock. Each returns what lets the program's release have an answer.
var losses = map[string]func(t *testing.T, c *clients, server *exec.Cmd, store string) (answer func()){
	"broken": func(t *testing.T, c *clients, _ *exec.Cmd, store string) func() {
		out, err := exec.CommandContext(t.Context(), c.holdfast, "break", "--store", store, "lost").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return func() {}
	},
	"killed": func(_ *testing.T, _ *clients, server *exec.Cmd, _ string) func() {
		_ = server.Process.Kill()
		return func() {}
	},
	"stopped": func(_ *testing.T, _ *clients, server *exec.Cmd, _ string) func() {
		_ = server.Process.Signal(syscall.SIGSTOP)
		return func() { _ = server.Process.Signal(syscall.SIGCONT) }
	},
}

func testLoss(
	t *testing.T, c *clients, language string,
	lose func(*testing.T, *clients, *exec.Cmd, string) func(),
) {
	store := startRedis(t)
	server, address := c.startServe(t, store, "")
	cmd := c.command(t.Context(), language, "lost", address, "6000")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := servertest.StartProcess(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("it says %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
	}
	expect("acquired")
	answer := lose(t, c, server, store)
	expect("lost")
	answer()
	expect("not released")
}
