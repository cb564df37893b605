package gcs_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// TestNewRefuses: a nil client and options that cannot work are refused with an error that says why, before any
// request.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	client := http.DefaultClient
	for what, c := range map[string]struct {
		client *http.Client
		bucket string
		opts   *gcs.Options
	}{
		"no client":                    {nil, "bucket", nil},
		"no bucket":                    {client, "", nil},
		"an endpoint without http":     {client, "bucket", &gcs.Options{Endpoint: "localhost:9000"}},
		"an unknown layout":            {client, "bucket", &gcs.Options{Layout: "other"}},
		"a line end in the prefix":     {client, "bucket", &gcs.Options{Prefix: "a\nb"}},
		"a prefix that is not UTF-8":   {client, "bucket", &gcs.Options{Prefix: "\xff"}},
		"a negative foreign age":       {client, "bucket", &gcs.Options{Layout: gcs.LayoutGCSLock, ForeignAge: -time.Second}},
		"an age in the default layout": {client, "bucket", &gcs.Options{ForeignAge: time.Hour}},
	} {
		if s, err := gcs.New(t.Context(), c.client, c.bucket, c.opts); s != nil || !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
		if s, err := gcs.NewTable(t.Context(), c.client, c.bucket, c.opts); s != nil ||
			!errors.Is(err, driver.ErrInvalid) {
			t.Errorf("a table, %s: %v, %v", what, s, err)
		}
	}
}
