package memory

import (
	"context"
	"net/url"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("memory", openURL, storeurl.Describe((*storeURL).form)) }

// storeURL is what a URL says.
type storeURL struct{ name string }

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{Shape: "memory://[name]", Host: &s.name}
}

// memory://NAME is the store with that name in this process. It is made when it is first opened, and never removed: its
// locks must not depend on whether a client is open.
var (
	namedMu sync.Mutex
	named   = map[string]*Memory{}
)

func openURL(_ context.Context, u *url.URL) (driver.Store, error) {
	var s storeURL
	if err := s.form().Read(u); err != nil {
		return nil, err
	}
	namedMu.Lock()
	defer namedMu.Unlock()
	m := named[s.name]
	if m == nil {
		m = New(nil)
		named[s.name] = m
	}
	return m.Open(), nil
}
