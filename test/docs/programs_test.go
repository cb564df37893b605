package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPrograms: the Go programs in the documents compile unchanged, as programs of somebody else.
func TestPrograms(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```go\n(package main\n.*?)^```$")
	for _, file := range documents(t) {
		for i, m := range block.FindAllStringSubmatch(readDocument(t, file), -1) {
			name := fmt.Sprintf("%s/%d", strings.TrimPrefix(file, root+"/"), i+1)
			t.Run(name, func(t *testing.T) { vetProgram(t, m[1]) })
		}
	}
	if !block.MatchString(readDocument(t, root+"/README.md")) {
		t.Error("README.md has no Go program any more")
	}
}

// TestPieceOfProgram: the lines of Go with which README.md begins are those of its program.
func TestPieceOfProgram(t *testing.T) {
	var pieces []string
	for _, b := range documentBlocks(t, root+"/README.md") {
		if b.language == "go" {
			pieces = append(pieces, b.text)
		}
	}
	if len(pieces) != 2 {
		t.Fatalf("README.md has %d pieces of Go", len(pieces))
	}
	for line := range strings.Lines(pieces[0]) {
		if !strings.Contains(pieces[1], "\t"+strings.TrimSpace(line)+"\n") {
			t.Errorf("the program of README.md does not contain: %s", line)
		}
	}
}

// vetProgram compiles a program in a module of its own, which uses the modules of this checkout.
func vetProgram(t *testing.T, program string) {
	if out, err := goInModule(t, writeModule(t, program), "vet", "-mod=mod", ".").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// storeOfSomebodyElse is the file store by another name.
const storeOfSomebodyElse = `package mystore

import (
	"context"
	"net/url"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/file"
)

func init() {
	driver.Register("mystore", func(ctx context.Context, u *url.URL) (driver.Store, error) {
		return file.New(ctx, u.Path, nil)
	}, nil)
}
`

// writeModule makes a module with a program, which can import the modules of this checkout and example.com/mystore.
func writeModule(t *testing.T, program string) (dir string) {
	mod, sums := "module program\n\ngo 1.26.0\n", ""
	for _, pattern := range []string{".", "otel", "prometheus", "cmd/*", "store/*", "store/*/*"} {
		files, err := filepath.Glob(filepath.Join(root, pattern, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name, _, _ := strings.Cut(strings.TrimPrefix(readDocument(t, file), "module "), "\n")
			dir, err := filepath.Abs(filepath.Dir(file))
			if err != nil {
				t.Fatal(err)
			}
			mod += fmt.Sprintf("replace %s => %s\n", name, dir)
			sums += readDocument(t, filepath.Join(filepath.Dir(file), "go.sum"))
		}
	}
	mod += "replace example.com/mystore => ./mystore\n"
	dir = t.TempDir()
	for name, data := range map[string]string{
		"main.go": program, "go.mod": mod, "go.sum": sums,
		"mystore/mystore.go": storeOfSomebodyElse, "mystore/go.mod": "module example.com/mystore\n\ngo 1.26.0\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// goInModule makes a go command in a module of its own.
func goInModule(t *testing.T, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	return cmd
}

// makeCommand makes the command of docs/adding-a-store.md by the commands that it shows, in an empty directory next
// to the module of a store, and builds it. It returns the directory.
func makeCommand(t *testing.T, program string) (dir string) {
	commands := regexp.MustCompile("(?m)^(    mkdir mycommand\n(?:    .*\n)*)").
		FindStringSubmatch(readDocument(t, root+"/docs/adding-a-store.md"))
	if commands == nil {
		t.Fatal("docs/adding-a-store.md does not show how to make the command")
	}
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(writeModule(t, ""), "mystore")
	script := strings.NewReplacer("/path/to/mystore", store, "/path/to/checkout", checkout).Replace(commands[1])
	parent := t.TempDir()
	dir = filepath.Join(parent, "mycommand")
	for _, step := range []struct{ dir, script string }{
		{parent, script}, {dir, "cat >main.go && go build -o mine"},
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", step.script)
		cmd.Dir, cmd.Stdin = step.dir, strings.NewReader(program)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}

// TestCommandWithOwnStore: the program of docs/adding-a-store.md is the command with a store of somebody else: it
// runs a job under a lock there, with its guard, knows the command's version, and without package stores has only
// that one and what it imports.
func TestCommandWithOwnStore(t *testing.T) {
	program := regexp.MustCompile("(?ms)^```go\n(package main\n.*?)^```$").
		FindStringSubmatch(readDocument(t, root+"/docs/adding-a-store.md"))
	if program == nil {
		t.Fatal("docs/adding-a-store.md has no program")
	}
	withoutStores := regexp.MustCompile("(?m)^.*/cmd/holdfast/stores\".*\n").ReplaceAllString(program[1], "")
	dir := makeCommand(t, withoutStores)
	run := func(store string, args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "mine"), args...)
		cmd.Env = append(os.Environ(), "HOLDFAST_STORE="+store, "HOLDFAST_CONFIG=")
		out, _ := cmd.CombinedOutput()
		return string(out), shellCode(cmd.ProcessState)
	}
	store := "mystore://" + filepath.Join(dir, "locks")
	for _, want := range []struct {
		store, output string
		code          int
		args          []string
	}{
		{store, "holds mine\n", 7, []string{"run", "mine", "--", "sh", "-c", "echo holds $HOLDFAST_LOCK; exit 7"}},
		{store, "in example.com/mycommand (devel)", 0, []string{"version"}},
		{"redis://127.0.0.1:1", "unknown store redis://; known are file, mystore", 64, []string{"list"}},
	} {
		out, code := run(want.store, want.args...)
		if code != want.code || !strings.Contains(out, want.output) {
			t.Errorf("%v exits %d and prints %q; want %d and %q", want.args, code, out, want.code, want.output)
		}
	}
}
