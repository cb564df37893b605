package servertest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildTool builds a server, or another program that tests need, and returns the path of the binary. That can take
// minutes. So it is kept in the user's cache directory under its name, and built again only when its sources or its
// sums change.
//
// The tools module, which pins the versions, is the directory tools next to the package whose import path is given.
// args are what follows go build: flags, and the package to build.
func BuildTool(packagePath, name string, args ...string) (string, error) {
	here, err := exec.Command("go", "list", "-f", "{{.Dir}}", packagePath).Output()
	if err != nil {
		return "", fmt.Errorf("finding the tools module: %w", err)
	}
	tools := filepath.Join(filepath.Dir(strings.TrimSpace(string(here))), "tools")
	id, err := hashTools(tools)
	if err != nil {
		return "", err
	}
	return keepTool(name+"-"+id, func(path string) error {
		return goBuild(tools, path, append([]string{"-trimpath"}, args...), "GOWORK=off", "GOFLAGS=")
	})
}

// FindInstalled finds a file that scripts/setup has put below the folder bin of the checkout that the current
// directory is in.
func FindInstalled(file string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := here; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "bin", file)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("bin/%s is in no folder above %s: run scripts/setup servers", file, here)
}

// BuildCommit builds a program as it was at a commit of the repository that the current directory is in, and returns
// the path of the binary, which is kept as BuildTool keeps it. commit is a full hash. A clone without its whole
// history fetches the commit. env is added to the environment of the go command, and args are what follows go build.
func BuildCommit(commit, name string, env []string, args ...string) (string, error) {
	return keepTool(name+"-"+commit[:12], func(path string) error {
		dir, err := os.MkdirTemp("", "holdfast-commit-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := checkOut(commit, dir); err != nil {
			return err
		}
		return goBuild(dir, path, append([]string{"-buildvcs=false"}, args...), env...)
	})
}

// checkOut writes the files of a commit to a directory.
func checkOut(commit, dir string) error {
	root, err := git(".", "rev-parse", "--show-toplevel")
	if err != nil {
		return fmt.Errorf("commit %s is taken from a clone of the repository, which this is not: %w", commit, err)
	}
	if _, err := git(root, "cat-file", "-e", commit+"^{commit}"); err != nil {
		shallow, err := git(root, "rev-parse", "--is-shallow-repository")
		if err == nil && shallow == "true" {
			_, err = git(root, "fetch", "--quiet", "--depth=1", "origin", commit)
		}
		if _, missing := git(root, "cat-file", "-e", commit+"^{commit}"); missing != nil {
			return fmt.Errorf("this clone lacks commit %s: get its whole history with git fetch --unshallow (%w)", commit,
				cmp.Or(err, missing))
		}
	}
	archive := filepath.Join(dir, "commit.tar")
	if _, err := git(root, "archive", "--output="+archive, commit); err != nil {
		return err
	}
	if out, err := exec.Command("tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking commit %s: %w\n%s", commit, err, out)
	}
	return os.Remove(archive)
}

// git runs git in a directory, and returns what it prints.
func git(dir string, args ...string) (string, error) {
	c := exec.Command("git", args...)
	c.Dir = dir
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

// keepTool returns the path of a program in the user's cache directory, and builds it if it is not there.
func keepTool(file string, build func(path string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "holdfast-tools")
	path := filepath.Join(dir, file)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := build(fresh); err != nil {
		return "", fmt.Errorf("building %s: %w", file, err)
	}
	return path, os.Rename(fresh, path)
}

// goBuild runs go build in a directory.
func goBuild(dir, path string, args []string, env ...string) error {
	c := exec.Command("go", append([]string{"build", "-o", path}, args...)...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// hashTools returns a text that changes when a source file or the sums of a tools module change.
func hashTools(dir string) (string, error) {
	id := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" && d.Name() != "go.sum" {
			return err
		}
		data, err := os.ReadFile(path)
		id.Write(data)
		return err
	})
	return hex.EncodeToString(id.Sum(nil)[:6]), err
}
