package kubernetes_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestExamine: verbs that a role lacks are found, and nothing is found in a role that has all.
func TestExamine(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	for _, layout := range []kubernetes.Layout{kubernetes.LayoutRecord, kubernetes.LayoutLeaderElection} {
		opts := &kubernetes.Options{Layout: layout}
		for _, r := range []struct {
			verbs, codes []string
		}{
			{[]string{"get", "create", "update", "watch", "list", "delete"}, nil},
			{[]string{"get", "create", "update", "list", "delete"}, []string{"kubernetes-polls"}},
			{[]string{"get", "create", "update", "watch", "list"}, []string{"kubernetes-kept"}},
			{[]string{"get", "create", "update", "watch", "delete"}, []string{"kubernetes-kept"}},
			{[]string{"get", "create", "update"}, []string{"kubernetes-polls", "kubernetes-kept"}},
		} {
			codes := r.codes
			if layout == kubernetes.LayoutLeaderElection {
				codes = nil // its waiters poll, and its objects stay, in any role
			}
			storetest.ExpectFindings(t, string(layout), mustOpen(t, c, kubernetestest.AllowVerbs(r.verbs...), opts), codes...)
		}
	}
}

// TestExamineConnection: a connection to another machine that is not encrypted is found.
func TestExamineConnection(t *testing.T) {
	t.Parallel()
	m := startModel(t)
	web := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(m.Address(), "http://"))
	}}}
	t.Cleanup(web.CloseIdleConnections)
	web.Transport = kubernetestest.WithToken(web.Transport, kubernetestest.AllowAll)
	for address, codes := range map[string][]string{
		"http://api.example.com": {"kubernetes-plain"}, "http://127.0.0.1:8001": nil, "http://localhost:8001": nil,
	} {
		store, err := kubernetes.New(t.Context(), web, address, kubernetestest.Namespace, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		storetest.ExpectFindings(t, address, store, codes...)
	}
}
