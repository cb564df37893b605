package kubernetes_test

import (
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
			if layout == kubernetes.LayoutLeaderElection { // its waiters poll anyway, and its objects stay
				codes = nil
			}
			storetest.ExpectFindings(t, string(layout), mustOpen(t, c, kubernetestest.AllowVerbs(r.verbs...), opts), codes...)
		}
	}
}
