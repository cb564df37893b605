package memory

import (
	"context"
	"net/url"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// memory://NAME is the store with that name in this process. It is made when it is first opened, and never removed: its
// locks must not depend on whether a client is open.
var (
	namedMu sync.Mutex
	named   = map[string]*Memory{}
)

func openURL(_ context.Context, u *url.URL) (driver.Store, error) {
	if err := driverutil.ParseOptions(u, nil); err != nil {
		return nil, err
	}
	namedMu.Lock()
	defer namedMu.Unlock()
	m := named[u.Host]
	if m == nil {
		m = New(nil)
		named[u.Host] = m
	}
	return m.Open(), nil
}

func init() { driver.Register("memory", openURL) }
