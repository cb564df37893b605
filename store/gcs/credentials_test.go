package gcs_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// TestCredentialsRevoked: a key that is refused access tokens is a final error. A token service that fails may
// recover.
func TestCredentialsRevoked(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for status, denied := range map[int]bool{http.StatusBadRequest: true, http.StatusUnauthorized: true,
		http.StatusInternalServerError: false} {
		tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`, status)
		}))
		defer tokens.Close()
		file := keyFile(t, tokens.URL)
		_, err := driver.Open(t.Context(), "gcs://"+bucket+"?endpoint="+url.QueryEscape(s.URL)+"&credentials="+
			url.QueryEscape(file))
		if err == nil || errors.Is(err, driver.ErrDenied) != denied || driverutil.IsFinal(err) != denied {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

// keyFile writes the key file of a service account that gets its tokens from that URL.
func keyFile(t *testing.T, tokens string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "locks@project.example",
		"private_key_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
			Bytes: der})), "token_uri": tokens, "project_id": "project"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
