package kubernetes

import (
	"context"
	"net/http"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/foreign"
)

// NewForAllNames makes a store in the layout of leader election in which every name is a lock of its own, for the
// suite: the names of its locks are none that an object can have.
func NewForAllNames(_ context.Context, web *http.Client, server, namespace string) (driver.Store, error) {
	t, err := newTable(web, server, namespace, &Options{Layout: LayoutLeaderElection, Prefix: "suite-"})
	if err != nil {
		return nil, err
	}
	e := newLeaderElectionTable(t)
	e.objectOf = func(name string) (string, error) {
		object := objectName(t.prefix, name)
		names.Store(object, name)
		return object, nil
	}
	e.nameOf = func(object string) string {
		name, _ := names.Load(object)
		s, _ := name.(string)
		return s
	}
	return foreign.New(e, string(LayoutLeaderElection)), nil
}

// names has the lock of each object.
var names sync.Map
