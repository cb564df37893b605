package zookeeper

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestNewRefuses: a store without servers and options that cannot work are refused with an error that says why.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	servers := []string{"127.0.0.1:1"}
	for what, c := range map[string]struct {
		servers []string
		opts    *Options
	}{
		"no servers":                  {nil, nil},
		"a server without a host":     {[]string{":2181"}, nil},
		"an unknown layout":           {servers, &Options{Layout: "other"}},
		"a layout that is internal":   {servers, &Options{Layout: layoutLeases}},
		"a namespace that is no name": {servers, &Options{Namespace: "\xff"}},
		"a credential of no scheme":   {servers, &Options{Auth: []Auth{{"", "user:password"}}}},
		"an empty ACL":                {servers, &Options{ACL: []ACL{}}},
		"an ACL without permissions":  {servers, &Options{ACL: []ACL{{0, "world", "anyone"}}}},
	} {
		if s, err := New(t.Context(), c.servers, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
		if s, err := NewTable(t.Context(), c.servers, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a table, %s: %v, %v", what, s, err)
		}
	}
	for _, layout := range publicLayouts { // no server answers, and none need answer
		s, err := New(t.Context(), servers, &Options{Layout: layout})
		mustSucceed(t, err)
		mustSucceed(t, s.Close())
	}
}

// TestTableContract: the bare records keep their contract.
func TestTableContract(t *testing.T) {
	t.Parallel()
	servers := rig.Shared(t).Endpoints()
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		return NewTable(ctx, servers, nil)
	}})
}
