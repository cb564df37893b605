package azure_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/azure"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
)

// writeFile writes a file for a test.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// at makes the URL of a container with these options.
func at(s *service, options ...string) string {
	return "azure://" + azuretest.Account + "/" + s.container + "?" +
		strings.Join(append(options, "endpoint="+url.QueryEscape(s.URL)), "&")
}

// signature makes a shared access signature of the emulator's account that is valid until a time.
func signature(t testing.TB, until time.Time) string {
	t.Helper()
	address, err := azuretest.Client(emulator.Direct).ServiceClient().GetSASURL(
		sas.AccountResourceTypes{Container: true, Object: true},
		sas.AccountPermissions{Read: true, Write: true, Create: true, Delete: true, List: true}, until, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, query, _ := strings.Cut(address, "?")
	return query
}

// TestURLCredentials: a key, a shared access signature and a connection string open a store, by which a lock is held
// and all locks are listed. A wrong one is refused at once, and no error shows it.
func TestURLCredentials(t *testing.T) {
	t.Parallel()
	s := startService(t)
	wrong := base64.StdEncoding.EncodeToString([]byte("hunter2 is a secret"))
	for option, c := range map[string]struct{ good, bad string }{
		"key-file": {azuretest.Key, wrong},
		"sas-file": {signature(t, time.Now().Add(time.Hour)), "sv=2021-12-02&ss=b&srt=co&sp=rwdlc&se=2030-01-01&sig=" + wrong},
		"connection-string-file": {
			"DefaultEndpointsProtocol=http;AccountName=" + azuretest.Account + ";AccountKey=" + azuretest.Key +
				";BlobEndpoint=" + s.URL,
			"AccountName=" + azuretest.Account + ";AccountKey=" + wrong},
	} {
		store, err := driver.Open(t.Context(), at(s, "prefix=locks/", option+"="+writeFile(t, "secret", c.good+"\n")))
		if err != nil {
			t.Errorf("%s: %v", option, err)
			continue
		}
		name := option + "/m"
		g := acquire(t, store, mutexClaim(name, minute))
		n := 0
		for l, err := range store.List(t.Context(), option) {
			if n++; err != nil || l.Name != name {
				t.Errorf("%s: %v, %v", option, l, err)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d locks are listed", option, n)
		}
		release(t, store, g.Claim)
		if place := store.Info().Store; place != "azure://devstoreaccount1/"+s.container+"/locks/" {
			t.Errorf("the store's place is %s", place)
		}
		store.Close()
		_, err = driver.Open(t.Context(), at(s, option+"="+writeFile(t, "secret", c.bad)))
		if !errors.Is(err, driver.ErrDenied) {
			t.Errorf("a wrong %s: %v", option, err)
		}
		expectHidden(t, "a wrong "+option, err, wrong, azuretest.Key)
	}
}

// TestExpiredSignature: a signature that expires while locks are held is replaced in its file, and no lock is lost.
func TestExpiredSignature(t *testing.T) {
	t.Parallel()
	s := startService(t)
	file := writeFile(t, "sas", signature(t, time.Now().Add(time.Hour)))
	store, err := driver.Open(t.Context(), at(s, "sas-file="+file))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	g := acquire(t, store, mutexClaim("m", minute))
	for _, valid := range []time.Duration{-time.Hour, time.Hour} {
		if err := os.WriteFile(file, []byte(signature(t, time.Now().Add(valid))), 0o600); err != nil {
			t.Fatal(err)
		}
		err := renew(t, store, g).Err
		if (err == nil) != (valid > 0) || driverutil.IsFinal(err) {
			t.Errorf("with a signature that is valid for %v: %v", valid, err)
		}
		expectHidden(t, "a renewal", err, "sig=")
	}
	release(t, store, g.Claim)
}

// TestHiddenSecrets: no error about the service, the connection or the credentials shows a secret.
func TestHiddenSecrets(t *testing.T) {
	t.Parallel()
	sas, err := azure.SharedAccessSignature("sv=2021-12-02&sig=hunter2secret")
	if err != nil {
		t.Fatal(err)
	}
	s := startService(t)
	store := mustOpen(t, s, azure.Options{})
	s.Answer(write, azuretest.Fate{Status: 403, Code: "AuthorizationPermissionMismatch", Body: `<Error><Message>Server failed
Signature did not match. String to sign used was hunter2secret</Message><AuthenticationErrorDetail>hunter2secret` +
		`</AuthenticationErrorDetail></Error>`})
	_, err = store.Acquire(t.Context(), mutexClaim("m", minute))
	if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "Server failed") {
		t.Errorf("without a permission: %v", err)
	}
	expectHidden(t, "without a permission", err, "hunter2secret")
	s.Answer(azuretest.Read, azuretest.Fate{Status: 403, Code: "AuthenticationFailed"})
	for what, address := range map[string]string{"the service refuses": s.address(), "nobody listens": "http://127.0.0.1:1/a/b"} {
		_, err := azure.New(t.Context(), newWeb(t), address, &azure.Options{Credentials: sas})
		if err == nil {
			t.Errorf("%s: no error", what)
		}
		expectHidden(t, what, err, "hunter2secret")
	}
	for what, err := range map[string]error{
		"an address with a signature": func() error {
			_, err := azure.New(t.Context(), http.DefaultClient, "https://account.example/locks?sig=hunter2secret", nil)
			return err
		}(),
		"an address that cannot be parsed": func() error {
			_, err := azure.New(t.Context(), http.DefaultClient, "https://account.example:hunter2secret/x", nil)
			return err
		}(),
		"a bad key": func() error { _, err := azure.SharedKey("account", "hunter2secret!"); return err }(),
		"a bad connection string": func() error {
			_, _, err := azure.ParseConnectionString("AccountName=a;hunter2secret")
			return err
		}(),
		"a bad key in a connection string": func() error {
			_, _, err := azure.ParseConnectionString("AccountName=a;AccountKey=hunter2secret!")
			return err
		}(),
	} {
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		expectHidden(t, what, err, "hunter2secret")
	}
}

// TestConnectionStrings: what the portal shows is read.
func TestConnectionStrings(t *testing.T) {
	t.Parallel()
	const key = "AccountName=a;AccountKey=a2V5;"
	for text, want := range map[string]string{
		"DefaultEndpointsProtocol=https;" + key + "EndpointSuffix=core.windows.net": "https://a.blob.core.windows.net",
		key + "EndpointSuffix=core.chinacloudapi.cn":                                "https://a.blob.core.chinacloudapi.cn",
		"BlobEndpoint=https://b.example/;SharedAccessSignature=sv=1&sig=x%3D":       "https://b.example",
		"UseDevelopmentStorage=true":                                                "http://127.0.0.1:10000/devstoreaccount1",
		"AccountName=a":                                                             "",
		"AccountKey=a2V5":                                                           "",
		"BlobEndpoint=https://b.example/":                                           "",
	} {
		account, c, err := azure.ParseConnectionString(text)
		if account != want || (err == nil) != (want != "") || (c == nil) != (want == "") {
			t.Errorf("%s: %s, %v", text, account, err)
		}
	}
}

// TestTokens: a token is sent with each request, and never over http.
func TestTokens(t *testing.T) {
	t.Parallel()
	token := azure.Token(func(context.Context) (string, error) { return "hunter2secret", nil })
	r, _ := http.NewRequest(http.MethodGet, "https://account.example/locks", nil)
	if err := token(r); err != nil || r.Header.Get("Authorization") != "Bearer hunter2secret" {
		t.Errorf("%v, %v", err, r.Header)
	}
	s := startService(t)
	_, err := azure.New(t.Context(), newWeb(t), s.address(), &azure.Options{Credentials: token})
	if !errors.Is(err, driver.ErrInvalid) || s.Counts() != "" {
		t.Errorf("over http: %v", err)
	}
	expectHidden(t, "over http", err, "hunter2secret")
	none := azure.Token(func(context.Context) (string, error) { return "", errors.New("no identity here") })
	_, err = azure.New(t.Context(), newWeb(t), "https://account.example/locks", &azure.Options{Credentials: none})
	if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "no identity here") {
		t.Errorf("without a token: %v", err)
	}
}

// TestSignatureInTheClear: a signature, which is worth as much as a password, is sent without TLS to this machine only,
// where an emulator may be.
func TestSignatureInTheClear(t *testing.T) {
	t.Parallel()
	sign, err := azure.SharedAccessSignature("sv=2021-12-02&sig=hunter2secret")
	if err != nil {
		t.Fatal(err)
	}
	for address, good := range map[string]bool{"https://example.org/c": true, "http://127.0.0.1:10000/c": true,
		"http://localhost/c": true, "http://example.org/c": false} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := sign(r); good && err != nil || !good && (!errors.Is(err, driver.ErrInvalid) || r.URL.RawQuery != "") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestURLRefuses: a URL that cannot work is refused before anything is sent, and says why.
func TestURLRefuses(t *testing.T) {
	t.Parallel()
	key, other := writeFile(t, "key", azuretest.Key), writeFile(t, "c", "AccountName=b;AccountKey=a2V5")
	for text, says := range map[string]string{
		"azure://account":                                                "names no container",
		"azure:///container":                                             "names no account",
		"azure://account:s3cret@account/container":                       "must not have a user",
		"azure://account/container/locks":                                "prefix=",
		"azure://account/container?prefix=//":                            "a prefix is",
		"azure://account/container?prefix=a./":                           "a prefix is",
		"azure://account/container?key-file=" + key + "&sas-file=" + key: "remove one of them",
		"azure://account/container?key-file=" + key + "&client-id=x":     "remove one of them",
		"azure://account/container?sas-file=" + key:                      "looks like sv=",
		"azure://account/container?identity=other":                       "default, environment, workload, managed or cli",
		"azure://account/container?connection-string-file=" + other:      "another account",
	} {
		_, err := driver.Open(t.Context(), text)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
		expectHidden(t, text, err, azuretest.Key, "a2V5", "s3cret")
	}
}

// TestNewRefuses: a nil client and options that cannot work are refused before any request.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		client  *http.Client
		address string
		opts    *azure.Options
	}{
		"no client":             {nil, "https://a.example/c", nil},
		"no address":            {http.DefaultClient, "", nil},
		"no container":          {http.DefaultClient, "https://a.example", nil},
		"another scheme":        {http.DefaultClient, "azure://a/c", nil},
		"a prefix with a line":  {http.DefaultClient, "https://a.example/c", &azure.Options{Prefix: "a\nb"}},
		"a prefix with ./":      {http.DefaultClient, "https://a.example/c", &azure.Options{Prefix: "a./"}},
		"a prefix that is long": {http.DefaultClient, "https://a.example/c", &azure.Options{Prefix: strings.Repeat("x", 257)}},
		"a prefix of no UTF-8":  {http.DefaultClient, "https://a.example/c", &azure.Options{Prefix: "\xff"}},
	} {
		if s, err := azure.New(t.Context(), c.client, c.address, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
	}
}

// TestUnreachable: a service that is silent or away is tried for ten seconds, and the error says that it can be tried
// again.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	options := "&key-file=" + writeFile(t, "key", "czNjcmV0")
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		storetest.OpenSilentServer(t, "azure://account/container?endpoint=http://HOST/account"+options)
	})
	t.Run("away", func(t *testing.T) {
		t.Parallel()
		storetest.OpenWithoutServer(t, "azure://account/container?endpoint=http://127.0.0.1:1/account"+options)
	})
}

// TestPrefixes: two stores with prefixes in one container do not see each other's locks and runs.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	s := startService(t)
	open := func(prefix string) driver.Store { return mustOpen(t, s, azure.Options{Prefix: prefix}) }
	storetest.CheckPrefixes(t, open("p-one-"), open("p-two-"), open("p-"))
}
