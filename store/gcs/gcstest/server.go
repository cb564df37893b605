// Package gcstest runs a Cloud Storage service for tests: an emulator in this process, behind a front end that counts
// requests and can fail in the ways in which the real service fails.
package gcstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fullstorydev/emulators/storage/gcsemu"
	raw "google.golang.org/api/storage/v1"
)

// Server is one emulated service.
type Server struct {
	URL string // http://127.0.0.1:port

	http     *httptest.Server
	emulator *gcsemu.GcsEmu
	store    gcsemu.Store

	// Decide, if set before the first request, decides what becomes of each request. Several goroutines may call
	// it at once.
	Decide func(r Request) Fate
	// IgnorePreconditions makes the service accept writes whose precondition fails, as some emulators do. It names
	// the kinds of writes.
	IgnorePreconditions map[Kind]bool

	mu           sync.Mutex
	shift        time.Duration
	buckets      map[string]bool
	settings     map[string]string // of buckets, as JSON
	denied       map[Kind]bool
	counts       map[Kind]int
	writes       map[string][]time.Time
	shiftAtWrite map[string]time.Duration // by object: the shift of the clock when it was written

	// writeMu is held by writes. The emulator returns the object as it is when it replies, and that may be another
	// writer's already. Listings hold it too: the emulator lists null for an object that is removed meanwhile.
	writeMu sync.Mutex
}

// Kind is the kind of a request.
type Kind string

// All kinds.
const (
	Read   Kind = "read"   // an object, or its metadata
	List   Kind = "list"   // a page of a listing
	Insert Kind = "insert" // an object is created or replaced
	Update Kind = "update" // an object's metadata are changed
	Delete Kind = "delete" // an object is removed
)

// Request is a request for an object, or for a listing.
type Request struct {
	Kind           Kind
	Bucket, Object string
	Query          url.Values
}

// Fate says what becomes of a request. The zero value: it is handled.
type Fate struct {
	RefuseStatus  int           // it is not handled, and the reply has this status; 0: it is handled
	Reason        string        // the reason in that reply
	Delay         time.Duration // before it is handled
	ReplyDelay    time.Duration // after it was handled
	DropReply     bool          // it is handled, and the connection is closed without a reply
	ReplaceStatus int           // it is handled, and the reply has this status
	// Late, with RefuseStatus, is when the request is handled nevertheless: when the channel is closed.
	Late <-chan struct{}
	// Handled is called after the request was handled, and before the reply. nil: nothing is called.
	Handled func()
}

// Start runs a service with these buckets.
func Start(buckets ...string) *Server {
	s := &Server{store: gcsemu.NewMemStore(), buckets: map[string]bool{}, denied: map[Kind]bool{},
		counts: map[Kind]int{},
		writes: map[string][]time.Time{}, shiftAtWrite: map[string]time.Duration{}}
	s.emulator = gcsemu.NewGcsEmu(gcsemu.Options{Store: s.store})
	for _, b := range buckets {
		s.buckets[b] = true
		if err := s.store.CreateBucket(b); err != nil {
			panic(err) // the store is a map in memory, and cannot fail
		}
	}
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL
	return s
}

// Stop ends the service.
func (s *Server) Stop() { s.http.CloseClientConnections(); s.http.Close() }

// Shift sets how far the service's clock is ahead of the machine's.
func (s *Server) Shift(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shift = d
}

// Deny makes the service refuse all requests of these kinds, and of no others, because a permission is missing.
func (s *Server) Deny(kinds ...Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.denied)
	for _, k := range kinds {
		s.denied[k] = true
	}
}

// SetBucket sets the settings of a bucket, as JSON; with an empty text nobody may see them.
func (s *Server) SetBucket(name, settings string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings == nil {
		s.settings = map[string]string{}
	}
	s.settings[name] = settings
}

// DropBucket removes a bucket.
func (s *Server) DropBucket(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.buckets, name)
}

// Counts returns how many requests of each kind there were since its last call, for example "read 1, insert 2".
func (s *Server) Counts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for _, k := range []Kind{Read, List, Insert, Update, Delete} {
		if n := s.counts[k]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, n))
		}
	}
	clear(s.counts)
	return strings.Join(parts, ", ")
}

// Writes returns the times of the writes to an object that took effect.
func (s *Server) Writes(object string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.writes[object]...)
}

// ServeHTTP handles a request as Decide wants.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := parseRequest(r)
	s.mu.Lock()
	s.counts[req.Kind]++
	now := time.Now().Add(s.shift)
	denied, bucket := s.denied[req.Kind], s.buckets[req.Bucket]
	settings, set := s.settings[req.Bucket]
	s.mu.Unlock()
	var fate Fate
	if s.Decide != nil {
		fate = s.Decide(req)
	}
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	switch {
	case set && strings.HasSuffix(r.URL.Path, "/b/"+req.Bucket) && r.Method == http.MethodGet:
		if settings == "" {
			writeRefusal(w, http.StatusForbidden, "forbidden", "somebody does not have storage.buckets.get access.")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, settings)
		return
	case fate.RefuseStatus != 0:
		if fate.Late != nil {
			s.handleLate(fate, r, req)
		}
		writeRefusal(w, fate.RefuseStatus, fate.Reason, "the service is in trouble")
		return
	case !bucket:
		writeRefusal(w, http.StatusNotFound, "notFound", "The specified bucket does not exist.")
		return
	case denied:
		message := fmt.Sprintf("somebody does not have storage.objects.%s access to the Google Cloud Storage object.",
			permissions[req.Kind])
		writeRefusal(w, http.StatusForbidden, "forbidden", message)
		return
	}
	time.Sleep(fate.Delay)
	if s.IgnorePreconditions[req.Kind] {
		q := r.URL.Query()
		q.Del("ifGenerationMatch")
		q.Del("ifMetagenerationMatch")
		r.URL.RawQuery = q.Encode()
	}
	reply := s.forwardRequest(r, req)
	if fate.Handled != nil {
		fate.Handled()
	}
	time.Sleep(fate.ReplyDelay)
	if fate.DropReply {
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			c.Close()
		}
		return
	}
	if fate.ReplaceStatus != 0 {
		writeRefusal(w, fate.ReplaceStatus, "", "the service is in trouble")
		return
	}
	for k, v := range reply.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(reply.Code)
	_, _ = w.Write(reply.Body.Bytes())
}

// handleLate handles a request later, in its own goroutine. It has read the request when it returns.
func (s *Server) handleLate(fate Fate, r *http.Request, req Request) {
	body, _ := io.ReadAll(r.Body)
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Body = io.NopCloser(bytes.NewReader(body))
	go func() {
		<-fate.Late
		s.forwardRequest(r, req)
		if fate.Handled != nil {
			fate.Handled()
		}
	}()
}

var permissions = map[Kind]string{Read: "get", List: "list", Insert: "create", Update: "update", Delete: "delete"}

// forwardRequest passes a request to the emulator, and makes its reply more like the real service's.
func (s *Server) forwardRequest(r *http.Request, req Request) *httptest.ResponseRecorder {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	reply := httptest.NewRecorder()
	if req.Kind == Read {
		s.emulator.Handler(reply, r)
	} else {
		s.writeMu.Lock()
		defer s.writeMu.Unlock()
		if there, _ := s.store.GetMeta("", req.Bucket, req.Object); req.Kind == Delete && there == nil {
			writeRefusal(reply, http.StatusNotFound, "notFound", "No such object: "+req.Bucket+"/"+req.Object)
			return reply
		}
		s.emulator.Handler(reply, r)
		if reply.Code < 300 {
			s.mu.Lock()
			s.writes[req.Object] = append(s.writes[req.Object], time.Now())
			s.shiftAtWrite[req.Object] = s.shift
			s.mu.Unlock()
		}
		if req.Kind == Delete && reply.Code == http.StatusOK {
			reply.Code = http.StatusNoContent
		}
	}
	if media := req.Kind == Read && reply.Header().Get("X-Goog-Generation") != ""; media {
		if meta, _ := s.store.GetMeta("", req.Bucket, req.Object); meta != nil {
			for k, v := range meta.Metadata {
				reply.Header().Set("X-Goog-Meta-"+k, v)
			}
		}
	} else if reply.Code == http.StatusOK && req.Kind != List {
		s.shiftTimes(reply, req.Object)
	}
	return reply
}

// shiftTimes changes an object's times to those that the service's clock showed.
func (s *Server) shiftTimes(reply *httptest.ResponseRecorder, object string) {
	var o raw.Object
	if json.Unmarshal(reply.Body.Bytes(), &o) != nil || o.Updated == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The emulator keeps the creation time of a replaced object. Its generations are times in nanoseconds.
	o.TimeCreated = time.Unix(0, o.Generation).UTC().Format(time.RFC3339Nano)
	for _, at := range []*string{&o.Updated, &o.TimeCreated} {
		if t, err := time.Parse(time.RFC3339Nano, *at); err == nil {
			*at = t.Add(s.shiftAtWrite[object]).Format("2006-01-02T15:04:05.000Z")
		}
	}
	text, _ := json.Marshal(&o)
	reply.Body = bytes.NewBuffer(text)
	reply.Header().Set("Content-Length", strconv.Itoa(len(text)))
}

// writeRefusal writes an error in the form of the JSON API.
func writeRefusal(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": code, "message": message,
		"errors": []any{map[string]any{"reason": reason, "message": message}}}})
}

// parseRequest says what a request does.
func parseRequest(r *http.Request) Request {
	q := r.URL.Query()
	p := Request{Kind: Read, Query: q}
	if params, ok := gcsemu.ParseGcsUrl(r.URL); ok {
		p.Bucket, p.Object = params.Bucket, params.Object
	}
	switch {
	case r.Method == http.MethodDelete:
		p.Kind = Delete
	case r.Method == http.MethodPatch:
		p.Kind = Update
	case r.Method == http.MethodPost:
		p.Kind = Insert
		p.Object = insertName(r)
	case p.Object == "":
		p.Kind = List
	}
	return p
}

// insertName is the name of the object that an upload is for: in the query, or in the first part of the body.
func insertName(r *http.Request) string {
	if name := r.URL.Query().Get("name"); name != "" {
		return name
	}
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var o raw.Object
	if i := bytes.IndexByte(body, '{'); i >= 0 {
		_ = json.NewDecoder(bytes.NewReader(body[i:])).Decode(&o)
	}
	return o.Name
}
