// Releasemodules prepares the go.mod and go.sum files of a release. It runs in the top directory of a clone, and
// changes its files; scripts/release makes the clone.
//
//	releasemodules tags VERSION           prints the released modules, each after those that it requires: path and tag
//	releasemodules require VERSION        all our modules require each other at VERSION
//	releasemodules publish VERSION DIR    our released modules no longer replace each other, which go.work does
//	                                      instead; DIR becomes a file proxy that serves them at VERSION
//
// In development each go.mod file replaces our other modules by their directories. The go command refuses to install a
// command whose go.mod file replaces anything, and ignores the replacements of other modules. So publish takes them
// out. Each module's go.sum file then needs the checksums of our modules that it requires, which are those that any
// proxy computes from the tags: a checksum covers the names and contents of the files, and neither dates nor the
// commit.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "releasemodules:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	repo, err := readRepo()
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "tags":
		return repo.printTags(os.Stdout, args[1])
	case len(args) == 2 && args[0] == "require":
		return repo.require(args[1])
	case len(args) == 3 && args[0] == "publish":
		return repo.publish(args[1], args[2])
	}
	return errors.New("the arguments are tags VERSION, require VERSION, or publish VERSION DIR")
}

// ourModule is one go.mod file of the clone.
type ourModule struct {
	dir  string // in the clone, with slashes; "" for the top directory
	file *modfile.File
}

// repo has the modules of the clone by their paths.
type repo map[string]*ourModule

// readRepo reads all go.mod files that git knows.
func readRepo() (repo, error) {
	out, err := runGit("ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	r := repo{}
	for name := range strings.FieldsSeq(out) {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, data, nil)
		if err != nil {
			return nil, err
		}
		dir := strings.TrimSuffix(strings.TrimSuffix(name, "go.mod"), "/")
		r[file.Module.Mod.Path] = &ourModule{dir: dir, file: file}
	}
	return r, nil
}

// isReleased reports whether strangers can require the module. Examples, tests and tools are for those with a checkout,
// and what is internal is for nobody else.
func (m *ourModule) isReleased() bool {
	folders := strings.Split(m.dir, "/")
	return folders[0] != "examples" && folders[0] != "test" && !slices.Contains(folders, "tools") &&
		!slices.Contains(folders, "internal")
}

// write writes the go.mod file back.
func (m *ourModule) write() error {
	m.file.Cleanup()
	data, err := m.file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.dir, "go.mod"), data, 0o644)
}

// released lists the released modules: each after those that it requires.
func (r repo) released() ([]*ourModule, error) {
	var order []*ourModule
	var add func(m *ourModule, above []*ourModule) error
	add = func(m *ourModule, above []*ourModule) error {
		switch {
		case slices.Contains(above, m):
			return fmt.Errorf("%s requires itself", m.file.Module.Mod.Path)
		case slices.Contains(order, m):
			return nil
		}
		for _, req := range m.file.Require {
			needed, ours := r[req.Mod.Path]
			if !ours {
				continue
			}
			if !needed.isReleased() {
				return fmt.Errorf("%s requires %s, which is not released", m.file.Module.Mod.Path, req.Mod.Path)
			}
			if err := add(needed, append(above, m)); err != nil {
				return err
			}
		}
		order = append(order, m)
		return nil
	}
	for _, p := range slices.Sorted(maps.Keys(r)) {
		if r[p].isReleased() {
			if err := add(r[p], nil); err != nil {
				return nil, err
			}
		}
	}
	return order, nil
}

func (r repo) printTags(w io.Writer, version string) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	order, err := r.released()
	if err != nil {
		return err
	}
	for _, m := range order {
		if _, err := fmt.Fprintln(w, m.file.Module.Mod.Path, path.Join(m.dir, version)); err != nil {
			return err
		}
	}
	return nil
}

// require also writes the modules that are not released: their go.mod files would not be tidy otherwise, because the
// modules that they replace require the new version.
func (r repo) require(version string) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	for _, m := range r {
		for _, req := range m.file.Require {
			if _, ours := r[req.Mod.Path]; !ours {
				continue
			}
			if semver.Compare(req.Mod.Version, version) > 0 {
				return fmt.Errorf("%s requires %s already, which is later than %s",
					m.file.Module.Mod.Path, req.Mod, version)
			}
			if err := m.file.AddRequire(req.Mod.Path, version); err != nil {
				return err
			}
		}
		if err := m.write(); err != nil {
			return err
		}
	}
	return nil
}

func (r repo) publish(version, proxy string) error {
	if err := checkVersion(version); err != nil {
		return err
	}
	order, err := r.released()
	if err != nil {
		return err
	}
	top, err := os.Getwd()
	if err != nil {
		return err
	}
	// Before the first zip file, because the top module has go.work in it.
	if err := replaceInWorkspace(order, version); err != nil {
		return err
	}
	sums := map[string][]string{} // the lines of go.sum files for each of our modules, by its path
	for _, m := range order {
		modulePath := m.file.Module.Mod.Path
		if err := r.dropReplaces(m); err != nil {
			return err
		}
		var lines []string
		for _, req := range m.file.Require {
			if _, ours := r[req.Mod.Path]; !ours {
				continue
			}
			if req.Mod.Version != version {
				return fmt.Errorf("%s requires %s, not %s", modulePath, req.Mod, version)
			}
			lines = append(lines, sums[req.Mod.Path]...)
		}
		if err := m.write(); err != nil {
			return err
		}
		if err := r.replaceSums(filepath.Join(m.dir, "go.sum"), lines); err != nil {
			return err
		}
		// As the go command does it, the zip file is made from what git has: .gitignore and .gitattributes count.
		if _, err := runGit("add", "--all"); err != nil {
			return err
		}
		tree, err := runGit("write-tree")
		if err != nil {
			return err
		}
		v := module.Version{Path: modulePath, Version: version}
		sums[modulePath], err = writeProxy(proxy, v, func(w io.Writer) error {
			return zip.CreateFromVCS(w, v, top, strings.TrimSpace(tree), m.dir)
		}, filepath.Join(m.dir, "go.mod"))
		if err != nil {
			return err
		}
	}
	return nil
}

// replaceInWorkspace lets go.work do what the go.mod files no longer do: otherwise a checkout of the release could be
// built only when the release has been published. The go command does not read go.work in modules that it downloads.
func replaceInWorkspace(order []*ourModule, version string) error {
	data, err := os.ReadFile("go.work")
	if err != nil {
		return err
	}
	work, err := modfile.ParseWork("go.work", data, nil)
	if err != nil {
		return err
	}
	for _, m := range order {
		if err := work.AddReplace(m.file.Module.Mod.Path, version, "./"+m.dir, ""); err != nil {
			return err
		}
	}
	work.Cleanup()
	return os.WriteFile("go.work", modfile.Format(work.Syntax), 0o644)
}

// dropReplaces takes out the replacements of our own modules. There must be no others.
func (r repo) dropReplaces(m *ourModule) error {
	for _, rep := range slices.Clone(m.file.Replace) {
		if _, ours := r[rep.Old.Path]; !ours {
			return fmt.Errorf("%s replaces %s: no user of the module would get that",
				m.file.Module.Mod.Path, rep.Old.Path)
		}
		if err := m.file.DropReplace(rep.Old.Path, rep.Old.Version); err != nil {
			return err
		}
	}
	return nil
}

// replaceSums replaces the lines of our modules in a go.sum file by others, in the order of the go command. A
// checkout of a release has lines of that release.
func (r repo) replaceSums(name string, lines []string) error {
	data, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	hashes := map[module.Version]string{}
	add := func(line string) error {
		f := strings.Fields(line)
		if len(f) != 3 {
			return fmt.Errorf("%s: no line of a go.sum file: %q", name, line)
		}
		hashes[module.Version{Path: f[0], Version: f[1]}] = f[2]
		return nil
	}
	for line := range strings.Lines(string(data)) {
		if err := add(line); err != nil {
			return err
		}
	}
	maps.DeleteFunc(hashes, func(v module.Version, _ string) bool { return r[v.Path] != nil })
	for _, line := range lines {
		if err := add(line); err != nil {
			return err
		}
	}
	if len(hashes) == 0 {
		return nil
	}
	order := slices.Collect(maps.Keys(hashes))
	module.Sort(order)
	var b strings.Builder
	for _, v := range order {
		fmt.Fprintln(&b, v.Path, v.Version, hashes[v])
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}

// writeProxy writes the files by which a file proxy serves a version of a module, and returns its lines of go.sum
// files.
func writeProxy(proxy string, v module.Version, writeZip func(io.Writer) error, goMod string) ([]string, error) {
	escaped, err := module.EscapePath(v.Path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	if err := writeZip(&archive); err != nil {
		return nil, err
	}
	mod, err := os.ReadFile(goMod)
	if err != nil {
		return nil, err
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, v.Version, time.Now().UTC().Format(time.RFC3339))
	for name, data := range map[string][]byte{
		v.Version + ".zip":  archive.Bytes(),
		v.Version + ".mod":  mod,
		v.Version + ".info": []byte(info),
		"list":              []byte(v.Version + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return nil, err
		}
	}
	zipSum, err := dirhash.HashZip(filepath.Join(dir, v.Version+".zip"), dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	modSum, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(mod)), nil
	})
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("%s %s %s\n", v.Path, v.Version, zipSum),
		fmt.Sprintf("%s %s/go.mod %s\n", v.Path, v.Version, modSum),
	}, nil
}

// checkVersion accepts what the go command takes as the version of a module of ours: v0 or v1, with all three numbers.
func checkVersion(version string) error {
	if semver.Canonical(version) != version || semver.Compare(version, "v2.0.0-0") >= 0 {
		return fmt.Errorf("%q is no version of ours; it has the form v0.1.0", version)
	}
	return nil
}

// runGit runs git in the clone, and returns what it prints.
func runGit(args ...string) (string, error) {
	var errs strings.Builder
	cmd := exec.Command("git", args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, errs.String())
	}
	return string(out), nil
}
