package identity_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/holdfast-go/holdfast/store/azure"
	"github.com/holdfast-go/holdfast/store/azure/identity"
)

// credential gives tokens that are valid for a time.
type credential struct {
	valid time.Duration
	err   error
	asked int
	scope string
}

func (c *credential) GetToken(_ context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	c.asked++
	c.scope = o.Scopes[0]
	if c.err != nil {
		return azcore.AccessToken{}, c.err
	}
	return azcore.AccessToken{Token: "token", ExpiresOn: time.Now().Add(c.valid)}, nil
}

// TestTokens: a token is asked for once, and again shortly before it expires. While no new one is to be had, the old
// one is used until it has expired.
func TestTokens(t *testing.T) {
	t.Parallel()
	ask := func(c *credential, times int) (err error) {
		tokens := identity.Tokens(c)
		for range times {
			var text string
			if text, err = tokens(t.Context()); err == nil && text != "token" {
				t.Errorf("the token is %q", text)
			}
		}
		return err
	}
	long, short := &credential{valid: time.Hour}, &credential{valid: time.Minute}
	none := &credential{err: errors.New("no identity")}
	for _, c := range []*credential{long, short} {
		if err := ask(c, 3); err != nil || c.scope != "https://storage.azure.com/.default" {
			t.Errorf("%v, scope %s", err, c.scope)
		}
	}
	if long.asked != 1 || short.asked != 3 {
		t.Errorf("asked %d and %d times", long.asked, short.asked)
	}
	if err := ask(none, 1); !errors.Is(err, none.err) {
		t.Error(err)
	}
	tokens := identity.Tokens(short)
	if _, err := tokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	short.err = errors.New("no answer")
	if text, err := tokens(t.Context()); err != nil || text != "token" {
		t.Errorf("the last token is valid: %q, %v", text, err)
	}
}

// metadataService is the service of a virtual machine that gives tokens, and a storage account that demands them.
type metadataService struct {
	mu       sync.Mutex
	requests []string
}

func (m *metadataService) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	reply := func(status int, header http.Header, body string) (*http.Response, error) {
		header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
	if r.URL.Host == "169.254.169.254" {
		m.requests = append(m.requests, r.URL.Query().Get("client_id")+" "+r.URL.Query().Get("resource"))
		return reply(200, http.Header{"Content-Type": {"application/json"}},
			`{"access_token":"of the machine","expires_in":"86400","expires_on":"4102444800","token_type":"Bearer"}`)
	}
	m.requests = append(m.requests, r.Header.Get("Authorization"))
	if r.URL.Query().Get("restype") != "" {
		return reply(200, http.Header{"X-Ms-Request-Id": {"1"}, "X-Ms-Version": {"1"},
			"X-Ms-Client-Request-Id": {r.Header.Get("X-Ms-Client-Request-Id")}}, "")
	}
	return reply(404, http.Header{"X-Ms-Request-Id": {"1"}, "X-Ms-Version": {"1"}, "X-Ms-Error-Code": {"BlobNotFound"}}, "")
}

// TestManagedIdentity: the token of a machine's identity is with each request.
func TestManagedIdentity(t *testing.T) {
	t.Parallel()
	m := &metadataService{}
	web := &http.Client{Transport: m}
	options := &azidentity.ManagedIdentityCredentialOptions{ID: azidentity.ClientID("one of several")}
	options.Transport = web
	c, err := azidentity.NewManagedIdentityCredential(options)
	if err != nil {
		t.Fatal(err)
	}
	s, err := azure.New(t.Context(), web, "https://account.example/locks",
		&azure.Options{Credentials: azure.Token(identity.Tokens(c))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(m.requests) != 3 || m.requests[0] != "one of several https://storage.azure.com" ||
		m.requests[1] != "Bearer of the machine" || m.requests[2] != m.requests[1] {
		t.Errorf("the requests are %q", m.requests)
	}
}
