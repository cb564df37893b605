package redis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/record/tabletest"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// TestNewRefuses: a nil client and options that cannot work are refused with an error that says why.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	client := &lazyClient{} // New calls only its Mode
	for what, opts := range map[string]*Options{
		"a key without a star":         {Key: "lock"},
		"a key with two stars":         {Key: "*:*"},
		"an unknown layout":            {Layout: "other"},
		"a negative number of waiters": {MaxWaiters: -1},
		"a negative number of replicas": {
			Replicas: -1},
		"a negative timeout":                 {ReplicaTimeout: -time.Second},
		"a turn that is too short":           {ForeignTurn: time.Microsecond},
		"a turn that is too long":            {ForeignTurn: 2 * time.Second},
		"a turn in a layout without a queue": {ForeignTurn: time.Millisecond, Layout: LayoutRedisson},
	} {
		if s, err := New(t.Context(), client, opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
	}
	if s, err := New(t.Context(), nil, nil); s != nil || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("without a client: %v, %v", s, err)
	}
	if s, err := NewTable(t.Context(), nil, nil); s != nil || !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a table without a client: %v, %v", s, err)
	}
	for what, clients := range map[string][]rueidis.Client{"no clients": nil, "nil clients": make([]rueidis.Client, 3),
		"two clients": {client, client}} {
		if s, err := NewRedlock(t.Context(), clients, nil); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a Redlock of %s: %v, %v", what, s, err)
		}
	}
}

// TestTableContract: the table of records keeps its contract, and to close it leaves the client open.
func TestTableContract(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	storetest.ConformTable(t, tabletest.Harness{Open: func(ctx context.Context) (record.Table, error) {
		return NewTable(ctx, client, nil)
	}})
}
