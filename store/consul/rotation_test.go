package consul

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

// TestRotation: the token and the certificates are replaced while locks are held and waited for. Nothing is lost, and
// the agent refuses the old ones.
func TestRotation(t *testing.T) {
	t.Parallel()
	files := storetest.NewSecretFiles(t, "locker")
	ca, cert, key := files.ServerFiles()
	c := start(t, consultest.Options{Token: "9d1a1ee2-0000-4000-8000-000000000001", CA: ca, Cert: cert, Key: key})
	fails := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := newAdmin(t, c).ACL().PolicyCreate(&api.ACLPolicy{Name: "locker", Rules: `key_prefix "holdfast/" {
		policy = "write" } session "holdfast" { policy = "write" } node "holdfast" { policy = "write" }`}, nil)
	fails(err)
	newToken := func(secret string) string {
		t.Helper()
		token, _, err := newAdmin(t, c).ACL().TokenCreate(&api.ACLToken{SecretID: secret,
			Policies: []*api.ACLLink{{Name: "locker"}}}, nil)
		fails(err)
		return token.AccessorID
	}
	old := newToken(files.OldPassword)
	storetest.Rotate(t, storetest.Rotation{Files: files,
		Accept: func() { newToken(files.NewPassword) },
		Refuse: func() {
			_, err := newAdmin(t, c).ACL().TokenDelete(old, nil)
			fails(err)
		},
		Reload: func() { fails(newAdmin(t, c).Agent().Reload()) },
		URL: func(dir string) string {
			return c.URL() + "?token-file=" + files.Password(dir) + "&" + files.TLSOptions(dir)
		}})
}
