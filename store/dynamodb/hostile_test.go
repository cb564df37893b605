package dynamodb

import (
	"context"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

func TestHostileReplies(t *testing.T) {
	t.Parallel()
	table := newTableName()
	at, err := url.Parse(sharedServer(t).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	emulator := httputil.NewSingleHostReverseProxy(at)
	storetest.HostileReplies(t, storetest.HTTPService{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			emulator.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context()))) // it crashes when a client gives up
		}),
		Open: func(t testing.TB, endpoint string) driver.Store {
			return storetest.Open(t, urlOf(table, endpoint, ""))
		},
		RefuseCredentials: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"__type":"com.amazon.coral.service#ExpiredTokenException",`+
				`"message":"The security token included in the request is expired"}`)
		},
	})
}
