package natstest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

const packagePath = "github.com/holdfast-go/holdfast/store/nats/natstest"

// Tool builds the server from the tools module beside this package, and returns the path of the binary. It is kept in
// the user's cache directory, and built again only when the tools module changes.
var Tool = sync.OnceValues(func() (string, error) {
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
	path := filepath.Join(dir, "nats-server-"+hex.EncodeToString(id[:6]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	c := exec.Command("go", "build", "-trimpath", "-o", fresh, "./nats-server")
	c.Dir, c.Env = tools, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the NATS server: %w\n%s", err, out)
	}
	return path, os.Rename(fresh, path)
})
