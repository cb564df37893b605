package gcs_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// silentTransport is a service with an empty bucket that stops answering: it accepts requests and sends no reply.
type silentTransport struct{ silent bool }

func (m *silentTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.silent {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusNotFound,
		Header: http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}},
		Body:   io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// TestServiceStopsAnswering: when the service does not answer although the connection works, a wait ends after the
// claim's unreachable timeout, even if the caller's context does not end.
func TestServiceStopsAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &silentTransport{}
		s, err := gcs.New(t.Context(), &http.Client{Transport: m}, bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		m.silent = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		from := time.Now()
		_, err = s.Acquire(ctx, storetest.Waiting(mutexClaim("m", time.Minute)))
		if took := time.Since(from); took > 30*time.Second || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", took, err)
		}
		from = time.Now()
		if _, err = s.Inspect(ctx, "m"); time.Since(from) > 30*time.Second || err == nil ||
			errors.Is(err, driver.ErrUncertain) {
			t.Errorf("after %v: %v", time.Since(from), err)
		}
		from = time.Now()
		for _, err := range s.List(ctx, "") {
			if time.Since(from) > 30*time.Second || err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v: %v", time.Since(from), err)
			}
		}
		if took := time.Since(from); took == 0 || took > 30*time.Second {
			t.Errorf("a listing took %v", took)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
