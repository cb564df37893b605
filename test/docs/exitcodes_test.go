package docs

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// exitCase makes a subcommand exit with a code. It returns the code.
type exitCase func(t *testing.T, m machine) int

// callCase is an exitCase that runs one command line, as a shell would.
func callCase(line string) exitCase {
	return func(t *testing.T, m machine) int {
		code, out := m.run(t, "sh", "-c", line)
		t.Logf("%s", out)
		return code
	}
}

const (
	takeAndBreak = `h=$(holdfast acquire --ttl 1m lock); holdfast break --force lock; `
	request      = "holdfast request-release lock"
)

// exitCases have a case for each code and subcommand of docs/exit-codes.md.
var exitCases = map[string]exitCase{
	"1 break":           callCase("holdfast break free"),
	"1 request-release": callCase("holdfast request-release free"),
	"1 ledger show":     callCase("holdfast ledger show --result never"),
	"1 ledger retry":    callCase("holdfast ledger retry never"),
	"1 ledger forget":   callCase("holdfast ledger forget never"),
	"64 all":            nil, // see exitOfAll
	"69 all":            nil,
	"74 all":            nil,
	"75 run":            whileHeld("holdfast run -n lock true"),
	"75 hold":           whileHeld("holdfast hold -n lock"),
	"75 acquire":        whileHeld("holdfast acquire -n --ttl 1m lock"),
	"75 once":           whileRunning("holdfast once key true"),
	"75 ledger retry":   whileRunning("holdfast ledger retry key"),
	"75 ledger forget":  whileRunning("holdfast ledger forget key"),
	"76 run":            callCase("holdfast run --ttl 20s lock holdfast break --force lock"),
	"76 hold":           endOfHold("holdfast hold --json lock", "holdfast break --force lock"),
	"76 once":           callCase(`holdfast once --ttl 3s key sh -c 'rm -r locks; exec sleep 600'`),
	"76 renew":          callCase(takeAndBreak + `holdfast renew "$h"`),
	"76 release":        callCase(takeAndBreak + `holdfast release "$h"`),
	"77 once":           callCase("holdfast once --attempts 1 key false; holdfast once --attempts 1 key true"),
	"79 run":            callCase("holdfast run --on-request release lock sh -c '" + request + "; exec sleep 600'"),
	"79 hold":           endOfHold("holdfast hold --json --on-request release lock", request),
	"80 once": callCase(`holdfast once --every 87600h key sh -c 'echo >started; exec sleep 600' &
		until [ -e started ]; do sleep 0.02; done; holdfast once --every 3s key true; code=$?; kill $!; wait; exit $code`),
	"81 run":     superseded("run --newest-only lock true"),
	"81 hold":    superseded("hold --newest-only lock"),
	"81 acquire": superseded("acquire --newest-only --ttl 1m lock"),
	"126 run":    callCase("touch text; holdfast run lock ./text"),
	"126 once":   callCase("touch text; holdfast once key ./text"),
	"127 run":    callCase("holdfast run lock no-such-command"),
	"127 once":   callCase("holdfast once key no-such-command"),
	"128+n all":  nil,
}

// superseded makes a newer claim wait behind that of the subcommand.
func superseded(subcommand string) exitCase {
	return callCase(`await() { until holdfast show --json lock | jq -e "$1" >/dev/null; do sleep 0.1; done; }
holdfast run lock sleep 600 & holder=$!; await '.holders | length == 1'
holdfast ` + subcommand + ` & first=$!; await '.waiters | length == 1'
holdfast run --newest-only lock true & second=$!
wait $first; code=$?; kill $second $holder; wait; exit $code`)
}

// testedElsewhere are the codes that need more than a file store: a test of cmd/holdfast has each of them.
var testedElsewhere = map[string]string{
	"1 doctor":  "TestDoctor",
	"2 doctor":  "TestDoctor",
	"3 doctor":  "TestDoctorWithoutPermissions",
	"1 torture": "TestTortureStores",
	"2 torture": "TestTortureStores",
	"73 once":   "TestOnceNotRecorded",
}

// TestExitCodes: docs/exit-codes.md has each exit code of the program, and each subcommand exits with the codes that
// are there.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	documented, codes := map[string]bool{}, map[string]bool{}
	row := regexp.MustCompile(`(?m)^\| ([0-9]+(?:\+n)?) \| (.+?) \|`)
	name := regexp.MustCompile("`([a-z -]+)`")
	for _, m := range row.FindAllStringSubmatch(readDocument(t, root+"/docs/exit-codes.md"), -1) {
		codes[m[1]] = true
		if m[1] == "0" {
			continue // the other tests of documents are full of it
		}
		if strings.HasPrefix(m[2], "all") {
			documented[m[1]+" all"] = true
		}
		for _, n := range name.FindAllStringSubmatch(m[2], -1) {
			documented[m[1]+" "+n[1]] = true
		}
	}
	checkConstants(t, codes)
	sources, err := filepath.Glob(root + "/cmd/holdfast/cli/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := ""
	for _, file := range sources {
		tests += readDocument(t, file)
	}
	for pair := range documented {
		code, _, _ := strings.Cut(pair, " ")
		test, isElsewhere := testedElsewhere[pair]
		run, isHere := exitCases[pair]
		switch {
		case isElsewhere:
			if !strings.Contains(tests, "\nfunc "+test+"(") {
				t.Errorf("%s: cmd/holdfast has no %s", pair, test)
			}
		case !isHere:
			t.Errorf("%s: docs/exit-codes.md has this code, but no test", pair)
		case run == nil:
			t.Run(pair, func(t *testing.T) { t.Parallel(); exitOfAll(t, code) })
		default:
			t.Run(pair, func(t *testing.T) {
				t.Parallel()
				if got := strconv.Itoa(run(t, newMachine(t))); got != code {
					t.Errorf("exit code %s", got)
				}
			})
		}
	}
	for pair := range exitCases {
		if !documented[pair] {
			t.Errorf("%s: docs/exit-codes.md does not have this code of this subcommand", pair)
		}
	}
}

// checkConstants: the codes are those of the constants in cmd/holdfast whose names begin with "exit" or "Exit".
func checkConstants(t *testing.T, documented map[string]bool) {
	t.Helper()
	sources, err := filepath.Glob(root + "/cmd/holdfast/cli/*.go")
	if err != nil {
		t.Fatal(err)
	}
	sources = append(sources, root+"/cmd/holdfast/internal/failure/failure.go")
	found := 0
	for _, file := range sources {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !regexp.MustCompile(`^[eE]xit[A-Z]`).MatchString(spec.Names[0].Name) {
				return true
			}
			value, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || value.Kind != token.INT {
				return true
			}
			found++
			code := value.Value
			if code == "128" {
				code = "128+n"
			}
			if !documented[code] {
				t.Errorf("docs/exit-codes.md has no %s, which is %s in %s", code, spec.Names[0], filepath.Base(file))
			}
			return true
		})
	}
	if found < 12 {
		t.Errorf("cmd/holdfast has only %d constants of exit codes", found)
	}
}

// exitOfAll lets all subcommands exit with one code.
func exitOfAll(t *testing.T, code string) {
	const down = "--store file:///dev/null/locks"
	handle := `h=$(holdfast acquire --ttl 1m lock); `
	lines := map[string][]string{
		"69": {
			"acquire --store-wait 0 --ttl 1m " + down + " lock", "break " + down + " lock", "doctor --quick " + down,
			"explain " + down + " lock", "hold --store-wait 0 " + down + " lock", "list " + down,
			"once --store-wait 0 " + down + " key true", "request-release " + down + " lock",
			"run --store-wait 0 " + down + " lock true", "ledger " + down, "ledger show " + down + " key",
			"ledger retry " + down + " key", "ledger forget " + down + " key", "show " + down + " lock", "stores " + down,
			"token show " + down + " lock", "token floor --at-least 7 " + down + " lock", "torture " + down,
			"watch " + down + " lock",
		},
		"74": {
			"acquire --ttl 1m lock >/dev/full", "explain lock >/dev/full", "hold --json lock >/dev/full",
			"show lock >/dev/full", "stores >/dev/full", "version >/dev/full", "watch lock >/dev/full",
			"run lock true; holdfast token show lock >/dev/full",
			"run --ttl 1m lock holdfast list >/dev/full", "doctor --quick >/dev/full",
		},
		"128+n": {"run lock sh -c 'kill -TERM $$'", "once key sh -c 'kill -TERM $$'"},
	}
	want := code
	switch code {
	case "64":
		for subcommand := range subcommandFlags(t) {
			if subcommand == "man" || strings.HasPrefix(subcommand, "help ") {
				continue // these take any name
			}
			lines[code] = append(lines[code], subcommand+" --no-such-flag")
		}
	case "128+n":
		want = "143"
		for _, line := range []string{"hold lock", "run lock true", "acquire --ttl 1m lock"} {
			t.Run(line, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t)
				holder := start(t, m, "holdfast hold --json lock")
				if got := endWith(t, start(t, m, "holdfast "+line+" 2>&1"), syscall.SIGTERM); got != 143 {
					t.Errorf("exit code %d", got)
				}
				if got := endWith(t, holder, syscall.SIGTERM); got != 0 {
					t.Errorf("a holder exits %d when it is asked to end", got)
				}
			})
		}
	}
	for _, line := range lines[code] {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			if got, out := m.run(t, "sh", "-c", "holdfast "+line); strconv.Itoa(got) != want {
				t.Errorf("exit code %d: %s", got, out)
			}
		})
	}
	if code == "69" {
		for _, subcommand := range []string{"renew", "release"} {
			m := newMachine(t)
			line := handle + "holdfast " + subcommand + " " + down + ` "$h"`
			if got, out := m.run(t, "sh", "-c", line); got != 69 {
				t.Errorf("%s: exit code %d: %s", line, got, out)
			}
		}
	}
}

// process is a program that has printed its first line.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// start starts a shell command, and waits until it has printed one line.
func start(t *testing.T, m machine, line string) *process {
	t.Helper()
	cmd := exec.Command("sh", "-c", "exec "+line)
	cmd.Dir, cmd.Env, cmd.Stderr = m.dir, m.environ(t), os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("%s has printed nothing: %v", line, err)
	}
	return &process{cmd, stdin}
}

// endWith sends a signal, or only waits if there is none, and returns the exit code.
func endWith(t *testing.T, p *process, sig syscall.Signal) int {
	t.Helper()
	if sig != 0 {
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	_ = p.cmd.Wait()
	return shellCode(p.cmd.ProcessState)
}

// whileHeld runs a command line while another process holds the lock.
func whileHeld(line string) exitCase {
	return func(t *testing.T, m machine) int {
		start(t, m, "holdfast hold --json lock")
		return callCase(line)(t, m)
	}
}

// whileRunning runs a command line while a run of the key is in progress.
func whileRunning(line string) exitCase {
	return func(t *testing.T, m machine) int {
		p := start(t, m, "holdfast once key sh -c 'echo begun; read end'")
		code := callCase(line)(t, m)
		_ = p.stdin.Close()
		endWith(t, p, 0)
		return code
	}
}

// endOfHold ends a holder by another command line, and returns the holder's exit code.
func endOfHold(line, end string) exitCase {
	return func(t *testing.T, m machine) int {
		p := start(t, m, line)
		callCase(end)(t, m)
		return endWith(t, p, 0)
	}
}
