//go:build unix

package sessiontest

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// Soon is the time within which a client must report a final error: before it would give up on servers that do not
// answer.
const Soon = 8 * time.Second

// machine measures, for as long as the tests run, by how much the machine runs late.
var machine pace.Pace

// IsLate reports whether more than Soon has passed since then, apart from the time by which the machine itself was
// late.
func IsLate(since time.Time) bool { return time.Since(since) > Soon+10*machine.Worst(since) }

// TLS calls start to run a server with a certificate and its key. It connects with that certificate as the authority,
// and then with another one.
func (h *Harness[C, P]) TLS(t *testing.T, start func(cert, key string) C) {
	dir := t.TempDir()
	good, key := storetest.WriteCertificate(t, filepath.Join(dir, "good"))
	bad, _ := storetest.WriteCertificate(t, filepath.Join(dir, "bad"))
	c := start(good, key)
	try := func(ca string) error {
		client, err := holdfast.Open(t.Context(), h.clusterURL(c.Endpoints()...)+"?tls-ca="+ca,
			&holdfast.Options{TTL: 20 * time.Second})
		if err != nil {
			return err
		}
		defer client.Close()
		l, err := client.Mutex(t.Name(), nil).Lock(t.Context())
		if err != nil {
			return err
		}
		return l.Release()
	}
	var err error
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if err = try(good); err == nil { // the server is there
			break
		}
	}
	CheckError(t, err)
	client, err := holdfast.Open(t.Context(), h.clusterURL(c.Endpoints()...)+"?tls-ca="+good, nil)
	CheckError(t, err)
	defer client.Close()
	CheckStoreClock(t, client)
	began := time.Now()
	err = try(bad)
	t.Logf("a wrong authority: %v after %v", err, time.Since(began).Round(time.Millisecond))
	if !errors.Is(err, holdfast.ErrDenied) || IsLate(began) {
		t.Errorf("a wrong authority: %v after %v", err, time.Since(began))
	}
}
