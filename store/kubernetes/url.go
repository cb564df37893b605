package kubernetes

import (
	"cmp"
	"context"
	"net/url"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("kubernetes", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says. The cluster and the credentials are found as kubectl finds them: the files of
// KUBECONFIG, ~/.kube/config, or the service account of the pod.
type storeURL struct {
	namespace, kubeconfig, context string
	opts                           Options
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape:       "kubernetes://[namespace]",
		Credentials: "use a kubeconfig, as for kubectl",
		Host:        &s.namespace,
		Options: []storeurl.Option{
			{Name: "kubeconfig", To: storeurl.File(&s.kubeconfig), Default: "as for kubectl", Means: "the file that describes " +
				"the cluster and has the credentials"},
			{Name: "context", To: storeurl.Text(&s.context), Default: "the current one", Means: "a context of that file"},
			storeurl.Prefix(&s.opts.Prefix, "the beginning of the objects' names",
				"`"+defaultPrefix+"`, and nothing with `leaderelection`"),
			storeurl.Layout(&s.opts.Layout, "`leaderelection` is that of client-go's leader election, for the mutex", layouts...),
		},
	}
}

// openURL opens a store by its URL.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	var s storeURL
	if err := s.form().Read(u); err != nil {
		return nil, err
	}
	a, err := findAccess(s.kubeconfig, s.context)
	if err != nil {
		return nil, err
	}
	web, transport, err := a.newHTTPClient(driverutil.DialerOf(ctx))
	if err != nil {
		return nil, err
	}
	t, err := newTable(web, a.cluster.Server, cmp.Or(s.namespace, a.namespace, "default"), &s.opts)
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
