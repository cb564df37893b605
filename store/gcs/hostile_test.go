package gcs_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// withToken adds an access token to each request, as Google's libraries do.
type withToken struct{ base *http.Transport }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer secret")
	return w.base.RoundTrip(r)
}

func (w withToken) CloseIdleConnections() { w.base.CloseIdleConnections() }

func TestHostileReplies(t *testing.T) {
	t.Parallel()
	storetest.HostileReplies(t, storetest.HTTPService{
		Handler: startServer(t),
		Open: func(t testing.TB, url string) driver.Store {
			web := &http.Client{Transport: withToken{&http.Transport{MaxIdleConnsPerHost: 64}}}
			t.Cleanup(web.CloseIdleConnections)
			store, err := gcs.New(t.Context(), web, bucket, &gcs.Options{Endpoint: url, WriteInterval: -1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			return store
		},
		RefuseCredentials: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"code":401,"message":"Invalid Credentials"}}`)
		},
	})
}
