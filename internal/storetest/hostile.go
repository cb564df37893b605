package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// HTTPService is a service that a store reaches by HTTP, for HostileReplies.
type HTTPService struct {
	// Handler is the service.
	Handler http.Handler
	// Open opens a store on the service at that URL.
	Open func(t testing.TB, url string) driver.Store
	// RefuseCredentials writes what the service says to credentials that it does not know, or takes for expired.
	RefuseCredentials func(http.ResponseWriter)
}

// front is a proxy before a service, of which a test decides what it answers.
type front struct {
	HTTPService
	elsewhere string // where it redirects to

	mu      sync.Mutex
	answer  func(f *front, w http.ResponseWriter, r *http.Request) // nil: the service's own
	answers atomic.Int64                                           // how often it was called
}

func (f *front) set(answer func(f *front, w http.ResponseWriter, r *http.Request)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	answer := f.answer
	f.mu.Unlock()
	if answer == nil {
		f.Handler.ServeHTTP(w, r)
		return
	}
	defer f.answers.Add(1)
	answer(f, w, r)
}

// forward sends a request to the service, and returns its reply. A write is not given up when its client gives it up.
func (f *front) forward(r *http.Request) *httptest.ResponseRecorder {
	body, _ := io.ReadAll(r.Body)
	ctx := r.Context()
	if r.Method != http.MethodGet {
		ctx = context.WithoutCancel(ctx)
	}
	again := r.Clone(ctx)
	again.Body = io.NopCloser(bytes.NewReader(body))
	reply := httptest.NewRecorder()
	f.Handler.ServeHTTP(reply, again)
	return reply
}

func redirectWith(status int) func(f *front, w http.ResponseWriter, r *http.Request) {
	return func(f *front, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, f.elsewhere+r.URL.RequestURI(), status)
	}
}

// hostileAnswers are what a store may get in the place of a reply.
var hostileAnswers = map[string]func(f *front, w http.ResponseWriter, r *http.Request){
	"301": redirectWith(http.StatusMovedPermanently), "302": redirectWith(http.StatusFound),
	"307": redirectWith(http.StatusTemporaryRedirect), "308": redirectWith(http.StatusPermanentRedirect),
	"the page of another service": func(_ *front, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("ETag", `"5d8c72a5edda8d6a"`)
		_, _ = io.WriteString(w, "<html>Log in</html>")
	},
	"the refusal of another service": func(_ *front, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<html>Forbidden</html>")
	},
	"an empty 200": func(*front, http.ResponseWriter, *http.Request) {},
	"half a body": func(f *front, w http.ResponseWriter, r *http.Request) {
		reply := f.forward(r)
		maps.Copy(w.Header(), reply.Header())
		whole := reply.Body.Bytes()
		w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
		if len(whole) > 0 {
			w.WriteHeader(reply.Code)
			_, _ = w.Write(whole[:len(whole)/2])
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	},
	"half a body whose end is that of the connection": func(f *front, w http.ResponseWriter, r *http.Request) {
		reply := f.forward(r)
		conn, rest, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		reply.Header().Del("Content-Length")
		if whole := reply.Body.Bytes(); len(whole) > 0 {
			_, _ = rest.WriteString("HTTP/1.1 " + strconv.Itoa(reply.Code) + " x\r\nConnection: close\r\n")
			_ = reply.Header().Write(rest)
			_, _ = rest.Write(append([]byte("\r\n"), whole[:len(whole)/2]...))
			_ = rest.Flush()
		}
	},
	"a reply after the deadline": func(f *front, _ http.ResponseWriter, r *http.Request) {
		f.forward(r)
		<-r.Context().Done()
	},
}

// HostileReplies checks what becomes of a store's calls whose replies are not the service's own, or do not arrive as a
// whole: none succeeds, none is final, and afterwards the store finds out what has happened. No request goes to another
// host. Credentials that the service refuses for a while end no call.
func HostileReplies(t *testing.T, s HTTPService) {
	t.Helper()
	newFront := func(t *testing.T) (*front, driver.Store) {
		f := &front{HTTPService: s}
		elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			t.Errorf("another host got %s %s, Authorization %q", r.Method, r.URL.Path, r.Header.Get("Authorization"))
			s.Handler.ServeHTTP(w, r)
		}))
		t.Cleanup(elsewhere.Close)
		f.elsewhere = elsewhere.URL
		server := httptest.NewServer(f)
		t.Cleanup(server.Close)
		return f, s.Open(t, server.URL)
	}
	for what, answer := range hostileAnswers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f, store := newFront(t)
			_, other := newFront(t)
			checkHostile(t, f, store, other, answer)
		})
	}
	refuse := func(f *front, w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		f.RefuseCredentials(w)
	}
	for what, times := range map[string]int64{"credentials refused once": 1, "credentials refused for a while": 6} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f, store := newFront(t)
			held := Acquire(t, store, Mutex(t.Name()+"/held", time.Minute))
			f.set(func(f *front, w http.ResponseWriter, r *http.Request) {
				refuse(f, w, r)
				if f.answers.Load() >= times-1 {
					f.set(nil)
				}
			})
			Release(t, store, Acquire(t, store, Waiting(Mutex(t.Name()+"/new", time.Minute))).Claim)
			if r := Renew(t, store, held); r.Err != nil {
				t.Errorf("the renewal of a held lock: %v", r.Err)
			}
		})
	}
}

// checkHostile checks an acquire, a renewal and a release that get one hostile answer, and what is so afterwards.
func checkHostile(
	t *testing.T, f *front, store, other driver.Store, answer func(f *front, w http.ResponseWriter, r *http.Request),
) {
	t.Helper()
	name := t.Name()
	wanted := Mutex(name+"/wanted", time.Minute)
	held := Acquire(t, store, Mutex(name+"/held", time.Minute))
	released := Acquire(t, store, Mutex(name+"/released", time.Minute))
	f.set(answer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var calls sync.WaitGroup // all at once, since each of them may try until its deadline
	for what, call := range map[string]func() error{
		"an acquire": func() error { _, err := store.Acquire(ctx, wanted); return err },
		"a renewal": func() (err error) {
			store.Renew(ctx, []driver.Grant{held}, func(_ int, r driver.Renewal) { err = r.Err })
			return err
		},
		"a release": func() error { return store.Release(ctx, released.Claim, "") },
	} {
		calls.Go(func() {
			if err := call(); err == nil || driverutil.IsFinal(err) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	calls.Wait()
	f.set(nil)
	if r := Renew(t, store, held); r.Err != nil {
		t.Errorf("the next renewal: %v", r.Err)
	}
	for _, c := range []driver.Claim{wanted, released.Claim, held.Claim} {
		if err := store.Release(t.Context(), c, ""); err != nil && !errors.Is(err, driver.ErrLost) { // it may be done
			t.Errorf("a release of %s: %v", c.Name, err)
		}
		next := Acquire(t, other, Waiting(Mutex(c.Name, time.Minute)))
		Release(t, other, next.Claim)
	}
}
