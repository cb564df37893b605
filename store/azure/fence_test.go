package azure_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/fencetest"
	"github.com/holdfast-go/holdfast/store/azure/azurefence"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
)

// transporter sends the requests of Microsoft's library.
type transporter func(*http.Request) (*http.Response, error)

func (t transporter) Do(r *http.Request) (*http.Response, error) { return t(r) }

// blobClient is a client of a blob of Microsoft's library.
func (s *service) blobClient(name string) *blockblob.Client {
	return azuretest.Client(s.URL).ServiceClient().NewContainerClient(s.container).NewBlockBlobClient(name)
}

func (s *service) readBlob(ctx context.Context, name string) (string, error) {
	data := make([]byte, 1<<10)
	n, err := s.blobClient(name).DownloadBuffer(ctx, data, nil)
	return string(data[:max(n, 0)]), err
}

// TestFence: a blob is replaced under tokens that do not fall, by any number of writers at once.
func TestFence(t *testing.T) {
	t.Parallel()
	client := startService(t).blobClient("reports/today")
	write := func(token fence.Token, text string) error {
		return azurefence.Write(t.Context(), client, token, []byte(text),
			&blockblob.UploadBufferOptions{Metadata: map[string]*string{"by": to.Ptr("test")}})
	}
	for _, token := range []fence.Token{9, 9, 10, 100} {
		if err := write(token, "text"); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	stale, ok := errors.AsType[*fence.StaleError](write(11, "late"))
	if !ok || stale.Token != 11 || stale.Largest != 100 || !strings.HasSuffix(stale.Resource, "/reports/today") {
		t.Errorf("token 11 after 100: %+v", stale)
	}
	if err := write(0, ""); !errors.Is(err, fence.ErrInvalid) {
		t.Error(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := write(fence.Token(300+i), "racer"); err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	now, err := client.GetProperties(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for key, value := range now.Metadata {
		found[strings.ToLower(key)] = *value
	}
	if found[azurefence.MetadataKey] != "307" || found["by"] != "test" {
		t.Errorf("the metadata are %v", found)
	}
	if _, err := client.SetMetadata(t.Context(), map[string]*string{azurefence.MetadataKey: to.Ptr("many")},
		&blob.SetMetadataOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := write(400, ""); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a token that is no number: %v", err)
	}
}

// TestFenceStaleHolder: no stale holder replaces a blob, not even one that was stopped after it had checked its token.
func TestFenceStaleHolder(t *testing.T) {
	t.Parallel()
	s := startService(t)
	fencetest.Tell(t, fencetest.Resource{
		Steps: 2,
		Write: func(ctx context.Context, token fence.Token, value string, reached func(), fenced bool) error {
			reached()
			if !fenced {
				_, err := s.blobClient("reports/today").UploadBuffer(ctx, []byte(value), nil)
				return err
			}
			web, uploads := newWeb(t), 0
			via := transporter(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPut {
					if uploads++; uploads == 1 { // the token was checked
						reached()
					}
				}
				return web.Do(r)
			})
			client := azuretest.ClientVia(s.URL, via).ServiceClient().NewContainerClient(s.container)
			return azurefence.Write(ctx, client.NewBlockBlobClient("reports/today"), token, []byte(value), nil)
		},
		Read: func(ctx context.Context) (string, error) { return s.readBlob(ctx, "reports/today") },
	})
}
