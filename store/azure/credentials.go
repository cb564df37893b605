package azure

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Credentials add to a request what the service asks of it. They may be called concurrently, and are called for each
// request.
type Credentials func(*http.Request) error

// SharedKey are the credentials of an account with one of its two keys.
func SharedKey(account, key string) (Credentials, error) {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(key))
	if err != nil || len(secret) == 0 || account == "" {
		return nil, fmt.Errorf("%w: an account's name and its key in base64 are needed", driver.ErrInvalid)
	}
	return func(r *http.Request) error {
		mac := hmac.New(sha256.New, secret)
		_, _ = mac.Write([]byte(textToSign(account, r))) // a hash takes everything
		r.Header.Set("Authorization", "SharedKey "+account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		return nil
	}, nil
}

// textToSign is what a shared key signs of a request ("Authorize with Shared Key").
func textToSign(account string, r *http.Request) string {
	length := ""
	if r.ContentLength > 0 {
		length = strconv.FormatInt(r.ContentLength, 10)
	}
	h := r.Header
	lines := []string{r.Method, h.Get("Content-Encoding"), h.Get("Content-Language"), length, h.Get("Content-MD5"),
		h.Get("Content-Type"), "", h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"),
		h.Get("If-Unmodified-Since"), h.Get("Range")}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if strings.HasPrefix(name, "X-Ms-") {
			lines = append(lines, strings.ToLower(name)+":"+strings.TrimSpace(h.Get(name)))
		}
	}
	lines = append(lines, "/"+account+r.URL.EscapedPath())
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		lines = append(lines, strings.ToLower(name)+":"+strings.Join(slices.Sorted(slices.Values(query[name])), ","))
	}
	return strings.Join(lines, "\n")
}

// SharedAccessSignature are the credentials of a signature (SAS), which looks like sv=...&sig=... It must permit to
// read, create, write, delete and list (r, c, w, d and l).
func SharedAccessSignature(signature string) (Credentials, error) {
	signature = strings.TrimPrefix(strings.TrimSpace(signature), "?")
	parsed, err := url.ParseQuery(signature)
	if err != nil || !parsed.Has("sig") {
		return nil, fmt.Errorf("%w: a shared access signature looks like sv=...&sig=... as the portal shows it",
			driver.ErrInvalid)
	}
	return func(r *http.Request) error {
		if r.URL.Scheme != "https" && !driverutil.IsLoopback(r.URL.Hostname()) {
			return fmt.Errorf("%w: a shared access signature is not sent over http to another machine: use an address "+
				"with https", driver.ErrInvalid)
		}
		r.URL.RawQuery = strings.TrimPrefix(r.URL.RawQuery+"&"+signature, "&")
		return nil
	}, nil
}

// TokenScope is what a token must be for.
const TokenScope = "https://storage.azure.com/.default"

// Token are the credentials of a token of Microsoft Entra ID, which token returns for each request: it keeps one until
// it is about to expire. Package [github.com/holdfast-go/holdfast/store/azure/identity] has such functions.
func Token(token func(context.Context) (string, error)) Credentials {
	return func(r *http.Request) error {
		if r.URL.Scheme != "https" {
			return fmt.Errorf("%w: a token is not sent over http: use an address with https", driver.ErrInvalid)
		}
		text, err := token(r.Context())
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+text)
		return nil
	}
}

// current are the credentials that a secret has now: those of a file may be replaced.
func current(secret *driverutil.Secret, read func(string) (Credentials, error)) Credentials {
	return func(r *http.Request) error {
		c, err := read(secret.Current())
		if err != nil {
			return err
		}
		return c(r)
	}
}

// connection is what a connection string says.
type connection struct {
	account, endpoint string
	credentials       Credentials
}

// All emulators have developmentAccount and its key, as Microsoft's documentation says.
const (
	developmentAccount = "devstoreaccount1"
	developmentKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
	developmentAddress = "http://127.0.0.1:10000/" + developmentAccount
)

// ParseConnectionString reads a connection string, as the portal shows it. It returns the address of the account, and
// the credentials.
func ParseConnectionString(text string) (account string, c Credentials, err error) {
	read, err := parseConnection(text)
	return read.endpoint, read.credentials, err
}

// parseConnection parses a connection string of the portal. Names are compared without case, as the service's own
// tools do.
func parseConnection(text string) (c connection, err error) {
	fields := map[string]string{"defaultendpointsprotocol": "https", "endpointsuffix": "core.windows.net"}
	for part := range strings.SplitSeq(strings.TrimSpace(text), ";") {
		name, value, ok := strings.Cut(part, "=")
		if !ok && part != "" {
			return c, fmt.Errorf("%w: a connection string looks like AccountName=...;AccountKey=... as the portal shows it",
				driver.ErrInvalid)
		}
		fields[strings.ToLower(strings.TrimSpace(name))] = value
	}
	if fields["usedevelopmentstorage"] == "true" {
		fields["accountname"], fields["accountkey"] = developmentAccount, developmentKey
		fields["blobendpoint"] = developmentAddress
	}
	c = connection{account: fields["accountname"], endpoint: strings.TrimSuffix(fields["blobendpoint"], "/")}
	if c.endpoint == "" && c.account != "" {
		c.endpoint = fields["defaultendpointsprotocol"] + "://" + c.account + ".blob." + fields["endpointsuffix"]
	}
	switch {
	case c.endpoint == "":
		err = errors.New("it names neither an account nor a BlobEndpoint")
	case fields["sharedaccesssignature"] != "":
		c.credentials, err = SharedAccessSignature(fields["sharedaccesssignature"])
	case fields["accountkey"] != "":
		c.credentials, err = SharedKey(c.account, fields["accountkey"])
	default:
		err = errors.New("it has neither an AccountKey nor a SharedAccessSignature")
	}
	if err != nil {
		return connection{}, fmt.Errorf("%w: the connection string: %w", driver.ErrInvalid, err)
	}
	return c, nil
}
