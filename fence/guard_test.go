package fence_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

// brokenGate is a gate whose database does not answer.
type brokenGate struct{ err error }

func (g brokenGate) Enter(context.Context, string, fence.Token) (func(), error) { return nil, g.err }

// TestGuardUnavailable: while tokens cannot be checked, requests are refused. The service learns why, and the caller
// does not.
func TestGuardUnavailable(t *testing.T) {
	broken := errors.New("dial tcp 10.0.0.7:5432: connection refused")
	var reported error
	guard := &fence.Guard{
		Gate:     brokenGate{broken},
		Resource: func(*http.Request) string { return "shoe" },
		OnError:  func(_ *http.Request, err error) { reported = err },
	}
	handler := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request was handled") }))
	r := httptest.NewRequest(http.MethodPut, "/", nil)
	r.Header.Set(fence.Header, "5")
	reply := httptest.NewRecorder()
	handler.ServeHTTP(reply, r)
	body := reply.Body.String()
	if reply.Code != http.StatusServiceUnavailable || !strings.Contains(body, fence.ProblemUnavailable) ||
		strings.Contains(body, "10.0.0.7") || reported != broken {
		t.Errorf("the caller gets %d %s, and the service %v", reply.Code, body, reported)
	}
}

// TestGuardPanic: a writer whose handler panics has left.
func TestGuardPanic(t *testing.T) {
	guard := &fence.Guard{Gate: &fence.MemoryGate{}, Resource: func(*http.Request) string { return "shoe" }}
	panics := true
	server := httptest.NewServer(guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if panics {
			panics = false
			panic(http.ErrAbortHandler)
		}
	})))
	defer server.Close()
	for _, token := range []string{"5", "6"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(fence.Header, token)
		reply, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = reply.Body.Close()
		}
		if isCut := err != nil; isCut != (token == "5") {
			t.Errorf("token %s: %v", token, err)
		}
	}
}

// TestGuardIncomplete: a guard that cannot check anything is reported when the service starts.
func TestGuardIncomplete(t *testing.T) {
	for _, guard := range []fence.Guard{
		{Gate: &fence.MemoryGate{}}, {Resource: func(*http.Request) string { return "" }},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a guard without a gate or a resource makes a handler")
				}
			}()
			guard.Handler(http.NotFoundHandler())
		}()
	}
}
