package consul

import (
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

func TestHostileReplies(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	prefix := freshPrefix().Prefix
	storetest.HostileReplies(t, storetest.HTTPService{
		Handler: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.Config(c.Members[0]).Address}),
		Open: func(t testing.TB, address string) driver.Store {
			return storetest.Open(t, "consul://"+strings.TrimPrefix(address, "http://")+"?prefix="+url.QueryEscape(prefix))
		},
		RefuseCredentials: func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "Unauthorized")
		},
	})
}
