package gcs_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"cloud.google.com/go/storage"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/fencetest"
	"github.com/holdfast-go/holdfast/store/gcs/gcsfence"
)

// writeText returns a function that writes a text as the content of an object.
func writeText(text string) func(*storage.Writer) error {
	return func(w *storage.Writer) error {
		w.Metadata["by"] = "a test"
		_, err := io.WriteString(w, text)
		return err
	}
}

// TestFence: an object is replaced under tokens that do not fall, by any number of writers at once. A writer that fails
// changes nothing.
func TestFence(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t))
	object := client.Bucket(bucket).Object("reports/today")
	write := func(token fence.Token, text string) error {
		return gcsfence.Write(t.Context(), object, token, writeText(text))
	}
	for _, token := range []fence.Token{9, 9, 10, 100} {
		if err := write(token, "text"); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	stale, ok := errors.AsType[*fence.StaleError](write(11, "late"))
	if !ok || stale.Token != 11 || stale.Largest != 100 {
		t.Errorf("token 11 after 100: %+v", stale)
	}
	if err := write(0, ""); !errors.Is(err, fence.ErrInvalid) {
		t.Error(err)
	}
	failed := errors.New("failed")
	if err := gcsfence.Write(t.Context(), object, 200, func(w *storage.Writer) error {
		_, _ = io.WriteString(w, "half")
		return failed
	}); err != failed {
		t.Error(err)
	}
	if err := gcsfence.Write(t.Context(), object, 200, func(w *storage.Writer) error {
		w.Metadata = map[string]string{}
		return nil
	}); !errors.Is(err, fence.ErrInvalid) {
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
	attrs, err := object.Attrs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if attrs.Metadata[gcsfence.MetadataKey] != "307" || attrs.Metadata["by"] != "a test" {
		t.Errorf("the metadata are %v", attrs.Metadata)
	}
	if _, err := object.Update(t.Context(), storage.ObjectAttrsToUpdate{
		Metadata: map[string]string{gcsfence.MetadataKey: "many"}}); err != nil {
		t.Fatal(err)
	}
	if err := write(400, ""); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a token that is no number: %v", err)
	}
}

// TestFenceStaleHolder: no stale holder replaces an object, not even one that was stopped after it had checked its
// token.
func TestFenceStaleHolder(t *testing.T) {
	t.Parallel()
	client := newClient(t, startServer(t))
	object := client.Bucket(bucket).Object("reports/today")
	fencetest.Tell(t, fencetest.Resource{
		Steps: 2,
		Write: func(ctx context.Context, token fence.Token, value string, reached func(), fenced bool) error {
			reached()
			if !fenced {
				w := object.NewWriter(ctx)
				_, err := io.WriteString(w, value)
				return errors.Join(err, w.Close())
			}
			tries := 0
			return gcsfence.Write(ctx, object, token, func(w *storage.Writer) error {
				if tries++; tries == 1 {
					reached()
				}
				return writeText(value)(w)
			})
		},
		Read: func(ctx context.Context) (string, error) {
			r, err := object.NewReader(ctx)
			if err != nil {
				return "", err
			}
			defer r.Close()
			text, err := io.ReadAll(r)
			return string(text), err
		},
	})
}
