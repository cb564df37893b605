package s3_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
)

func TestHostileReplies(t *testing.T) {
	t.Parallel()
	storetest.HostileReplies(t, storetest.HTTPService{
		Handler: startServer(t),
		Open: func(t testing.TB, url string) driver.Store {
			store, err := s3.New(t.Context(), newClient(t, url), bucket, &s3.Options{WriteInterval: -1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			return store
		},
		RefuseCredentials: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>")
		},
	})
}
