package s3

import (
	"context"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-go/holdfast/engine/record"
)

// SetMaxLateness shortens foreign.MaxLateness for all stores that are opened after it.
func SetMaxLateness(d time.Duration) { maxLateness = d }

// NewTerraformTable opens the records of LayoutTerraform.
func NewTerraformTable(ctx context.Context, client *sdk.Client, bucket string, opts *Options) (record.Table, error) {
	t, err := newTable(ctx, client, bucket, opts)
	if err != nil {
		return nil, err
	}
	return newTerraformTable(t, 0), nil
}
