package gcs

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
)

// TestEmptyReply: a reply without content says that an object was removed only if its status says that there is none.
func TestEmptyReply(t *testing.T) {
	t.Parallel()
	for status, done := range map[int]bool{http.StatusOK: false, http.StatusNoContent: true} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(s.Close)
		c := &bucketClient{endpoint: s.URL, bucket: "bucket", http: httpclient.New(s.Client(),
			httpclient.Service{Name: "Cloud Storage", IsOwn: isOwnReply})}
		if err := c.deleteObject(t.Context(), "x", conditions{generation: 5}); (err == nil) != done {
			t.Errorf("status %d: %v", status, err)
		}
	}
}
