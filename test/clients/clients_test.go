// Package clients runs the cases of clients/cases with the packages of other languages: each language has an agent, a
// program that does what the steps say and answers with what it sees.
package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
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

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	_ "github.com/holdfast-go/holdfast/store/file"
	_ "github.com/holdfast-go/holdfast/store/postgres"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
	_ "github.com/holdfast-go/holdfast/store/redis"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// stepLimit is how long a step may take. Only a mistake makes one take so long.
const stepLimit = 2 * time.Minute

// testCase is a case of a file of clients/cases.
type testCase struct {
	Case      string   // what is promised
	Via       string   // what the agents call: "server", through a link that steps cut; "script"; otherwise an engine each
	Languages []string // which packages promise it; none is all
	Steps     []step
}

// step is one step: a command for an agent, with its arguments in With, or something that is done here.
type step struct {
	At     string         `yaml:"at"`    // the agent; it is started by its first step
	Do     string         `yaml:"do"`    // what to do
	Later  string         `yaml:"later"` // the answer is awaited by a step with this word as its await
	Await  string         `yaml:"await"`
	Forget string         `yaml:"forget"` // there is no answer to this word
	Error  string         `yaml:"error"`  // the class of the error that must be the answer
	Expect map[string]any `yaml:"expect"` // what the answer must have: see runner.check
	With   map[string]any `yaml:",inline"`
}

// workDir is for what is built.
var workDir string

// TestMain removes what was built. It is also the main function of holders in Go.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == holderArgument {
		os.Exit(runHolder(os.Args[2]))
	}
	dir, err := os.MkdirTemp("", "holdfast-clients-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workDir = dir
	code := m.Run()
	stopStores()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// kit is what the tests run.
type kit struct {
	root    string
	command string              // holdfast
	agents  map[string][]string // the command that starts an agent, by its language
}

// mustBuild builds the command and the agents, once for all tests.
func mustBuild(t testing.TB) *kit {
	t.Helper()
	k, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var built = sync.OnceValues(func() (*kit, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	k := &kit{root: root, command: filepath.Join(workDir, "holdfast")}
	node, err1 := compileTypeScript(root)
	java, err2 := compileJava(root)
	err3 := run(".", "go", "build", "-o", k.command, "github.com/holdfast-go/holdfast/cmd/holdfast")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	python := filepath.Join(root, "clients/python")
	in := []string{"env", "PYTHONPATH=" + filepath.Join(python, "src"), "PYTHONDONTWRITEBYTECODE=1", "python3",
		filepath.Join(python, "tests/agent.py")}
	k.agents = map[string][]string{"python": in, "asyncio": append(slices.Clone(in), "asyncio"), "node": {"node", node},
		"java": {"java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", java, "io.holdfast.Agent"}}
	return k, nil
})

// compileJava compiles the package and its agent.
func compileJava(root string) (classes string, err error) {
	source := filepath.Join(root, "clients/java")
	files, err := filepath.Glob(filepath.Join(source, "src/io/holdfast/*.java"))
	if err != nil {
		return "", err
	}
	classes = filepath.Join(workDir, "java")
	args := []string{"--release", "17", "-Xlint:all", "-Werror", "-d", classes, filepath.Join(source, "test/Agent.java")}
	return classes, run(source, "javac", append(args, files...)...)
}

// compileTypeScript compiles the package and its agent, as they are installed next to each other.
func compileTypeScript(root string) (agent string, err error) {
	modules := filepath.Join(root, "bin/typescript/node_modules")
	dir := filepath.Join(workDir, "node")
	installed := filepath.Join(dir, "node_modules/@holdfast/client")
	if err := os.MkdirAll(installed, 0o700); err != nil {
		return "", err
	}
	source := filepath.Join(root, "clients/typescript")
	tsc := []string{filepath.Join(modules, "typescript/bin/tsc"), "--typeRoots", filepath.Join(modules, "@types")}
	for _, step := range []func() error{
		func() error {
			return os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o600)
		},
		func() error { return run(source, "cp", "package.json", installed) },
		func() error { return run(source, "cp", "-r", "test", "tsconfig.json", dir) },
		func() error {
			return run(source, "node", append(slices.Clone(tsc), "--outDir", filepath.Join(installed, "dist"))...)
		},
		func() error {
			return run(filepath.Join(dir, "test"), "node", append(slices.Clone(tsc), "--outDir", filepath.Join(dir, "out"))...)
		},
	} {
		if err := step(); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "out/agent.js"), nil
}

// run runs a command, whose output is in the error.
func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// TestCases: the package of each language does what each case says. Each case is run on one store in each language, and
// on all stores in some; in the long run of make prove, on all stores in all languages.
func TestCases(t *testing.T) {
	t.Parallel()
	k := mustBuild(t)
	urlOf, err := startedStores()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(k.root, "clients/cases/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no cases: %v", err)
	}
	todo := make(chan func())
	var workers sync.WaitGroup
	for range 12 { // each case has some processes, which mostly wait
		workers.Go(func() {
			for do := range todo {
				do()
			}
		})
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		for i, c := range readCases(t, file) {
			for l, language := range slices.Sorted(maps.Keys(k.agents)) {
				if len(c.Languages) > 0 && !slices.Contains(c.Languages, language) {
					continue
				}
				for s, store := range slices.Sorted(maps.Keys(urlOf)) {
					if (i+l)%len(urlOf) != s && !*onAll {
						continue
					}
					todo <- func() {
						t.Run(strings.Join([]string{language, store, name, c.Case}, "/"), func(t *testing.T) {
							url := urlOf[store](t, fmt.Sprintf("%s_%s_%d", language, name, i))
							newRunner(t, k, language, url).run(c)
						})
					}
				}
			}
		}
	}
	close(todo)
	workers.Wait()
}

// stopStores stops the servers of stores, if they were started.
var stopStores = func() {}

// startedStores starts the servers of stores, once for all tests. What it returns makes the URL of a store for the case
// with a name.
var startedStores = sync.OnceValues(func() (map[string]func(t *testing.T, name string) string, error) {
	redis, err := redistest.Start()
	if err != nil {
		return nil, err
	}
	stopStores = redis.Stop
	postgres, err := pgtest.Start("max_connections=500")
	if err != nil {
		return nil, err
	}
	stopStores = func() {
		redis.Stop()
		postgres.Stop()
	}
	return map[string]func(*testing.T, string) string{
		"file":     func(t *testing.T, _ string) string { return "file://" + filepath.Join(t.TempDir(), "locks") },
		"postgres": func(_ *testing.T, name string) string { return postgres.URL("test") + "?create=true&table=" + name },
		"redis":    func(_ *testing.T, name string) string { return "redis://" + redis.Addr + "?prefix=" + name + "-" },
	}, nil
})

// TestPythonProcess: what the package for Python does when a process is forked or interrupted, and which command it
// starts.
func TestPythonProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "python3", "-W", "error", "tests/test_process.py")
	cmd.Dir = "../../clients/python"
	cmd.Env = append(os.Environ(), "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1", "HOLDFAST_BIN="+mustBuild(t).command)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// readCases reads a file of cases, strictly.
func readCases(t *testing.T, file string) (cases []testCase) {
	t.Helper()
	text, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	in := yaml.NewDecoder(text)
	in.KnownFields(true)
	if err := in.Decode(&cases); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return cases
}

// runner runs one case.
type runner struct {
	testing.TB
	command, store string
	argv           []string
	via, token     string // what the agents connect to, if it is not the store
	server         *agent // the server of a case with one
	link           *servertest.Link
	script         *script
	client         *holdfast.Client
	agents         map[string]*agent
	later          map[string]<-chan answer
	tokens         map[string]float64 // by label
	number         int
}

func newRunner(t testing.TB, k *kit, language, store string) *runner {
	return &runner{TB: t, command: k.command, argv: k.agents[language], store: store, agents: map[string]*agent{},
		later: map[string]<-chan answer{}, tokens: map[string]float64{}}
}

func (r *runner) run(c testCase) {
	client, err := holdfast.Open(r.Context(), r.store, nil)
	if err != nil {
		r.Fatal(err)
	}
	r.client = client
	r.Cleanup(func() { _ = client.Close() })
	switch c.Via {
	case "server":
		r.startServer()
	case "script":
		r.startScript()
	}
	for i, s := range c.Steps {
		r.number = i + 1
		r.do(s)
		if r.Failed() {
			return
		}
	}
	if len(r.later) > 0 {
		r.Errorf("nobody awaits %v", slices.Collect(maps.Keys(r.later)))
	}
}

// startServer starts a server that wants a token, behind a link.
func (r *runner) startServer() {
	r.token = "the token of the agents of this test"
	cmd := exec.Command(r.command, "serve", "--json", "--exit-with-stdin", "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "HOLDFAST_STORE="+r.store)
	r.server = r.start(cmd)
	if _, err := io.WriteString(r.server.in, r.token+"\n"); err != nil {
		r.Fatal(err)
	}
	var record struct{ Listen string }
	if err := json.Unmarshal(r.server.line(r), &record); err != nil {
		r.Fatal(err)
	}
	link, err := servertest.NewLink(strings.TrimPrefix(record.Listen, "http://"))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(link.Close)
	r.link, r.via = link, "http://"+link.Addr
}

// agent is a process that answers on its standard output.
type agent struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan []byte
	ended chan struct{}
	err   string // the file of its stderr

	mu      sync.Mutex
	waiting map[int]chan answer
	next    int
}

// answer is what an agent answers.
type answer map[string]any

func (r *runner) start(cmd *exec.Cmd) *agent {
	r.Helper()
	a := &agent{cmd: cmd, lines: make(chan []byte, 1), ended: make(chan struct{}), waiting: map[int]chan answer{}}
	errs, err := os.CreateTemp(r.TempDir(), "stderr")
	if err != nil {
		r.Fatal(err)
	}
	defer errs.Close()
	a.err, cmd.Stderr = errs.Name(), errs
	out, err1 := cmd.StdoutPipe()
	in, err2 := cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		r.Fatal(err)
	}
	a.in = in
	if err := servertest.StartProcess(cmd); err != nil {
		r.Fatal(err)
	}
	go func() {
		defer close(a.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var reply answer
			line := slices.Clone(lines.Bytes())
			if json.Unmarshal(line, &reply) == nil && reply["id"] != nil {
				a.deliver(reply)
			} else {
				a.lines <- line
			}
		}
		close(a.lines)
		_ = cmd.Wait()
	}()
	r.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Signal(syscall.SIGCONT)
		select {
		case <-a.ended:
		case <-time.After(stepLimit):
			r.Errorf("%v does not end", cmd.Args)
			_ = cmd.Process.Kill()
			<-a.ended
		}
		if r.Failed() {
			text, _ := os.ReadFile(a.err)
			r.Logf("%s", text)
		}
	})
	return a
}

func (a *agent) deliver(reply answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := int(reply["id"].(float64))
	if to := a.waiting[id]; to != nil {
		to <- reply
		delete(a.waiting, id)
	}
}

func (a *agent) line(r *runner) []byte {
	r.Helper()
	select {
	case line := <-a.lines:
		return line
	case <-time.After(stepLimit):
		r.Fatal("no line")
		return nil
	}
}

// agent is the agent with a name, which is started if it does not run yet.
func (r *runner) agent(name string) *agent {
	r.Helper()
	if a := r.agents[name]; a != nil {
		return a
	}
	url := r.via
	if url == "" {
		url = r.store
	}
	cmd := exec.Command(r.argv[0], append(slices.Clone(r.argv[1:]), url, r.token)...)
	cmd.Env = append(os.Environ(), "HOLDFAST_BIN="+r.command)
	a := r.start(cmd)
	r.agents[name] = a
	return a
}

// send sends a command. The channel gets the answer.
func (a *agent) send(r *runner, do string, with map[string]any) <-chan answer {
	r.Helper()
	reply := make(chan answer, 1)
	a.mu.Lock()
	a.next++
	id := a.next
	a.waiting[id] = reply
	a.mu.Unlock()
	command := map[string]any{"id": id, "do": do}
	maps.Copy(command, with)
	line, err := json.Marshal(command)
	if err == nil {
		_, err = a.in.Write(append(line, '\n'))
	}
	if err != nil {
		r.Fatal(err)
	}
	return reply
}

func (r *runner) fail(format string, args ...any) {
	r.Helper()
	r.Fatalf("step %d: %s", r.number, fmt.Sprintf(format, args...))
}

// do does one step.
func (r *runner) do(s step) {
	r.Helper()
	switch {
	case s.Await != "":
		reply := r.later[s.Await]
		if reply == nil {
			r.fail("nothing is to be awaited as %s", s.Await)
		}
		delete(r.later, s.Await)
		r.check(s, reply, nil)
	case s.Forget != "":
		delete(r.later, s.Forget)
	case s.At == "":
		r.doHere(s)
	case s.Later != "":
		r.later[s.Later] = r.agent(s.At).send(r, s.Do, s.With)
	default:
		if url, ok := s.With["url"].(string); ok {
			s.With = maps.Clone(s.With) // that of the case is for all languages
			s.With["url"] = r.fillAddress(url)
		}
		a := r.agent(s.At)
		r.check(s, a.send(r, s.Do, s.With), a)
	}
}

// fillAddress puts the address of a server into a URL: of the case's own one for SERVER, of one that speaks TLS for
// TLS, and of one that is not holdfast serve for OTHER.
func (r *runner) fillAddress(url string) string {
	r.Helper()
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.Config.ErrorLog = log.New(io.Discard, "", 0)
	switch {
	case strings.Contains(url, "SERVER"):
		return strings.ReplaceAll(url, "SERVER", r.link.Addr)
	case strings.Contains(url, "TLS"):
		other.StartTLS()
	case strings.Contains(url, "OTHER"):
		other.Start()
	default:
		return url
	}
	r.Cleanup(other.Close)
	return strings.NewReplacer("TLS", other.Listener.Addr().String(), "OTHER", other.Listener.Addr().String()).Replace(url)
}

// check waits for an answer, and compares it with what is expected: a value, "above LABEL" for a higher token than that
// of LABEL, or "has TEXT" for a text with it.
func (r *runner) check(s step, reply <-chan answer, a *agent) {
	r.Helper()
	var got answer
	var ended <-chan struct{}
	if a != nil {
		ended = a.ended
	}
	select {
	case got = <-reply:
	case <-ended:
		r.fail("the agent has ended")
	case <-time.After(stepLimit):
		r.fail("%s has no answer", s.Do)
	}
	failed, _ := got["error"].(string)
	if failed != s.Error {
		r.fail("%s: the error is %q, want %q: %v", s.Do, failed, s.Error, got)
	}
	for field, want := range s.Expect {
		if text, _ := want.(string); strings.HasPrefix(text, "above ") {
			if n, _ := got[field].(float64); n <= r.tokens[strings.TrimPrefix(text, "above ")] {
				r.fail("%s: the token %v does not grow", s.Do, n)
			}
			continue
		}
		if text, _ := want.(string); strings.HasPrefix(text, "has ") {
			if seen, _ := got[field].(string); !strings.Contains(seen, strings.TrimPrefix(text, "has ")) {
				r.fail("%s: %s is %q, which lacks %q", s.Do, field, seen, strings.TrimPrefix(text, "has "))
			}
			continue
		}
		wanted, err1 := json.Marshal(want)
		seen, err2 := json.Marshal(got[field])
		if errors.Join(err1, err2) != nil || string(seen) != string(wanted) {
			r.fail("%s: %s is %s, want %s: %v", s.Do, field, seen, wanted, got)
		}
	}
	if label, ok := s.With["as"].(string); ok && got["token"] != nil {
		r.tokens[label], _ = got["token"].(float64)
	}
}

// doHere does a step that is not for an agent.
func (r *runner) doHere(s step) {
	r.Helper()
	if r.script != nil && r.doScript(s) {
		return
	}
	name, _ := s.With["name"].(string)
	of, _ := s.With["of"].(string)
	ctx, cancel := context.WithTimeout(r.Context(), stepLimit)
	defer cancel()
	var err error
	switch s.Do {
	case "take": // which waits until it is free
		var lease *holdfast.Lease
		if lease, err = r.client.Mutex(name, nil).Lock(ctx); err == nil {
			err = lease.Release()
		}
	case "is-held":
		var lock holdfast.Lock
		if lock, err = r.client.Inspect(ctx, name); err == nil && len(lock.Holders) == 0 {
			r.fail("nobody holds %s", name)
		}
	case "break":
		var lock holdfast.Lock
		if lock, err = r.client.Inspect(ctx, name); err == nil && len(lock.Holders) == 0 {
			r.fail("nobody holds %s", name)
		} else if err == nil {
			err = r.client.Break(ctx, name, lock.Holders[0].Ref, holdfast.BreakGraceful, "")
		}
	case "await-waiters":
		want, _ := s.With["n"].(int)
		r.await(func() bool {
			lock, err := r.client.Inspect(ctx, name)
			return err == nil && len(lock.Waiters) == want
		})
	case "stop", "continue", "kill":
		err = r.agents[of].cmd.Process.Signal(signals[s.Do])
	case "stop-engine", "continue-engine", "kill-engine":
		err = syscall.Kill(r.engineOf(of), signals[strings.TrimSuffix(s.Do, "-engine")])
	case "has-no-engine":
		if pid := r.findEngine(of); pid != 0 {
			r.fail("the engine %d is still there", pid)
		}
	case "remove-socket":
		err = os.RemoveAll(filepath.Dir(r.socketOf(of)))
	case "cut":
		r.link.Cut()
	case "heal":
		r.link.Heal()
	case "reset":
		r.link.Reset()
	default:
		r.fail("nobody can do %q", s.Do)
	}
	if err != nil {
		r.fail("%s: %v", s.Do, err)
	}
}

var signals = map[string]syscall.Signal{"stop": syscall.SIGSTOP, "continue": syscall.SIGCONT, "kill": syscall.SIGKILL}

func (r *runner) await(is func() bool) {
	r.Helper()
	for end := time.Now().Add(stepLimit); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.fail("it does not become true")
		}
	}
}

// engineOf is the process of an agent's engine.
func (r *runner) engineOf(name string) int {
	r.Helper()
	pid := r.findEngine(name)
	if pid == 0 {
		r.fail("%s has no engine", name)
	}
	return pid
}

// socketOf is the socket on which an agent's engine listens.
func (r *runner) socketOf(name string) string {
	r.Helper()
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.engineOf(name)))
	if err != nil {
		r.Fatal(err)
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		r.Fatal(err)
	}
	for _, link := range open {
		inode, _ := os.Readlink(link) // such as socket:[123]; the lines end in the number and the path
		number := strings.Trim(inode, "socket:[]")
		for line := range strings.Lines(string(sockets)) {
			if f := strings.Fields(line); len(f) == 8 && f[6] == number && strings.HasPrefix(f[7], "/") {
				return f[7]
			}
		}
	}
	r.fail("%s has no engine that listens", name)
	return ""
}

// findEngine is the process of an agent's engine, or 0 if there is none.
func (r *runner) findEngine(name string) int {
	r.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.agents[name].cmd.Process.Pid))
	if err != nil {
		r.Fatal(err)
	}
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for pid := range strings.FieldsSeq(string(children)) {
			if line, _ := os.ReadFile("/proc/" + pid + "/cmdline"); strings.Contains(string(line), "--exit-with-stdin") {
				n, _ := strconv.Atoi(pid)
				return n
			}
		}
	}
	return 0
}
