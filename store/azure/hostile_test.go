package azure_test

import (
	"net/http"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/azure"
)

// TestHostileReplies: redirects, pages of proxies, halves of replies and credentials that are refused for a while.
func TestHostileReplies(t *testing.T) {
	t.Parallel()
	s := startService(t)
	storetest.HostileReplies(t, storetest.HTTPService{
		Handler: s,
		Open: func(t testing.TB, url string) driver.Store {
			store, err := azure.New(t.Context(), newWeb(t), url+"/devstoreaccount1/"+s.container, with(azure.Options{}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { store.Close() })
			return store
		},
		RefuseCredentials: func(w http.ResponseWriter) {
			w.Header().Set("X-Ms-Request-Id", "1")
			w.Header().Set("X-Ms-Version", "2021-12-02")
			w.Header().Set("X-Ms-Error-Code", "AuthenticationFailed")
			w.WriteHeader(http.StatusForbidden)
		},
	})
}

// TestRepliesOfOthers: a reply to another request, as of a cache, and one without the service's number are not
// believed.
func TestRepliesOfOthers(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]http.Header{
		"the reply to another request": {"X-Ms-Client-Request-Id": {"another"}},
		"a reply without a number":     {"X-Ms-Request-Id": {""}},
	} {
		s := startService(t)
		store := mustOpen(t, s, azure.Options{})
		held := acquire(t, store, mutexClaim("m", minute))
		spoiled := azureFate(spoil)
		s.Answer(write, spoiled)
		if r := renew(t, store, held); r.Err == nil {
			t.Errorf("%s: a renewal succeeds", what)
		}
		s.Answer(write, noFate)
		if r := renew(t, store, held); r.Err != nil {
			t.Errorf("%s: the next renewal: %v", what, r.Err)
		}
	}
}
