package azure

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestEnvironment: the variables of the az command count, unless the URL says something else or they are for another
// account.
func TestEnvironment(t *testing.T) {
	const usual = "https://account.blob.core.windows.net"
	const connection = "AccountName=account;AccountKey=a2V5;EndpointSuffix=core.chinacloudapi.cn"
	for what, c := range map[string]struct {
		options   string
		variables map[string]string
		signs     string // how the Authorization of a request begins; empty: a token is used
		endpoint  string
	}{
		"nothing":         {"", nil, "", usual},
		"a key":           {"", map[string]string{"KEY": "a2V5"}, "SharedKey account:", usual},
		"its account":     {"", map[string]string{"KEY": "a2V5", "ACCOUNT": "account"}, "SharedKey ", usual},
		"another account": {"", map[string]string{"KEY": "a2V5", "ACCOUNT": "other"}, "", usual},
		"a signature":     {"", map[string]string{"SAS_TOKEN": "?sv=1&sig=x"}, "sv=1&sig=x", usual},
		"a connection string": {"", map[string]string{"CONNECTION_STRING": connection}, "SharedKey account:",
			"https://account.blob.core.chinacloudapi.cn"},
		"that of another account": {"", map[string]string{"CONNECTION_STRING": "AccountName=other;AccountKey=a2V5"}, "", usual},
		"an identity":             {"?identity=managed", map[string]string{"KEY": "a2V5"}, "", usual},
		"a client":                {"?client-id=x", map[string]string{"KEY": "a2V5"}, "", usual},
	} {
		t.Run(what, func(t *testing.T) {
			for _, name := range []string{"CONNECTION_STRING", "ACCOUNT", "KEY", "SAS_TOKEN"} {
				t.Setenv("AZURE_STORAGE_"+name, c.variables[name])
			}
			u, err := url.Parse("azure://account/container" + c.options)
			if err != nil {
				t.Fatal(err)
			}
			s := &storeURL{}
			if err := s.form().Read(u); err != nil {
				t.Fatal(err)
			}
			r, _ := http.NewRequest(http.MethodGet, s.endpoint+"/container", nil)
			signed := ""
			if s.opts.Credentials != nil {
				if err := s.opts.Credentials(r); err != nil {
					t.Fatal(err)
				}
				signed = r.Header.Get("Authorization") + r.URL.RawQuery
			}
			if s.endpoint != c.endpoint || s.useToken != (c.signs == "") || !strings.HasPrefix(signed, c.signs) {
				t.Errorf("endpoint %s, token %v, signed by %s", s.endpoint, s.useToken, signed)
			}
		})
	}
}
