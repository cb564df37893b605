package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net/url"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

func init() { driver.Register("kubernetes", openURL) }

// openURL opens kubernetes://[namespace][?options]. Without a namespace it is that of the configuration, or default. The
// cluster and the credentials are found as kubectl finds them: the files of KUBECONFIG, ~/.kube/config, or the service
// account of the pod. The options, of which those of Holdfast are named like the fields of Options:
//
//	kubeconfig=FILE  another file than those
//	context=C        another context than the current one
//	prefix=P         see Options.Prefix
//	layout=L         see Options.Layout
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	var file, contextName string
	var opts Options
	err := driverutil.ParseOptions(u, map[string]func(string) error{
		"kubeconfig": func(v string) error { file = v; return nil },
		"context":    func(v string) error { contextName = v; return nil },
		"prefix":     func(v string) error { opts.Prefix = v; return nil },
		"layout":     func(v string) error { opts.Layout = Layout(v); return nil },
	})
	if err != nil {
		return nil, err
	}
	if u.User != nil || u.Port() != "" || u.Path != "" && u.Path != "/" {
		return nil, fmt.Errorf("%w: the URL of a store on Kubernetes looks like kubernetes://namespace", driver.ErrInvalid)
	}
	a, err := findAccess(file, contextName)
	if err != nil {
		return nil, err
	}
	web, transport, err := a.newHTTPClient(driverutil.DialerOf(ctx))
	if err != nil {
		return nil, err
	}
	t, err := newTable(web, a.cluster.Server, cmp.Or(u.Host, a.namespace, "default"), &opts)
	if err != nil {
		return nil, err
	}
	t.onClose, t.insecure = transport.CloseIdleConnections, a.cluster.Insecure
	store, err := driverutil.OpenWithRetry(ctx, t.openStore)
	if err != nil {
		t.close()
	}
	return store, err
}
