// Package clients tests the clients of holdfast serve in other languages.
package clients

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	_ "github.com/holdfast-go/holdfast/store/etcd"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	_ "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// The long run of make prove has more of everything.
var (
	each   = flag.Int("each", 2, "how many programs in each language count")
	turns  = flag.Int("turns", 5, "how often each of them counts")
	faults = flag.Bool("faults", false, "kill and stop servers meanwhile")
	onEtcd = flag.Bool("etcd", false, "count on etcd as well")
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

// server is a holdfast serve.
type server struct {
	listen string
	cmd    *exec.Cmd
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return "127.0.0.1:" + port
}

// start starts the server, and waits until it is ready. It ends with the test.
func (s *server) start(t *testing.T, c *clients, store string) {
	t.Helper()
	// Without the context of the test, which ends before the cleanup.
	s.cmd = exec.Command(c.holdfast, "serve", "--store", store, "--listen", s.listen)
	s.cmd.Stderr = os.Stderr
	if err := servertest.StartProcess(s.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if path, ok := strings.CutPrefix(s.listen, "unix:"); ok {
				return (&net.Dialer{}).DialContext(ctx, "unix", path)
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", s.listen)
		}}}
	for {
		answer, err := client.Get("http://localhost/readyz")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if t.Context().Err() != nil {
			t.Fatalf("the server does not answer: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// kill may be called again.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
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

// testSilence lets a program wait for a lock of a server whose machine is gone when it has sent one line.
func testSilence(t *testing.T, c *clients, language string) {
	const sent = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n" +
		`{"event":"waiting","hold":"h"}` + "\n"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		connection, err := l.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		_, _ = io.WriteString(connection, sent)
		_, _ = io.Copy(io.Discard, connection) // until the program closes it
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := c.command(ctx, language, "lost", l.Addr().String(), "10000").CombinedOutput()
	if ctx.Err() != nil || strings.Contains(string(out), "acquired") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestClients: programs in Python, TypeScript, Java and Go add to one number, through three servers and without one. No
// addition is lost, and each gets its turns. Each learns that its lock is lost: by an operator, by the death of its
// server, and by the silence of a server that was stopped. A program gives up its wait
// when the server sends nothing any more.
func TestClients(t *testing.T) {
	t.Parallel()
	c := prepareClients(t)
	t.Run("counter on redis", func(t *testing.T) {
		t.Parallel()
		testCounter(t, c, startRedis(t))
	})
	if *onEtcd {
		t.Run("counter on etcd", func(t *testing.T) {
			cluster, err := etcdtest.Start(t.Context(), etcdtest.Options{Direct: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			testCounter(t, c, "etcd://"+strings.Join(cluster.Endpoints(), ","))
		})
	}
	for _, language := range []string{"python", "node", "java"} {
		for what, lose := range losses {
			t.Run(language+" "+what, func(t *testing.T) {
				t.Parallel()
				testLoss(t, c, language, lose)
			})
		}
		if language != "python" { // its sockets have a timeout of their own, which is longer
			t.Run(language+" silence", func(t *testing.T) {
				t.Parallel()
				testSilence(t, c, language)
			})
		}
	}
}

func testCounter(t *testing.T, c *clients, store string) {
	file := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	ttl := 20 * time.Second
	if *faults {
		ttl = 5 * time.Second
	}
	servers := []*server{{listen: freeAddress(t)}, {listen: freeAddress(t)},
		{listen: "unix:" + filepath.Join(c.dir, t.Name()[len("TestClients/"):])}}
	for _, s := range servers {
		s.start(t, c, store)
	}
	var workers sync.WaitGroup
	for _, language := range []string{"python", "node", "java"} {
		for n := range *each {
			var addresses []string // each begins with another one
			for i := range servers {
				s := servers[(n+i)%len(servers)]
				if language != "java" || !strings.HasPrefix(s.listen, "unix:") { // Java's client has no unix sockets
					addresses = append(addresses, s.listen)
				}
			}
			workers.Go(func() {
				cmd := c.command(t.Context(), language, "worker", strings.Join(addresses, ","), file,
					strconv.Itoa(*turns),
					strconv.FormatInt(ttl.Milliseconds(), 10))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", language, err, out)
				}
			})
		}
	}
	client, err := holdfast.Open(t.Context(), store, &holdfast.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range *each {
		workers.Go(func() {
			mutex := client.Mutex("counter", &holdfast.LockOptions{Fair: true})
			for range *turns {
				err := mutex.Do(t.Context(), func(_ context.Context,
					l *holdfast.Lease) error {
					return addOne(file, l.Token())
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	disturb(t, c, store, servers, ttl, done)
	want := 4 * *each * *turns
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

// disturb kills a server now and then, and stops one for longer than the TTL, if the flag says so. It returns when the
// workers are done.
func disturb(t *testing.T, c *clients, store string, servers []*server, ttl time.Duration, done <-chan struct{}) {
	killed, stopped := 0, 0
	for turn := 0; ; turn++ {
		var due <-chan time.Time
		if *faults {
			due = time.After(3 * time.Second)
		}
		select {
		case <-done:
			t.Logf("%s: %d servers killed, %d stopped", t.Name(), killed, stopped)
			return
		case <-due:
		}
		s := servers[turn%len(servers)]
		if turn%2 == 0 {
			killed++
			s.kill()
			s.start(t, c, store)
			continue
		}
		stopped++
		_ = s.cmd.Process.Signal(syscall.SIGSTOP)
		select {
		case <-done: // by those who ask other servers
		case <-time.After(ttl + 2*time.Second):
		}
		_ = s.cmd.Process.Signal(syscall.SIGCONT)
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
var losses = map[string]func(t *testing.T, c *clients, s *server, store string) (answer func()){
	"broken": func(t *testing.T, c *clients, _ *server, store string) func() {
		out, err := exec.CommandContext(t.Context(), c.holdfast, "break", "--store", store, "lost").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return func() {}
	},
	"killed": func(_ *testing.T, _ *clients, s *server, _ string) func() {
		s.kill()
		return func() {}
	},
	"stopped": func(_ *testing.T, _ *clients, s *server, _ string) func() {
		_ = s.cmd.Process.Signal(syscall.SIGSTOP)
		return func() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }
	},
}

func testLoss(
	t *testing.T, c *clients, language string,
	lose func(*testing.T, *clients, *server, string) func(),
) {
	store := startRedis(t)
	s := &server{listen: freeAddress(t)}
	s.start(t, c, store)
	cmd := c.command(t.Context(), language, "lost", s.listen, "10000")
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
	answer := lose(t, c, s, store)
	expect("lost")
	answer()
	expect("not released")
}
