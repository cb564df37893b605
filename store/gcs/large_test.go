package gcs_test

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// countingTransport counts the bytes of all replies.
type countingTransport struct{ read atomic.Int64 }

func (c *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		reply.Body = &countedBody{reply.Body, c}
	}
	return reply, err
}

type countedBody struct {
	io.ReadCloser
	c *countingTransport
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.c.read.Add(int64(n))
	return n, err
}

// TestLargeObjects: of objects of other programs, no more is read than a record can have, neither by a read of a
// lock nor by a listing, such as the sweep of idle locks.
func TestLargeObjects(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := &countingTransport{}
	store, err := gcs.New(t.Context(), &http.Client{Transport: c}, bucket, at(s, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	w := newClient(t, s).Bucket(bucket).Object("backup").NewWriter(t.Context())
	_, err = w.Write(make([]byte, 32<<20))
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	before := c.read.Load()
	if _, err := store.Inspect(t.Context(), "backup"); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("an object that is none of ours: %v", err)
	}
	for l, err := range store.List(t.Context(), "") {
		if l.Name != "backup" || !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("listed: %+v %v", l, err)
		}
	}
	if n := c.read.Load() - before; n > 4<<20 {
		t.Errorf("%d bytes were read", n)
	}
}
