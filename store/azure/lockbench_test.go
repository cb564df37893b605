package azure_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
)

// BenchmarkLocks, on Azurite, whose replies come 10 ms late: a real service is never as near as that. The floor is the
// minimum that any lock on it has to do: one conditional write and one deletion, by Microsoft's library.
func BenchmarkLocks(b *testing.B) {
	var service *service
	options := "key-file=" + url.QueryEscape(writeFile(b, "key", azuretest.Key))
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			service = startService(b)
			service.Decide = func(azuretest.Request) azuretest.Fate { return azuretest.Fate{ReplyDelay: 10 * time.Millisecond} }
			return at(service)
		},
		Requests: requests.Added(func() string { return service.Counts() }),
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(func(_ testing.TB, _ string) benchtest.Cycle { return openBenchFloor(service) }),
			benchtest.Layout("lease", options),
		}, benchtest.Holdfast(options)...),
	}
	s.Run(b)
}

func openBenchFloor(s *service) benchtest.Cycle {
	container := azuretest.Client(s.URL).ServiceClient().NewContainerClient(s.container)
	return func(ctx context.Context, lock string) error {
		o := container.NewBlockBlobClient(lock)
		r, err := o.UploadBuffer(ctx, []byte("1"), &blockblob.UploadBufferOptions{AccessConditions: &blob.AccessConditions{
			ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: to.Ptr(azcore.ETagAny)}}})
		if err != nil {
			return err
		}
		_, err = o.Delete(ctx, &blob.DeleteOptions{AccessConditions: &blob.AccessConditions{
			ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: r.ETag}}})
		return err
	}
}
