// Command mutants shows that tests can fail. It switches off one rule of the code at a time, by a change of a few
// words, and runs the test that is named for it, which must then fail. The changed files replace the real ones in one
// build only; no file of the repository is changed. The mutants stand next to the code, in a file mutants.txt per
// folder.
//
//	go run ./internal/mutants [-run REGEXP] [-list]
//
// It runs in the root of the repository. Each test must first pass without a mutant, so that a test that cannot run,
// because a server is missing, does not count. Rules that the simulation can check are in internal/sim instead.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/holdfast-go/holdfast/internal/mutants/mutantlist"
)

func main() {
	run := flag.String("run", "", "only mutants whose name or package matches this regular expression")
	list := flag.Bool("list", false, "name the mutants, and run none")
	flag.Parse()
	wanted, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	root, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	mutants, err := mutantlist.Read(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	r := runner{root: root, passed: map[string]bool{}}
	caught, missed := 0, 0
	for _, m := range mutants {
		switch {
		case !wanted.MatchString(m.Name) && !wanted.MatchString(m.Folder):
		case *list:
			fmt.Printf("%s: %s (%s)\n", m.Folder, m.Name, m.Test)
		default:
			if err := r.checkMutant(m); err != nil {
				missed++
				fmt.Printf("MISSED  %s: %s: %v\n", m.Folder, m.Name, err)
			} else {
				caught++
				fmt.Printf("caught  %s: %s (%s)\n", m.Folder, m.Name, m.Test)
			}
		}
	}
	if !*list {
		fmt.Printf("%d mutants caught, %d missed\n", caught, missed)
	}
	if missed > 0 {
		os.Exit(1)
	}
}

// runner builds tests and runs them.
type runner struct {
	root   string
	env    []string        // in addition to the environment of this process
	passed map[string]bool // tests, with their package, that pass without a mutant
}

// checkMutant returns nil if the mutant's test passes without the mutant and fails with it.
func (r *runner) checkMutant(m mutantlist.Mutant) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if key := m.Folder + " " + m.Test; !r.passed[key] {
		out, ok, err := r.runTest(m, filepath.Join(dir, "original"))
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%s fails without the mutant, so it proves nothing:\n%s", m.Test, lastPart(out))
		}
		r.passed[key] = true
	}
	overlay, err := writeOverlay(m, r.root, dir)
	if err != nil {
		return err
	}
	out, ok, err := r.runTest(m, filepath.Join(dir, "mutant"), "-overlay", overlay)
	switch {
	case err != nil:
		return err
	case ok:
		return fmt.Errorf("%s passes with the mutant", m.Test)
	case !bytes.Contains(out, []byte(strings.Split(m.Test, "/")[0])):
		return fmt.Errorf("it failed, but not in %s:\n%s", m.Test, lastPart(out))
	case m.Output != "" && !regexp.MustCompile(m.Output).Match(out):
		return fmt.Errorf("%s failed, but its output does not match %q:\n%s", m.Test, m.Output, lastPart(out))
	}
	return nil
}

// runTest builds the test's package and runs only that test. It returns its output and whether it passed.
func (r *runner) runTest(m mutantlist.Mutant, binary string, build ...string) ([]byte, bool, error) {
	args := append([]string{"test", "-c", "-o", binary}, append(build, "./"+m.Folder)...)
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = r.root, append(os.Environ(), r.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, false, fmt.Errorf("the test does not build: %w\n%s", err, lastPart(out))
	}
	var pattern []string
	for part := range strings.SplitSeq(m.Test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd = exec.Command(binary, "-test.run", strings.Join(pattern, "/"), "-test.v", "-test.timeout", "5m")
	cmd.Dir = filepath.Join(r.root, m.Folder)
	cmd.Env = append(os.Environ(), r.env...)
	if len(build) > 0 { // the test may build programs itself
		cmd.Env = append(cmd.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" "+strings.Join(build, "=")))
	}
	out, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(out, []byte("--- PASS: "+strings.Split(m.Test, "/")[0])) {
		return nil, false, fmt.Errorf("there is no %s in %s, or it was skipped", m.Test, m.Folder)
	}
	return out, err == nil, nil
}

// writeOverlay writes changed copies of the mutant's files to dir, and returns a file for go build -overlay.
func writeOverlay(m mutantlist.Mutant, root, dir string) (string, error) {
	replace := map[string]string{}
	for i, f := range m.Files {
		text, err := changeText(root, f)
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, fmt.Sprint(i, filepath.Base(f.Name)))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, f.Name)] = path
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, data, 0o600)
}

// changeText returns the changed text of a file. Each edit must match exactly once, so that no mutant silently changes
// nothing.
func changeText(root string, f mutantlist.File) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, f.Name))
	if err != nil {
		return "", err
	}
	text := string(data)
	for _, e := range f.Edits {
		if n := strings.Count(text, e.Old); n != 1 || e.Old == e.New {
			return "", fmt.Errorf("%s has %q %d times, and should have it once: the mutant must follow the code",
				f.Name, e.Old, n)
		}
		text = strings.Replace(text, e.Old, e.New, 1)
	}
	return text, nil
}

// lastPart returns the last part of a test's output.
func lastPart(out []byte) []byte { return out[max(0, len(out)-2000):] }
