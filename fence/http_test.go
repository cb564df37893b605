package fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/store/memory"
)

// newGuarded returns a server whose resources are its paths, and which writes down what it does.
func newGuarded(gate fence.Gate) (*httptest.Server, *[]string) {
	var written []string
	guard := &fence.Guard{Gate: gate, Resource: func(r *http.Request) string {
		if r.Method == http.MethodGet {
			return ""
		}
		return strings.TrimPrefix(r.URL.Path, "/")
	}}
	return httptest.NewServer(guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := fence.FromContext(r.Context())
		written = append(written, fmt.Sprint(r.Method, " ", token, " ", ok))
	}))), &written
}

// TestGuard: the server answers a missing, malformed, foreign or stale token with a problem, and does nothing.
func TestGuard(t *testing.T) {
	server, written := newGuarded(&fence.MemoryGate{})
	defer server.Close()
	send := func(method string, header ...string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/stock/shoe", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["Fencing-Token"] = header
		reply, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if err != nil {
			t.Fatal(err)
		}
		if kind := reply.Header.Get("Content-Type"); reply.StatusCode >= 400 && kind != "application/problem+json" {
			t.Errorf("%q: the reply is %s", header, kind)
		}
		return reply.StatusCode, string(body)
	}
	for _, test := range []struct {
		method string
		header []string
		status int
		body   string
	}{
		{"PUT", []string{"5"}, 200, ""},
		{"PUT", []string{"5; lock=stock%2Fshoe"}, 200, ""},
		{"PUT", []string{"10;lock=stock/shoe"}, 200, ""},
		{"PUT", []string{"9"}, 412, `"token":"9","largest":"10"`},
		{"PUT", []string{"9; lock=stock%2Fshoe"}, 412, fence.ProblemStale},
		{"PUT", []string{"11; lock=stock%2Fboot"}, 400, fence.ProblemOtherLock},
		{"PUT", nil, 428, fence.ProblemMissing},
		{"PUT", []string{"11", "12"}, 400, "more than one"},
		{"PUT", []string{"11, 12"}, 400, "more than one"},
		{"PUT", []string{""}, 400, fence.ProblemInvalid},
		{"PUT", []string{"ten"}, 400, fence.ProblemInvalid},
		{"PUT", []string{"-11"}, 400, fence.ProblemInvalid},
		{"PUT", []string{"0"}, 400, fence.ProblemInvalid},
		{"PUT", []string{"99999999999999999999"}, 400, fence.ProblemInvalid},
		{"PUT", []string{"9007199254740992"}, 400, fence.ProblemInvalid},
		{"PUT", []string{"11; name=stock"}, 400, "lock=NAME"},
		{"PUT", []string{"11; lock="}, 400, "lock=NAME"},
		{"PUT", []string{"11; lock=%zz"}, 400, "lock=NAME"},
		{"GET", nil, 200, ""},
	} {
		if status, body := send(test.method, test.header...); status != test.status || !strings.Contains(body, test.body) {
			t.Errorf("%s %q: %d %s, want %d %s", test.method, test.header, status, body, test.status, test.body)
		}
	}
	if got := strings.Join(*written, ", "); got != "PUT 5 true, PUT 5 true, PUT 10 true, GET 0 false" {
		t.Errorf("the server did: %s", got)
	}
}

// TestTransport: a client sends the token of its lease, learns that it is stale, and sends nothing when its lease has
// ended or cannot fence.
func TestTransport(t *testing.T) {
	gate := &fence.MemoryGate{}
	server, written := newGuarded(gate)
	defer server.Close()
	locks, err := holdfast.New(memory.New(nil).Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Mutex("a b/ü", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reader, err := locks.RWMutex("rw", nil).RLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put := func(holder fence.Holder) error {
		client := &http.Client{Transport: &fence.Transport{Holder: holder}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/a%20b/%C3%BC", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		reply, err := client.Do(r)
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		return fence.ResponseError(reply)
	}
	if err := put(lease); err != nil {
		t.Error(err)
	}
	if err := put(reader); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("the token of a reader: %v", err)
	}
	leave, err := gate.Enter(t.Context(), "a b/ü", fence.Token(lease.Token()+1))
	if err != nil {
		t.Fatal(err)
	}
	leave()
	requireStale(t, put(lease), fence.Token(lease.Token()), fence.Token(lease.Token()+1))
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if err := put(lease); !errors.Is(err, holdfast.ErrReleased) {
		t.Errorf("after the release: %v", err)
	}
	if len(*written) != 1 {
		t.Errorf("the server did: %q", *written)
	}
}

// TestMemoryGate: a writer with a larger token waits until older ones have left, and keeps them out from then on.
// Writers with the same token are in together.
func TestMemoryGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gate fence.MemoryGate
		enter := func(token fence.Token) func() {
			t.Helper()
			leave, err := gate.Enter(t.Context(), "r", token)
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		leave5, again5 := enter(5), enter(5)
		results := make(chan error, 1)
		go func() {
			leave, err := gate.Enter(t.Context(), "r", 7)
			if err == nil {
				leave()
			}
			results <- err
		}()
		synctest.Wait()
		_, err := gate.Enter(t.Context(), "r", 6)
		requireStale(t, err, 6, 7)
		_, err = gate.Enter(t.Context(), "r", 5)
		requireStale(t, err, 5, 7)
		leave5()
		leave5() // the second call does nothing
		synctest.Wait()
		if len(results) > 0 {
			t.Error("a writer entered while an older one was in")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := gate.Enter(short, "r", 8); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a writer that waits too long: %v", err)
		}
		again5()
		synctest.Wait()
		requireStale(t, <-results, 7, 8) // while it waited, a larger token came
		enter(8)()
		enter(9)()
	})
}
