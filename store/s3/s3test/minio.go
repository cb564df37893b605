package s3test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

const packagePath = "github.com/holdfast-go/holdfast/store/s3/s3test"

// startTime bounds how long a server may take to answer.
const startTime = time.Minute

// MinIO is a server in a process of its own.
type MinIO struct {
	*servertest.Server
	dir string
}

// buildMinIO builds the server from the tools module beside this package, and returns the path of the binary. That
// takes minutes. So it is kept in the user's cache directory, and built again only when the tools module changes.
var buildMinIO = sync.OnceValues(func() (string, error) {
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
	path := filepath.Join(dir, "minio-"+hex.EncodeToString(id[:6]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	c := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", fresh, "github.com/minio/minio")
	c.Dir, c.Env = tools, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building MinIO: %w\n%s", err, out)
	}
	return path, os.Rename(fresh, path)
})

// BuildMinIO builds the server, if that was not done before.
func BuildMinIO() error {
	_, err := buildMinIO()
	return err
}

// StartMinIO starts a server with these buckets. On its first call on a machine it builds the server.
func StartMinIO(buckets ...string) (*MinIO, error) {
	program, err := buildMinIO()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-minio-")
	if err != nil {
		return nil, err
	}
	port, err := servertest.FreePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	m := &MinIO{dir: dir, Server: &servertest.Server{Name: "minio", Endpoint: "127.0.0.1:" + port, Dir: data,
		Args: []string{"env", "MINIO_ROOT_USER=" + AccessKey, "MINIO_ROOT_PASSWORD=" + SecretKey, "MINIO_UPDATE=off",
			"MINIO_BROWSER=off", "MINIO_CI_CD=on", program, "server", data, "--address", "127.0.0.1:" + port,
			"--quiet"}}}
	err = m.StartAgain()
	for _, b := range buckets {
		if err == nil {
			_, err = NewClient(m.URL(), nil).CreateBucket(context.Background(), &sdk.CreateBucketInput{Bucket: &b})
		}
	}
	if err != nil {
		err = errors.Join(err, errors.New(m.LogTail()))
		m.Close()
		return nil, err
	}
	return m, nil
}

// URL is the address of the server.
func (m *MinIO) URL() string { return "http://" + m.Endpoint }

// StartAgain starts the server after it was killed, with the same data, and waits until it answers.
func (m *MinIO) StartAgain() error {
	if err := m.Start(); err != nil {
		return err
	}
	for from := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		reply, err := http.Get(m.URL() + "/minio/health/ready")
		if err == nil {
			reply.Body.Close()
			if reply.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(reply.Status)
		}
		if time.Since(from) > startTime || !m.Running() {
			return fmt.Errorf("MinIO does not get ready: %w", err)
		}
	}
}

// Close kills the server and removes its files.
func (m *MinIO) Close() {
	m.Kill()
	_ = os.RemoveAll(m.dir)
}
