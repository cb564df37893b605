package consultest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// The server's module, and the checksum of its files.
const (
	module  = "github.com/hashicorp/consul"
	version = "v1.21.0"
	sum     = "h1:YdrBKpOkRe1nyOl1hUONAAvabD5p9kLnQZ1I/GRP4dQ="
)

// Tool builds the program consul from its Go module, and returns its path. The program is kept in the user's cache
// directory. Building it takes some minutes of processor time and 3 GB of disk for the Go caches.
var Tool = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	path := filepath.Join(cache, "holdfast-tools", "consul-"+version)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "holdfast-consul-build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := build(dir, filepath.Join(dir, "consul")); err != nil {
		return "", fmt.Errorf("building consul: %w", err)
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid()) // in the same file system as path
	if out, err := exec.Command("cp", filepath.Join(dir, "consul"), fresh).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, os.Rename(fresh, path)
})

// build builds the program in a module of its own, which requires the server's module and what that requires. The go
// command does not build the module itself, because its go.mod file replaces other modules by directories that are not
// in it.
func build(dir, path string) error {
	run := func(args ...string) ([]byte, error) {
		c := exec.Command("go", args...)
		c.Dir, c.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "CGO_ENABLED=0")
		out, err := c.Output()
		if exit, ok := err.(*exec.ExitError); ok {
			err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, exit.Stderr)
		}
		return out, err
	}
	text, err := run("mod", "download", "-json", module+"@"+version)
	if err != nil {
		return err
	}
	var source struct{ Dir, Sum string }
	if err := json.Unmarshal(text, &source); err != nil {
		return err
	}
	if source.Sum != sum {
		return fmt.Errorf("%s@%s has the checksum %s, not %s", module, version, source.Sum, sum)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(source.Dir, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	edits := []string{"mod", "edit", "-module=consul.invalid/build", "-require=" + module + "@" + version}
	for _, part := range []string{"api", "envoyextensions", "proto-public", "sdk", "troubleshoot"} {
		edits = append(edits, "-dropreplace="+module+"/"+part)
	}
	if _, err := run(edits...); err != nil {
		return err
	}
	_, err = run("build", "-trimpath", "-ldflags=-s -w", "-o", path, module)
	return err
}
