package servertest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildTool builds a server, or another program that tests need, and returns the path of the binary. That can take
// minutes. So it is kept in the user's cache directory under its name, and built again only when its sources or its sums
// change.
//
// The tools module, which pins the versions, is the directory tools beside the package whose import path is given. args
// are what follows go build: flags, and the package to build.
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
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "holdfast-tools")
	path := filepath.Join(dir, name+"-"+id)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	c := exec.Command("go", append([]string{"build", "-trimpath", "-o", fresh}, args...)...)
	c.Dir, c.Env = tools, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	return path, os.Rename(fresh, path)
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
