package gcs

import (
	"context"
	"net/http"
	"os"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
)

// Scope is what the credentials of a client must allow: to read and write objects.
const Scope = "https://www.googleapis.com/auth/devstorage.read_write"

// findTokens finds the source of access tokens: a service account's key file, or the credentials that Google's tools
// find if file is empty. It reads files, and may ask the metadata service of the machine. Tokens are asked for over
// link.
func findTokens(file string, link http.RoundTripper) (oauth2.TokenSource, error) {
	// Not the caller's context: tokens are asked for as long as the store is open.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient,
		httpclient.NoRedirects(&http.Client{Transport: link, Timeout: requestTimeout}))
	if file == "" {
		c, err := google.FindDefaultCredentials(ctx, Scope)
		if err != nil {
			return nil, err
		}
		return c.TokenSource, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if _, err := google.JWTAccessTokenSourceFromJSON(data, Scope); err != nil { // it reads the key, and sends nothing
		return nil, err
	}
	c, err := google.CredentialsFromJSONWithType(ctx, data, google.ServiceAccount, Scope)
	if err != nil {
		return nil, err
	}
	return c.TokenSource, nil
}

// authorizedTransport adds an access token to each request. Unlike oauth2.Transport it does not wait for a token longer
// than the request may take.
type authorizedTransport struct {
	base   http.RoundTripper
	tokens oauth2.TokenSource
}

// RoundTrip implements http.RoundTripper.
func (t *authorizedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	type answer struct {
		token *oauth2.Token
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		token, err := t.tokens.Token()
		answered <- answer{token, err}
	}()
	var a answer
	select {
	case a = <-answered:
	case <-r.Context().Done():
		a.err = r.Context().Err()
	}
	if a.err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, a.err
	}
	r = r.Clone(r.Context())
	a.token.SetAuthHeader(r)
	return t.base.RoundTrip(r)
}
