package kubernetes_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// BenchmarkLocks, on an API server with an etcd that does not wait for its disk. The floor is the minimum that any lock
// has to do: it makes an object, whose resourceVersion is its token, and removes it.
func BenchmarkLocks(b *testing.B) {
	var cluster *kubernetestest.Cluster
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			var err error
			if cluster, err = kubernetestest.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(cluster.Close)
			config := filepath.Join(b.TempDir(), "config")
			if err := cluster.WriteKubeconfig(config, kubernetestest.AllowAll); err != nil {
				b.Fatal(err)
			}
			return "kubernetes://?kubeconfig=" + config
		},
		Requests: func(ctx context.Context) (int64, error) { // requests that have ended
			client, stop := cluster.Client(kubernetestest.AllowAll, nil, nil)
			defer stop()
			return requests.SumMetric(ctx, client, cluster.Address()+"/metrics", "apiserver_request_total")
		},
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(func(b testing.TB, _ string) benchtest.Cycle { return openBenchFloor(b, cluster) }),
			benchtest.Layout("leaderelection", "")}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

func openBenchFloor(b testing.TB, c *kubernetestest.Cluster) benchtest.Cycle {
	client, stop := c.Client(kubernetestest.AllowAll, nil, nil)
	b.Cleanup(stop)
	leases := c.Address() + "/apis/coordination.k8s.io/v1/namespaces/" + kubernetestest.Namespace + "/leases"
	send := func(ctx context.Context, method, url, body string) error {
		r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		reply, err := client.Do(r)
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		if text, _ := io.ReadAll(reply.Body); reply.StatusCode >= 300 {
			return fmt.Errorf("%s: %s", reply.Status, text)
		}
		return nil
	}
	return func(ctx context.Context, lock string) error {
		if err := send(ctx, http.MethodPost, leases, `{"metadata": {"name": "`+lock+`"}}`); err != nil {
			return err
		}
		return send(ctx, http.MethodDelete, leases+"/"+lock, "")
	}
}
