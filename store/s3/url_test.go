package s3

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// TestURL: each option of the URL has its effect. Errors about a URL do not show its secrets.
func TestURL(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	u, err := url.Parse("s3://b/locks/a-?region=r&endpoint=http://h:1&path-style=false&layout=terraform&foreign-age=24h&" +
		"write-interval=0&profile=p")
	if err != nil {
		t.Fatal(err)
	}
	var s storeURL
	err = s.form().Read(u)
	o := s.opts
	if err != nil || o.Prefix != "locks/a-" || o.Layout != LayoutTerraform || o.ForeignAge != 24*time.Hour ||
		o.WriteInterval != -1 || s.endpoint != "http://h:1" || *s.pathStyle ||
		s.region != "r" || s.profile != "p" {
		t.Errorf("%+v, %v", &s, err)
	}
	for _, raw := range []string{"s3://u:s3cret@b", "s3:///prefix", "s3://b:1/", "s3://b?nope=s3cret",
		"s3://b?endpoint=s3cret",
		"s3://b?endpoint=http://u:s3cret@h", "s3://b?path-style=perhaps", "s3://b?region=r&layout=other",
		"s3://b?foreign-age=old",
		"s3://b?region=r&write-interval=1", "s3://b?region=r&foreign-age=1h", "s3://b"} {
		if _, err := driver.Open(t.Context(), raw); !errors.Is(err, driver.ErrInvalid) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	server := s3test.Start("b")
	t.Cleanup(server.Stop)
	// The bucket is in the path by default, since an endpoint is given.
	store := storetest.Open(t, "s3://b/locks/?endpoint="+url.QueryEscape(server.URL))
	storetest.Acquire(t, store, storetest.Mutex("m", time.Minute))
	if server.Get("b", "locks/m.json") == nil || store.Info().Store != "s3://b/locks/?endpoint="+server.URL {
		t.Errorf("%s, %q", store.Info().Store, server.Names("b"))
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	// With the bucket in the host's name, another host is asked for.
	var asked string
	dial := func(_ context.Context, _, address string) (net.Conn, error) {
		asked = address
		return nil, &net.OpError{Op: "dial", Err: errors.New("the test says so")}
	}
	_, err = driver.Open(driverutil.WithDialer(t.Context(), dial),
		"s3://bucket?path-style=false&endpoint=http://name:"+port)
	if err == nil || asked != "bucket.name:"+port || driverutil.IsFinal(err) {
		t.Errorf("asked for %q: %v", asked, err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("HOME", t.TempDir())
	if _, err := driver.Open(t.Context(), "s3://b?region=r"); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v", err)
	}
}
