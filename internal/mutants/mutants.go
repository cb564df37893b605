// Command mutants switches off one safety rule of a store after another, by a change of a few words in its code, and
// demands that the test named beside it fails. The changed files are laid over the real ones for one build only.
//
//	go run ./internal/mutants [-run REGEXP] [-list]
//
// It runs in the folder of the repository. Each test must pass as the code is before it is run with a mutant, so that a
// test that cannot run at all, for want of a server, does not count. The rules of the engines that the simulation can
// see are in internal/sim.
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
)

// mutant is one rule switched off.
type mutant struct {
	name  string // the rule that is missing, in a few words; unique
	file  string // below the repository's root
	edits []edit
	more  []mutant // edits in further files
	pkg   string   // the folder of the test: ./store/postgres
	test  string   // the test that must fail; TestOuter/inner for one part of it
	want  string   // a regular expression in what the test says; "" for any failure
}

// edit replaces a text that stands in the file exactly once.
type edit struct{ old, new string }

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
	r := runner{root: root, passed: map[string]bool{}}
	caught, missed := 0, 0
	for _, m := range table {
		switch {
		case !wanted.MatchString(m.name) && !wanted.MatchString(m.pkg):
		case *list:
			fmt.Printf("%s: %s (%s)\n", m.pkg, m.name, m.test)
		default:
			if err := r.meet(m); err != nil {
				missed++
				fmt.Printf("MISSED  %s: %s: %v\n", m.pkg, m.name, err)
			} else {
				caught++
				fmt.Printf("caught  %s: %s (%s)\n", m.pkg, m.name, m.test)
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
	env    []string        // beside this process's own
	passed map[string]bool // tests, with their package, that pass as the code is
}

// meet returns nil if the mutant's test passes without the mutant and fails with it.
func (r *runner) meet(m mutant) error {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if key := m.pkg + " " + m.test; !r.passed[key] {
		out, ok, err := r.test(m, filepath.Join(dir, "as-it-is"))
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%s fails as the code is, and so proves nothing:\n%s", m.test, end(out))
		}
		r.passed[key] = true
	}
	overlay, err := m.overlay(r.root, dir)
	if err != nil {
		return err
	}
	out, ok, err := r.test(m, filepath.Join(dir, "mutant"), "-overlay", overlay)
	switch {
	case err != nil:
		return err
	case ok:
		return fmt.Errorf("%s passes all the same", m.test)
	case !bytes.Contains(out, []byte(strings.Split(m.test, "/")[0])):
		return fmt.Errorf("it failed, but not in %s:\n%s", m.test, end(out))
	case m.want != "" && !regexp.MustCompile(m.want).Match(out):
		return fmt.Errorf("%s failed, but does not say %q:\n%s", m.test, m.want, end(out))
	}
	return nil
}

// test builds the test's package and runs that test alone. It reports what it printed and whether it passed.
func (r *runner) test(m mutant, binary string, build ...string) ([]byte, bool, error) {
	args := append([]string{"test", "-c", "-o", binary}, append(build, m.pkg)...)
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = r.root, append(os.Environ(), r.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, false, fmt.Errorf("it does not build: %w\n%s", err, end(out))
	}
	var pattern []string
	for part := range strings.SplitSeq(m.test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd = exec.Command(binary, "-test.run", strings.Join(pattern, "/"), "-test.v", "-test.timeout", "5m")
	cmd.Dir = filepath.Join(r.root, m.pkg)
	cmd.Env = append(os.Environ(), r.env...)
	if len(build) > 0 { // for the programs that the test itself builds
		cmd.Env = append(cmd.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" "+strings.Join(build, "=")))
	}
	out, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(out, []byte("--- PASS: "+strings.Split(m.test, "/")[0])) {
		return nil, false, fmt.Errorf("there is no %s in %s, or it was skipped", m.test, m.pkg)
	}
	return out, err == nil, nil
}

// overlay puts changed copies of the mutant's files into dir, and returns the file that lays them over the real ones.
func (m mutant) overlay(root, dir string) (string, error) {
	replace := map[string]string{}
	for i, part := range append([]mutant{m}, m.more...) {
		text, err := part.apply(root)
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, fmt.Sprint(i, filepath.Base(part.file)))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, part.file)] = path
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, data, 0o600)
}

// apply is the changed text of the file. Each edit must fit once, so that no mutant can quietly become none.
func (m mutant) apply(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	text := string(data)
	if len(m.edits) == 0 {
		return "", fmt.Errorf("%s: no edits", m.file)
	}
	for _, e := range m.edits {
		if n := strings.Count(text, e.old); n != 1 || e.old == e.new {
			return "", fmt.Errorf("%s has %q %d times, and should have it once: the mutant must follow the code",
				m.file, e.old, n)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	return text, nil
}

// end is the last part of what a test has printed.
func end(out []byte) []byte { return out[max(0, len(out)-2000):] }
