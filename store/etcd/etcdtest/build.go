package etcdtest

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

const packagePath = "github.com/holdfast-go/holdfast/store/etcd/etcdtest"

// Tool builds "etcd", "etcdctl" or "etcdutl" from the tools module beside this package, and returns the path of the binary. It
// is kept in the user's cache directory, and built again only when the tools module changes.
func Tool(name string) (string, error) { return tools[name]() }

var tools = map[string]func() (string, error){
	"etcd":    sync.OnceValues(func() (string, error) { return buildTool("etcd", "./etcd") }),
	"etcdctl": sync.OnceValues(func() (string, error) { return buildTool("etcdctl", "go.etcd.io/etcd/etcdctl/v3") }),
	"etcdutl": sync.OnceValues(func() (string, error) { return buildTool("etcdutl", "go.etcd.io/etcd/etcdutl/v3") }),
}

func buildTool(name, pkg string) (string, error) {
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
	c := exec.Command("go", "build", "-trimpath", "-o", fresh, pkg)
	c.Dir, c.Env = tools, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	return path, os.Rename(fresh, path)
}
