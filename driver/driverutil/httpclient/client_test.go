package httpclient_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
)

// sdkClient is like the clients of the AWS SDK, which follow redirects that keep the method.
type sdkClient struct{ client *http.Client }

func (sdkClient) GetTransport() *http.Transport                { return &http.Transport{DisableKeepAlives: true} }
func (sdkClient) GetTimeout() time.Duration                    { return time.Minute }
func (c sdkClient) Do(r *http.Request) (*http.Response, error) { return c.client.Do(r) }

// onlyDo hides what a client is.
type onlyDo struct{ httpclient.Doer }

// TestRedirects: a redirect is an error that names where it points, without secrets, and nothing is sent there. Until
// the service has worked, it says that the address is wrong.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var redirects bool
	elsewhere := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/login":
			elsewhere++
		case redirects:
			http.Redirect(w, r, "/login?token=s3cret", http.StatusTemporaryRedirect)
		}
	}))
	t.Cleanup(s.Close)
	// Not the default client: the end of another test's server would close a connection of it.
	client := s.Client()
	for what, doer := range map[string]httpclient.Doer{"a plain client": client, "one of the SDK": sdkClient{client},
		"another": onlyDo{client}} {
		c := httpclient.New(doer, service())
		for _, works := range []bool{false, true} {
			if redirects = false; works {
				mustDo(t, c, s.URL)
			}
			redirects, elsewhere = true, 0
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("x"))
			_, err := c.Do(r)
			if err == nil || !strings.Contains(err.Error(), s.URL+"/login") || strings.Contains(err.Error(), "s3cret") ||
				driverutil.IsFinal(err) == works || httpclient.ReplyErrorOf(fmt.Errorf("x: %w", err)) != err {
				t.Errorf("%s, which works: %v: %v", what, works, err)
			}
			if elsewhere > 0 && what != "another" {
				t.Errorf("%s followed a redirect", what)
			}
		}
	}
}

func service() httpclient.Service {
	return httpclient.Service{Name: "the service", IsOwn: func(*http.Response) bool { return true }}
}

func mustDo(t *testing.T, c *httpclient.Client, url string) {
	t.Helper()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	reply, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
}

// TestDates: the Date of the service's own replies is told, also that of a refusal, and not that of a cache or of a
// page.
func TestDates(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			w.Header().Set("Content-Type", "text/html")
		case "/cache":
			w.Header().Set("Age", "60")
		case "/refusal":
			w.WriteHeader(http.StatusConflict)
		}
	}))
	t.Cleanup(s.Close)
	for path, want := range map[string]int{"/": 1, "/refusal": 1, "/cache": 0, "/page": 0} {
		told, kept := 0, 0
		about := service()
		about.AddDate = func(time.Time, driver.Instant, driver.Instant) { told++ }
		r, _ := http.NewRequestWithContext(httpclient.WithDate(t.Context(), func(time.Time) { kept++ }), http.MethodGet,
			s.URL+path, nil)
		if reply, err := httpclient.New(s.Client(), about).Do(r); err == nil {
			reply.Body.Close()
		}
		if told != want || kept != want {
			t.Errorf("%s: %d and %d times", path, told, kept)
		}
	}
}

// TestHead: the reply to a HEAD has no body, and so is whole without a length.
func TestHead(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodHead, s.URL, nil)
	reply, err := httpclient.New(s.Client(), service()).Do(r)
	if err != nil || reply.ContentLength >= 0 {
		t.Fatalf("%v, %+v", err, reply)
	}
	reply.Body.Close()
}

// endless is a body without an end.
type endless struct{}

func (endless) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Header: http.Header{}, ContentLength: -1, ProtoMajor: 2, Request: r,
		Body: io.NopCloser(zeros{})}, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestBoundedBody: a body that is too large ends with an error.
func TestBoundedBody(t *testing.T) {
	t.Parallel()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://service", nil)
	reply, err := httpclient.New(&http.Client{Transport: endless{}}, service()).Stream(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if n, err := io.Copy(io.Discard, reply.Body); err == nil || n != httpclient.MaxReply {
		t.Errorf("%d bytes, %v", n, err)
	}
}
