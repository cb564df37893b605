package s3test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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

// buildMinIO builds the server, if that was not done before, and returns the path of the binary. That takes minutes.
var buildMinIO = sync.OnceValues(func() (string, error) {
	return servertest.BuildTool(packagePath, "minio", "-ldflags=-s -w", "github.com/minio/minio")
})

// BuildMinIO builds the server, if that was not done before.
func BuildMinIO() error {
	_, err := buildMinIO()
	return err
}

// StartMinIO starts a server with these buckets. On its first call on a machine it builds the server.
func StartMinIO(buckets ...string) (*MinIO, error) { return startMinIO([]string{"data"}, buckets) }

// StartMinIOPools starts a server with some server pools, of four directories each.
func StartMinIOPools(pools int, buckets ...string) (*MinIO, error) {
	var folders []string
	for i := range pools {
		folders = append(folders, fmt.Sprintf("data/pool%d/{1...4}", i))
	}
	return startMinIO(folders, buckets)
}

// startMinIO starts a server that keeps its data in these folders.
func startMinIO(folders, buckets []string) (*MinIO, error) {
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
	args := []string{"env", "MINIO_ROOT_USER=" + AccessKey, "MINIO_ROOT_PASSWORD=" + SecretKey, "MINIO_UPDATE=off",
		"MINIO_BROWSER=off", "MINIO_CI_CD=on", program, "server", "--address", "127.0.0.1:" + port, "--quiet"}
	for _, f := range folders {
		args = append(args, filepath.Join(dir, f))
	}
	m := &MinIO{dir: dir, Server: &servertest.Server{Name: "minio", Endpoint: "127.0.0.1:" + port,
		Dir: filepath.Join(dir, "data"), Args: args}}
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

// StartAgain starts the server after it was killed, with the same data, and waits until it answers. Its page
// health/ready says so too early: before the server knows its disks, buckets and users.
func (m *MinIO) StartAgain() error {
	if err := m.Start(); err != nil {
		return err
	}
	for from := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		reply, err := http.Get(m.URL() + "/minio/health/cluster")
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
