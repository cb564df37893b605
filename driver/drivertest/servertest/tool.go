package servertest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BuildTool builds a server, or another program that tests need, and returns the path of the binary. That can take
// minutes. So it is kept in the user's cache directory under its name, and built again only when its sums change.
//
// The tools module, which pins the versions, is the directory tools beside the package whose import path is given. args
// are what follows go build: flags, and the package to build.
func BuildTool(packagePath, name string, args ...string) (string, error) {
	here, err := exec.Command("go", "list", "-f", "{{.Dir}}", packagePath).Output()
	if err != nil {
		return "", fmt.Errorf("finding the tools module: %w", err)
	}
	tools := filepath.Join(filepath.Dir(strings.TrimSpace(string(here))), "tools")
	sum, err := os.ReadFile(filepath.Join(tools, "go.sum"))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	id := sha256.Sum256(sum)
	dir := filepath.Join(cache, "holdfast-tools")
	path := filepath.Join(dir, name+"-"+hex.EncodeToString(id[:6]))
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
