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

// vetProgram compiles a program in a module of its own, which uses the modules of this checkout.
func vetProgram(t *testing.T, program string) {
	mod, sums := "module program\n\ngo 1.26.0\n", ""
	for _, pattern := range []string{".", "otel", "prometheus", "store/*", "store/*/*"} {
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
	dir := t.TempDir()
	for name, data := range map[string]string{"main.go": program, "go.mod": mod, "go.sum": sums} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "vet", "-mod=mod", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
