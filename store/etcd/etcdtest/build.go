package etcdtest

import (
	"sync"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

const packagePath = "github.com/holdfast-go/holdfast/store/etcd/etcdtest"

// Tool builds "etcd", "etcdctl" or "etcdutl" from the tools module next to this package, and returns the path of the
// binary. It is kept in the user's cache directory, and built again only when the tools module changes.
func Tool(name string) (string, error) { return tools[name]() }

var tools = map[string]func() (string, error){
	"etcd":    sync.OnceValues(func() (string, error) { return buildTool("etcd", "./etcd") }),
	"etcdctl": sync.OnceValues(func() (string, error) { return buildTool("etcdctl", "go.etcd.io/etcd/etcdctl/v3") }),
	"etcdutl": sync.OnceValues(func() (string, error) { return buildTool("etcdutl", "go.etcd.io/etcd/etcdutl/v3") }),
}

func buildTool(name, pkg string) (string, error) { return servertest.BuildTool(packagePath, name, pkg) }
