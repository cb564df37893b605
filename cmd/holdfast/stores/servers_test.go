package stores_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/store/azure/azuretest"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// scratch is a directory of these tests, which TestMain removes.
var scratch string

// ledgerName is the ledger of the tests. A table of plain workers has one only.
const ledgerName = "stores"

// servers are the servers of all stores, which the tests share.
var servers struct {
	sync.Mutex
	started map[string]func() (urlOf, error) // by store
	stops   []func()
}

// urlOf returns the URL of a store for a layout; "" is the one without an option. Each layout has locks of its own.
type urlOf func(layout string) string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		os.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
		os.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
		var err error
		if scratch, err = os.MkdirTemp("", "holdfast-stores-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		defer func() {
			for _, stop := range servers.stops {
				stop()
			}
		}()
		return m.Run()
	}())
}

// start starts the server of a store, unless another test has done so.
func start(t *testing.T, store string) urlOf {
	t.Helper()
	servers.Lock()
	if servers.started == nil {
		servers.started = map[string]func() (urlOf, error){}
	}
	if servers.started[store] == nil {
		servers.started[store] = sync.OnceValues(func() (urlOf, error) {
			of, stop, err := startServer(store)
			if stop != nil {
				servers.Lock()
				defer servers.Unlock()
				servers.stops = append(servers.stops, stop)
			}
			return of, err
		})
	}
	started := servers.started[store]
	servers.Unlock()
	of, err := started()
	if err != nil {
		t.Fatal(err)
	}
	return of
}

// startServer starts the server of a store. stop may be nil.
func startServer(store string) (of urlOf, stop func(), err error) {
	ctx := context.Background()
	at := func(base string, more ...string) urlOf {
		return func(layout string) string {
			options := more
			if layout != "" {
				options = append([]string{"layout=" + layout}, more...)
			}
			return base + "?" + strings.Join(options, "&")
		}
	}
	switch store {
	case "file":
		return at("file://" + filepath.Join(scratch, "file")), nil, nil
	case "memory":
		return at("memory://stores"), nil, nil
	case "redis":
		s, err := redistest.Start()
		if err != nil {
			return nil, nil, err
		}
		return at("redis://" + s.Addr), s.Stop, nil
	case "redlock":
		g, err := redistest.Independent(3)
		if err != nil {
			return nil, nil, err
		}
		return at("redlock://" + strings.Join(g.Addrs(), ",")), g.Stop, nil
	case "etcd":
		c, err := etcdtest.Start(ctx, etcdtest.Options{Members: 1})
		if err != nil {
			return nil, nil, err
		}
		return at("etcd://" + c.Endpoints()[0]), c.Close, nil
	case "zookeeper":
		e, err := zktest.Start(ctx, zktest.Options{Members: 1})
		if err != nil {
			return nil, nil, err
		}
		return func(layout string) string {
			return at("zookeeper://"+e.Endpoints()[0], "namespace="+folder(layout))(layout)
		}, e.Close, nil
	case "consul":
		c, err := consultest.Start(ctx, consultest.Options{Dev: true})
		if err != nil {
			return nil, nil, err
		}
		return at(c.URL()), c.Close, nil
	case "postgres":
		s, err := pgtest.Start()
		if err != nil {
			return nil, nil, err
		}
		return at(s.URL("test"), "sslmode=disable", "create=true"), s.Stop, nil
	case "mysql":
		s, err := mysqltest.Start()
		if err != nil {
			return nil, nil, err
		}
		return at(s.URL(), "create=true"), s.Close, nil
	case "nats":
		c, err := natstest.Start(ctx, natstest.Options{})
		if err != nil {
			return nil, nil, err
		}
		return at(c.URL("stores"), "create=true"), c.Close, nil
	case "dynamodb":
		s, err := dynamodbtest.Start(ctx)
		if err != nil {
			return nil, nil, err
		}
		return func(layout string) string {
			more := []string{"region=eu-central-1", "create=true", "endpoint=" + url.QueryEscape(s.Endpoint)}
			if layout == "ledger" {
				more = append(more, "ledger-name="+ledgerName)
			}
			return at("dynamodb://"+folder(layout)+"-table", more...)(layout)
		}, func() { s.Stop() }, nil
	case "s3":
		s := s3test.Start("locks")
		return at("s3://locks", "region=us-east-1", "endpoint="+url.QueryEscape(s.URL)), s.Stop, nil
	case "minio": // it has no layout but one
		s, err := s3test.StartMinIO("locks")
		if err != nil {
			return nil, nil, err
		}
		return at("s3://locks", "region=us-east-1", "endpoint="+url.QueryEscape(s.URL())), s.Close, nil
	case "gcs":
		s := gcstest.Start("locks")
		return func(layout string) string {
			return at("gcs://locks/"+folder(layout), "anonymous=true", "write-interval=1ms",
				"endpoint="+url.QueryEscape(s.URL))(layout)
		}, s.Stop, nil
	case "azure":
		s, err := azuretest.Start(ctx, "locks")
		if err != nil {
			return nil, nil, err
		}
		key := filepath.Join(scratch, "azure-key")
		return func(layout string) string {
			return at("azure://"+azuretest.Account+"/locks", "prefix="+folder(layout)+"/", "key-file="+key,
				"endpoint="+url.QueryEscape(s.Direct))(layout)
		}, func() { s.Stop() }, os.WriteFile(key, []byte(azuretest.Key), 0o600)
	case "kubernetes":
		c, err := kubernetestest.Start()
		if err != nil {
			return nil, nil, err
		}
		config := filepath.Join(scratch, "kubeconfig")
		return at("kubernetes://", "kubeconfig="+config), c.Close, c.WriteKubeconfig(config, kubernetestest.AllowAll)
	}
	return nil, nil, fmt.Errorf("nobody can start %q", store)
}

// folder is where a layout keeps its locks, apart from those of the others.
func folder(layout string) string { return "l" + layout }
