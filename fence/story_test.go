package fence_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/fencetest"
)

// TestFileStaleHolder: no stale holder writes a file.
func TestFileStaleHolder(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report")
	fencetest.Tell(t, fencetest.Resource{
		Steps: 1,
		Write: func(ctx context.Context, token fence.Token, value string, reached func(), fenced bool) error {
			reached()
			if !fenced {
				return os.WriteFile(name, []byte(value), 0o600)
			}
			return fence.WriteFile(ctx, name, []byte(value), 0o600, token)
		},
		Read: func(context.Context) (string, error) {
			text, err := os.ReadFile(name)
			return string(text), err
		},
	})
}

// TestHTTPStaleHolder: a service lets no stale holder write, even if the holder was stopped while its request was being
// handled.
func TestHTTPStaleHolder(t *testing.T) {
	var mu sync.Mutex
	value, reachedBy := "", map[string]func(){}
	guard := &fence.Guard{Gate: &fence.MemoryGate{}, Resource: func(*http.Request) string { return "shoe" }}
	write := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		mu.Lock()
		reached := reachedBy[string(text)]
		mu.Unlock()
		reached()
		mu.Lock()
		value = string(text)
		mu.Unlock()
	})
	mux := http.NewServeMux()
	mux.Handle("/fenced", guard.Handler(write))
	mux.Handle("/", write)
	server := httptest.NewServer(mux)
	defer server.Close()
	fencetest.Tell(t, fencetest.Resource{
		Steps: 2,
		Write: func(ctx context.Context, token fence.Token, text string, reached func(), fenced bool) error {
			mu.Lock()
			reachedBy[text] = reached
			mu.Unlock()
			reached()
			path := "/open"
			if fenced {
				path = "/fenced"
			}
			r, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+path, strings.NewReader(text))
			if err != nil {
				return err
			}
			r.Header.Set(fence.Header, token.String())
			reply, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			defer reply.Body.Close()
			return fence.ResponseError(reply)
		},
		Read: func(context.Context) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return value, nil
		},
	})
}
