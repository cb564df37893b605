package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// TestNewRefuses: a nil client and options that cannot work are refused with an error that says why.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for what, c := range map[string]struct {
		client *clientv3.Client
		opts   *Options
	}{
		"no client":                  {nil, nil},
		"a zero byte in the prefix":  {client, &Options{Prefix: "a\x00b"}},
		"a prefix that is not UTF-8": {client, &Options{Prefix: "\xff"}},
	} {
		if s, err := New(t.Context(), c.client, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
		if s, err := NewTable(t.Context(), c.client, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a table, %s: %v, %v", what, s, err)
		}
		if l, err := NewLease(t.Context(), c.client, time.Minute, c.opts); l != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a lease, %s: %v, %v", what, l, err)
		}
	}
	s, err := New(t.Context(), client, nil) // no server has to answer
	if err != nil {
		t.Fatal(err)
	}
	fails(t, s.Close())
}

// TestTableContract: the bare records keep their contract, and closing them leaves the client open.
func TestTableContract(t *testing.T) {
	t.Parallel()
	client := newAdmin(t, rig.Shared(t))
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		return NewTable(ctx, client, nil)
	}})
}
