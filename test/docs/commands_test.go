package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// notRun are the first words of shown command lines that no test here runs, and why. The rest of a document runs
// without them.
var notRun = map[string]string{
	"docker":    "needs a Docker daemon; scripts/dist-test tries the image",
	"kubectl":   "needs a cluster; the commands of the manifests are run",
	"systemctl": "needs systemd as pid 1; the units are verified, and their commands are run",
	"make":      "the target must exist; .ci/run runs most of them",
	"git":       "changes or pushes this checkout; scripts/release has a rehearsal",
	"go":        "needs a release, or a module of the reader's; scripts/release has a rehearsal",
	"sudo":      "installs packages; scripts/dist-test does so in a root of its own",
	"install":   "needs root and a group",
	"tar":       "unpacks a release that does not exist yet; scripts/dist-test does so",
	"sha256sum": "checks a release that does not exist yet; scripts/dist-test does so",

	"scripts/release":  "changes this checkout; it has a rehearsal",
	"holdfast torture": "takes minutes; cmd/holdfast has tests of it",
	"holdfast release": "needs a handle; the blocks of sh run it",
	"holdfast token":   "needs a store that has served others; cmd/holdfast has tests of it",
	"journalctl":       "needs the journal of systemd",
	"schtasks":         "is a program of Windows; the command in it was run under Wine",
}

var (
	storeLine  = regexp.MustCompile(`(?m)^export HOLDFAST_STORE=.*$`)
	doctorLine = regexp.MustCompile(`(?m)^holdfast doctor\b`)
)

// TestShellBlocks: the blocks of sh in each document run as they are written there, in the order of the document, with
// a store and a directory of their own. Only the names of stores and programs of other machines are replaced.
func TestShellBlocks(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, file := range documents(t) {
		script := ""
		for _, b := range documentBlocks(t, file) {
			if b.language == "sh" {
				script += b.text
			}
		}
		if script == "" {
			continue
		}
		ran++
		t.Run(documentName(t, file), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			script := strings.ReplaceAll(script, "/opt/", "./")
			script = storeLine.ReplaceAllString(script, "")
			// doctor may find fault with the directories of this machine.
			script = doctorLine.ReplaceAllString(script, "holdfast doctor || [ $$? -le 3 ]")
			if code, out := m.run(t, "bash", "-euo", "pipefail", "-c", script); code != 0 {
				t.Errorf("exit code %d:\n%s\n%s", code, script, out)
			}
		})
	}
	if ran < 8 {
		t.Errorf("only %d documents have blocks of sh", ran)
	}
}

// TestShownCommands: the command lines that documents show in indented blocks, crontabs, units, manifests, pipelines
// and images run, on a store and with a command of the test's in the place of those that are named there.
func TestShownCommands(t *testing.T) {
	t.Parallel()
	flags := subcommandFlags(t)
	left := map[string]int{}
	ran := 0
	for _, file := range documents(t) {
		for _, b := range documentBlocks(t, file) {
			for _, line := range shownCommands(t, file, b) {
				where := fmt.Sprintf("%s:%d: %s", documentName(t, file), b.line, line)
				words := shellWords(line)
				if len(words) == 0 {
					continue
				}
				if words[0] == "make" {
					checkTarget(t, where, words)
				}
				if words[0] != "holdfast" {
					if notRun[words[0]] == "" {
						t.Errorf("%s: no test runs this; make it a block of sh, or say in notRun why not", where)
					}
					left[words[0]]++
					continue
				}
				call := parseCall(t, where, flags, words[1:])
				first, _, _ := strings.Cut(call.subcommand, " ")
				if notRun["holdfast "+first] != "" {
					left["holdfast "+first]++
					continue
				}
				ran++
				m := newMachine(t) // so that no line waits for the lock of another one
				if code, out := m.run(t, append([]string{holdfastProgram(t)}, call.standIn(m)...)...); code != 0 {
					t.Errorf("%s: exit code %d:\n%s", where, code, out)
				}
			}
		}
	}
	t.Logf("%d command lines were run; not run were %v", ran, left)
	for word := range notRun {
		if left[word] == 0 {
			t.Errorf("notRun has %q, which no document shows", word)
		}
	}
	if ran < 20 {
		t.Errorf("only %d command lines were run", ran)
	}
}

// TestNamedCommands: the subcommands and flags of all commands that are named in sentences and tables exist.
func TestNamedCommands(t *testing.T) {
	t.Parallel()
	flags := subcommandFlags(t)
	checked := 0
	for _, file := range documents(t) {
		if documentName(t, file) == "CHANGELOG.md" {
			continue // it may name what was removed
		}
		number, fenced := 0, false
		for line := range strings.Lines(readDocument(t, file)) {
			number++
			if fence.MatchString(strings.TrimRight(line, "\n")) {
				fenced = !fenced
			}
			if fenced {
				continue
			}
			for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
				where := fmt.Sprintf("%s:%d: %s", documentName(t, file), number, m[1])
				if words := shellWords(m[1]); len(words) > 1 && words[0] == "holdfast" && m[1] != "holdfast command" {
					parseCall(t, where, flags, words[1:])
					checked++
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d commands are named", checked)
	}
}

// machine is a directory with programs that the documents name, and an environment in which nothing but the store is
// set.
type machine struct{ dir string }

func newMachine(t *testing.T) machine {
	t.Helper()
	m := machine{dir: t.TempDir()}
	// A process that is started meanwhile would inherit a program open for writing, with which it cannot be run.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for _, name := range []string{"report.sh", "ship.sh", "job.sh", "export.sh"} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte("#!/bin/sh\necho ran\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m machine) store() string { return "file://" + filepath.Join(m.dir, "locks") }

// environ is the environment of a job of cron, and the store.
func (m machine) environ(t *testing.T) []string {
	return []string{"HOME=" + m.dir, "SHELL=/bin/sh", "TMPDIR=" + m.dir, "HOLDFAST_STORE=" + m.store(),
		"PATH=" + filepath.Dir(holdfastProgram(t)) + ":/usr/local/bin:/usr/bin:/bin"}
}

// run runs a program to its end, which comes within minutes, and returns the exit code that a shell shows, and the
// output.
func (m machine) run(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	environ := m.environ(t) // the first call builds the program
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = m.dir, environ
	data, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return shellCode(cmd.ProcessState), string(data)
}

// shellCode is the exit code that a shell shows.
func shellCode(p *os.ProcessState) int {
	if status, ok := p.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.ExitCode()
}

var buildHoldfast = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "holdfast-docs-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "holdfast")
	cmd := exec.Command("go", "build", "-o", program, "github.com/holdfast-go/holdfast/cmd/holdfast")
	cmd.Dir = filepath.Join(root, "cmd", "holdfast")
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w: %s", err, out)
	}
	return program, nil
})

// TestMain removes the program that the tests have built.
func TestMain(m *testing.M) {
	code := m.Run()
	if program, err := buildHoldfast(); err == nil {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

// holdfastProgram is the path of the command, built once.
func holdfastProgram(t *testing.T) string {
	t.Helper()
	program, err := buildHoldfast()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// shownCommands are the command lines in a block of code, other than a block of sh.
func shownCommands(t *testing.T, file string, b codeBlock) (commands []string) {
	t.Helper()
	switch b.language {
	case "":
		return indentedCommands(b.text)
	case "yaml":
		return yamlCommands(t, file, b)
	case "ini":
		return unitCommands(t, file, b)
	case "dockerfile":
		return imageCommands(t, file, b)
	case "sh", "go", "json", "sql", "text": // other tests check these; text is output
		return nil
	}
	t.Errorf("%s:%d: no test checks code of the language %q", file, b.line, b.language)
	return nil
}

var (
	crontabLine = regexp.MustCompile(`^(?:[0-9*/,-]+ +){5}(.*)$`)
	assignment  = regexp.MustCompile(`^(export )?[A-Za-z_]+=\S`)
)

// indentedCommands are the command lines of an indented block. It is one of commands or of a crontab if its first line
// is; others show files, programs and messages.
func indentedCommands(text string) (commands []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	isCommands := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if m := crontabLine.FindStringSubmatch(line); m != nil {
			line = m[1]
		}
		if assignment.MatchString(line) {
			continue // TestDocumentedURLs checks the URL
		}
		word, _, _ := strings.Cut(line, " ")
		if word == "holdfast" || notRun[word] != "" {
			isCommands = true
		}
		if isCommands {
			commands = append(commands, strings.Split(line, " && ")...)
		}
	}
	return commands
}

// shellWords splits a command line as a shell does, without replacing anything. It ends at a comment.
func shellWords(line string) (words []string) {
	word, inWord, quote := "", false, rune(0)
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == '#' && !inWord:
			return words
		case r == ' ' || r == '\t' || r == '\n':
			if inWord {
				words = append(words, word)
			}
			word, inWord = "", false
		default:
			word, inWord = word+string(r), true
		}
	}
	return words
}

// call is a command line of holdfast.
type call struct {
	subcommand string   // such as "run" or "ledger show"
	flags      []string // with their values
	names      []string // of locks, keys or handles
	hasCommand bool     // the names are followed by a command
}

// flagSet tells of each flag of a subcommand, such as --ttl or -n, whether a value follows it.
type flagSet map[string]bool

// parseCall reads a command line, and reports what does not exist.
func parseCall(t *testing.T, where string, known map[string]flagSet, words []string) (c call) {
	t.Helper()
	for len(words) > 0 {
		longer := strings.TrimSpace(c.subcommand + " " + words[0])
		if _, ok := known[longer]; !ok {
			break
		}
		c.subcommand, words = longer, words[1:]
	}
	flags, ok := known[c.subcommand]
	if !ok || c.subcommand == "" && len(words) > 0 && !strings.HasPrefix(words[0], "-") && words[0] != "help" {
		t.Errorf("%s: there is no such subcommand", where)
		return c
	}
	runsCommand := c.subcommand == "run" || c.subcommand == "once"
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "--":
			c.hasCommand = true
			return c
		case word == "...", word == "|", word == ">":
			return c
		case strings.HasPrefix(word, "-"):
			name, _, hasValue := strings.Cut(word, "=")
			takesValue, ok := flags[name]
			if !ok {
				t.Errorf("%s: %s has no flag %s", where, c.subcommand, name)
			}
			c.flags = append(c.flags, word)
			if takesValue && !hasValue && len(words) > 0 {
				c.flags, words = append(c.flags, words[0]), words[1:]
			}
		case runsCommand && len(c.names) == 1:
			c.hasCommand = true
			return c
		default:
			c.names = append(c.names, word)
		}
	}
	return c
}

// standIn are the arguments of the call with the test's store in the place of the shown one, and with the command true.
func (c call) standIn(m machine) []string {
	args := strings.Fields(c.subcommand)
	flags := slices.Clone(c.flags)
	for i := range flags {
		switch {
		case i > 0 && flags[i-1] == "--store":
			flags[i] = m.store()
		case i > 0 && flags[i-1] == "--metrics-file":
			flags[i] = filepath.Join(m.dir, filepath.Base(flags[i]))
		}
	}
	args = append(append(args, flags...), c.names...)
	if c.hasCommand {
		args = append(args, "--", "true")
	}
	return args
}

var (
	helpSubcommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]+) +[A-Z]`)
	helpFlag       = regexp.MustCompile(`(?m)^ +(?:(-[A-Za-z]), )?(--[a-z-]+)( \S+)?(?:  |$)`)
)

var help struct {
	sync.Mutex
	known map[string]flagSet
}

// subcommandFlags reads the help of each subcommand, once.
func subcommandFlags(t *testing.T) map[string]flagSet {
	t.Helper()
	help.Lock()
	defer help.Unlock()
	if help.known == nil {
		help.known = readHelp(t)
	}
	return help.known
}

func readHelp(t *testing.T) map[string]flagSet {
	t.Helper()
	m := newMachine(t)
	known := map[string]flagSet{}
	var read func(subcommand string)
	read = func(subcommand string) {
		code, help := m.run(t, append(append([]string{holdfastProgram(t)}, strings.Fields(subcommand)...), "--help")...)
		if code != 0 {
			t.Fatalf("holdfast %s --help: exit code %d: %s", subcommand, code, help)
		}
		flags := flagSet{}
		for _, f := range helpFlag.FindAllStringSubmatch(help, -1) {
			takesValue := f[3] != "" && !strings.Contains(f[3], "[=")
			flags[f[1]], flags[f[2]] = takesValue, takesValue
		}
		delete(flags, "")
		known[subcommand] = flags
		_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for _, s := range helpSubcommand.FindAllStringSubmatch(list, -1) {
			if s[1] != "help" {
				read(strings.TrimSpace(subcommand + " " + s[1]))
			}
		}
	}
	read("")
	for _, subcommand := range []string{"man", "help", "help configuration", "help run-details"} { // not in the list
		known[subcommand] = flagSet{}
	}
	if len(known) < 20 {
		t.Fatalf("the help has only %d subcommands", len(known))
	}
	return known
}

// checkTarget: make has the targets that a document names.
func checkTarget(t *testing.T, where string, words []string) {
	t.Helper()
	makefile := readDocument(t, root+"/Makefile")
	for _, target := range words[1:] {
		pattern := `(?m)^(\.PHONY: .*|EXAMPLES = .*)\b` + regexp.QuoteMeta(target) + `\b`
		if !regexp.MustCompile(pattern).MatchString(makefile) {
			t.Errorf("%s: Makefile has no target %s", where, target)
		}
	}
}
