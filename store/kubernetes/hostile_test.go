package kubernetes_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

func TestHostileReplies(t *testing.T) {
	t.Parallel()
	m := startModel(t)
	storetest.HostileReplies(t, storetest.HTTPService{
		Handler: m.Config.Handler,
		Open: func(t testing.TB, url string) driver.Store {
			web, stop := m.Client(kubernetestest.AllowAll, nil, nil)
			t.Cleanup(stop)
			store, err := kubernetes.New(t.Context(), web, url, kubernetestest.Namespace, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			return store
		},
		RefuseCredentials: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized",`+
				`"reason":"Unauthorized","code":401}`)
		},
	})
}
