package dynamodb

import (
	"errors"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast/driver"
)

// TestNewRefuses: a nil client and options that cannot work are refused with an error that says why, before any
// request.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	client := sdk.New(sdk.Options{})
	for what, c := range map[string]struct {
		client *sdk.Client
		table  string
		opts   *Options
	}{
		"no client":               {nil, "locks", nil},
		"no table":                {client, "", nil},
		"an unknown layout":       {client, "locks", &Options{Layout: "other"}},
		"an unknown lease format": {client, "locks", &Options{Layout: LayoutAWSLock, LeaseFormat: "other"}},
		"a negative watch":        {client, "locks", &Options{Layout: LayoutAWSLock, ForeignWatch: -time.Second}},
		"a zero byte":             {client, "locks", &Options{Prefix: "\x00"}},
		"one key for two uses":    {client, "locks", &Options{PartitionKey: "a", TTLAttribute: "a"}},
	} {
		if s, err := New(t.Context(), c.client, c.table, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
		if s, err := NewTable(t.Context(), c.client, c.table, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a table, %s: %v, %v", what, s, err)
		}
	}
}
