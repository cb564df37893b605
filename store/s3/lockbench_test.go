package s3_test

import (
	"bytes"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-go/holdfast/internal/benchtest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// BenchmarkLocks, on a service in this process which answers after 10 ms: a real one is never as near as that. The
// floor is the minimum that any lock on it has to do: one conditional write and one removal.
func BenchmarkLocks(b *testing.B) {
	var service *s3test.Server
	s := benchtest.Store{
		Start: func(b testing.TB) string {
			b.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
			b.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
			service = s3test.Start(bucket)
			b.Cleanup(service.Stop)
			service.Decide = func(s3test.Request) s3test.Fate { return s3test.Fate{Delay: 10 * time.Millisecond} }
			return "s3://" + bucket + "/locks/?endpoint=" + service.URL
		},
		Requests: requests.Added(func() string { return service.Counts() }),
		Lockers: append([]benchtest.Locker{
			benchtest.Floor(func(testing.TB, string) benchtest.Cycle { return openBenchFloor(service) }),
		}, benchtest.Holdfast("")...),
	}
	s.Run(b)
}

func openBenchFloor(service *s3test.Server) benchtest.Cycle {
	client := s3test.NewClient(service.URL, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}})
	return func(ctx context.Context, key string) error {
		made, err := client.PutObject(ctx, &sdk.PutObjectInput{Bucket: aws.String(bucket), Key: &key,
			Body: bytes.NewReader([]byte("1")), IfNoneMatch: aws.String("*")})
		if err == nil {
			_, err = client.DeleteObject(ctx, &sdk.DeleteObjectInput{Bucket: aws.String(bucket), Key: &key,
				IfMatch: made.ETag})
		}
		return err
	}
}
