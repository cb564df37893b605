package zookeeper

import (
	"net"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestRotation: the certificates are replaced while locks are held and waited for. Nothing is lost, and old ones are
// refused.
func TestRotation(t *testing.T) {
	t.Parallel()
	files := storetest.NewSecretFiles(t, "locker")
	at := storetest.TLSProxy(t, files, func() (net.Conn, error) {
		return net.Dial("tcp", rig.Shared(t).Members[0].Endpoint)
	})
	storetest.Rotate(t, storetest.Rotation{Files: files, Reload: func() {}, URL: func(dir string) string {
		return "zookeeper://" + at + "?namespace=rotation&" + files.TLSOptions(dir)
	}})
}
