// Package s3test runs services for tests that speak the protocol of S3: one in this process, which counts requests and
// can fail in the ways in which real services fail, and MinIO as a child process.
package s3test

import (
	"cmp"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
)

// Server is one service in this process. It compares the conditions of reads, writes and removals, in one atomic step
// each, and checks the date and the access key of a signature, but not the signature itself.
type Server struct {
	URL string // http://127.0.0.1:port

	http *httptest.Server

	// Decide, if set before the first request, decides what becomes of each request. Several goroutines may call it at
	// once.
	Decide func(r Request) Fate

	mu       sync.Mutex
	flaws    Flaws
	shift    time.Duration
	buckets  map[string]map[string]*object
	settings map[string]string // of all buckets, as XML, by the name of their query
	denied   map[Kind]bool
	counts   map[Kind]int
	writes   map[string][]time.Time
	compared int // conditions of writes
}

type object struct {
	data    []byte
	etag    string
	written time.Time
}

// Flaws are ways in which a service may be unfit for locks, or have a bad day.
type Flaws struct {
	IgnoreIfNoneMatch bool   // in PUT
	IgnoreIfMatch     bool   // in PUT
	DeleteBlindly     bool   // If-Match is ignored in DELETE, as MinIO does
	RefuseConditions  bool   // If-Match in DELETE is not implemented
	DeleteAbsent      bool   // a DELETE with If-Match of an object that does not exist succeeds
	AbsentIsOther     bool   // it is refused as if the object were another one
	OtherPoolEvery    int    // every so many writes, the condition is compared where no object is; 0: never
	MinIO             bool   // replies name MinIO as their server
	WeakETags         bool   // replies to reads have weak ETags, as after a proxy that compresses
	NoETags           bool   // replies to writes have none
	EmptyPages        bool   // the first page of each listing is empty
	NoTokens          bool   // replies do not say how to continue a listing
	NoDate            bool   // no reply has a Date
	Google            bool   // replies look like Cloud Storage's
	Region            string // requests that are signed for another region are refused; empty: none is
	ExpiredToken      bool   // the credentials have expired
}

// Kind is the kind of a request.
type Kind string

// All kinds.
const (
	Read     Kind = "read"     // an object
	List     Kind = "list"     // a page of a listing
	Write    Kind = "write"    // an object is made or replaced
	Delete   Kind = "delete"   // an object is removed
	Settings Kind = "settings" // of a bucket
)

// Request is a request for an object, for a listing, or for the settings of a bucket.
type Request struct {
	Kind        Kind
	Bucket, Key string
	Query       url.Values
}

// Fate says what becomes of a request. The zero value: it is handled.
type Fate struct {
	RefuseStatus  int           // it is not handled, and the reply has this status; 0: it is handled
	Code          string        // the code in that reply, or in that of ReplaceStatus
	Text          string        // the body of that reply, in place of an error as S3 writes it
	Delay         time.Duration // before it is handled
	ReplyDelay    time.Duration // after it was handled
	DropReply     bool          // it is handled, and the connection is closed without a reply
	ReplaceStatus int           // it is handled, and the reply has this status
	Twice         bool          // it is handled twice, and the reply is the second one
	// Late, with RefuseStatus, is when the request is handled nevertheless: when the channel is closed.
	Late <-chan struct{}
	// Handled is called after the request was handled, and before the reply. nil: nothing is called.
	Handled func()
}

// AccessKey and SecretKey are the credentials of all services of this package.
const (
	AccessKey = "holdfast-tests"
	SecretKey = "holdfast-tests-secret"
)

// Start runs a service with these buckets.
func Start(buckets ...string) *Server {
	s := &Server{buckets: map[string]map[string]*object{}, settings: map[string]string{}, denied: map[Kind]bool{},
		counts: map[Kind]int{}, writes: map[string][]time.Time{}}
	for _, b := range buckets {
		s.buckets[b] = map[string]*object{}
	}
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL
	return s
}

// Stop ends the service.
func (s *Server) Stop() { s.http.CloseClientConnections(); s.http.Close() }

// NewClient returns a client of a service with the credentials of this package. Its requests go over an HTTP client;
// nil means the SDK's own.
func NewClient(endpoint string, over *http.Client) *sdk.Client {
	o := sdk.Options{BaseEndpoint: &endpoint, UsePathStyle: true, Region: "us-east-1",
		Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(AccessKey, SecretKey, ""))}
	if over != nil {
		o.HTTPClient = over
	}
	return sdk.New(o)
}

// SetFlaws sets what is wrong with the service.
func (s *Server) SetFlaws(f Flaws) { s.locked(func() { s.flaws = f }) }

// Shift sets how far the service's clock is ahead of the machine's.
func (s *Server) Shift(d time.Duration) { s.locked(func() { s.shift = d }) }

// Deny makes the service refuse all requests of these kinds, and of no others, because a permission is missing.
func (s *Server) Deny(kinds ...Kind) {
	s.locked(func() {
		clear(s.denied)
		for _, k := range kinds {
			s.denied[k] = true
		}
	})
}

// Set makes a setting of all buckets: "versioning", "lifecycle", "object-lock" or "replication", as XML. An empty text
// removes it.
func (s *Server) Set(name, text string) { s.locked(func() { s.settings[name] = text }) }

// DropBucket removes a bucket.
func (s *Server) DropBucket(name string) { s.locked(func() { delete(s.buckets, name) }) }

// Put makes or replaces an object, and Remove removes one, as some other program would. Get returns the content of one;
// nil: there is none.
func (s *Server) Put(bucket, key string, data []byte) {
	s.locked(func() { s.buckets[bucket][key] = newObject(data, time.Now().Add(s.shift)) })
}

// Remove removes an object.
func (s *Server) Remove(bucket, key string) { s.locked(func() { delete(s.buckets[bucket], key) }) }

// Get returns the content of an object; nil: there is none.
func (s *Server) Get(bucket, key string) (data []byte) {
	s.locked(func() {
		if o := s.buckets[bucket][key]; o != nil {
			data = o.data
		}
	})
	return data
}

// Names returns the keys of a bucket, sorted.
func (s *Server) Names(bucket string) (keys []string) {
	s.locked(func() {
		for k := range s.buckets[bucket] {
			keys = append(keys, k)
		}
	})
	slices.Sort(keys)
	return keys
}

func (s *Server) locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// Counts returns how many requests of each kind there were since its last call, for example "read 1, write 2".
func (s *Server) Counts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []string
	for _, k := range []Kind{Read, List, Write, Delete, Settings} {
		if n := s.counts[k]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, n))
		}
	}
	clear(s.counts)
	return strings.Join(parts, ", ")
}

// Writes returns the times of the writes and removals of an object that took effect.
func (s *Server) Writes(key string) (times []time.Time) {
	s.locked(func() { times = slices.Clone(s.writes[key]) })
	return times
}

func newObject(data []byte, now time.Time) *object {
	sum := md5.Sum(data)
	return &object{data: data, etag: `"` + hex.EncodeToString(sum[:]) + `"`, written: now}
}

// settingNames are the queries for settings, and the codes of those that were never made.
var settingNames = map[string]string{"versioning": "", "lifecycle": "NoSuchLifecycleConfiguration",
	"object-lock": "ObjectLockConfigurationNotFoundError", "replication": "ReplicationConfigurationNotFoundError"}

// parseRequest says what a request does.
func parseRequest(r *http.Request) Request {
	p := Request{Query: r.URL.Query()}
	p.Bucket, p.Key, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case p.Key == "" && p.Query.Has("list-type"):
		p.Kind = List
	case p.Key == "":
		p.Kind = Settings
	case r.Method == http.MethodPut:
		p.Kind = Write
	case r.Method == http.MethodDelete:
		p.Kind = Delete
	default:
		p.Kind = Read
	}
	return p
}

// ServeHTTP handles a request as Decide wants.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := parseRequest(r)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	s.locked(func() { s.counts[req.Kind]++ })
	var fate Fate
	if s.Decide != nil {
		fate = s.Decide(req)
	}
	s.mu.Lock()
	now, flaws := time.Now().Add(s.shift), s.flaws
	s.mu.Unlock()
	w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
	if flaws.NoDate {
		w.Header()["Date"] = nil
	}
	if flaws.Google {
		w.Header().Set("X-Guploader-Uploadid", "x")
	}
	if flaws.MinIO {
		w.Header().Set("Server", "MinIO")
	}
	switch {
	case fate.RefuseStatus != 0:
		if fate.Late != nil {
			go s.handleLate(fate, r.Header, req, body)
		}
		if fate.Text != "" {
			http.Error(w, fate.Text, fate.RefuseStatus)
			return
		}
		refuse(w, fate.RefuseStatus, cmp.Or(fate.Code, "SlowDown"))
		return
	case s.refuseSignature(w, r, now, flaws):
		return
	}
	time.Sleep(fate.Delay)
	reply := httptest.NewRecorder()
	if fate.Twice {
		s.handle(httptest.NewRecorder(), r.Header, req, body)
	}
	s.handle(reply, r.Header, req, body)
	if fate.Handled != nil {
		fate.Handled()
	}
	time.Sleep(fate.ReplyDelay)
	switch {
	case fate.DropReply:
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			c.Close()
		}
		return
	case fate.ReplaceStatus != 0:
		refuse(w, fate.ReplaceStatus, cmp.Or(fate.Code, "InternalError"))
		return
	}
	for k, v := range reply.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(reply.Code)
	_, _ = w.Write(reply.Body.Bytes())
}

// handleLate handles a request whose reply was sent before.
func (s *Server) handleLate(fate Fate, h http.Header, req Request, body []byte) {
	<-fate.Late
	s.handle(httptest.NewRecorder(), h, req, body)
	if fate.Handled != nil {
		fate.Handled()
	}
}

// maxSkew is how far the date of a signature may be from the service's clock.
const maxSkew = 15 * time.Minute

// refuseSignature refuses a request whose signature is not good, and reports whether it did.
func (s *Server) refuseSignature(w http.ResponseWriter, r *http.Request, now time.Time, flaws Flaws) bool {
	signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	_, scope, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	parts := strings.Split(scope, "/")
	switch {
	case len(parts) < 3 || err != nil || parts[0] != AccessKey:
		refuse(w, http.StatusForbidden, "InvalidAccessKeyId")
	case flaws.ExpiredToken:
		refuse(w, http.StatusBadRequest, "ExpiredToken")
	case now.Sub(signed).Abs() > maxSkew:
		refuse(w, http.StatusForbidden, "RequestTimeTooSkewed")
	case flaws.Region != "" && parts[2] != flaws.Region:
		w.Header().Set("X-Amz-Bucket-Region", flaws.Region)
		refuse(w, http.StatusMovedPermanently, "PermanentRedirect")
	default:
		return false
	}
	return true
}

// handle does what a request asks for, in one atomic step.
func (s *Server) handle(w http.ResponseWriter, h http.Header, req Request, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects, ok := s.buckets[req.Bucket]
	o := objects[req.Key]
	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "NoSuchBucket")
	case s.denied[req.Kind], req.Kind == Read && o == nil && s.denied[List]:
		refuse(w, http.StatusForbidden, "AccessDenied")
	case len(req.Key) > maxKey:
		refuse(w, http.StatusBadRequest, "KeyTooLongError")
	case req.Kind == List:
		s.listObjects(w, objects, req.Query)
	case req.Kind == Settings:
		s.replySetting(w, req.Query)
	case req.Kind == Read && o == nil:
		refuse(w, http.StatusNotFound, "NoSuchKey")
	case req.Kind == Read:
		w.Header().Set("ETag", o.etag)
		if s.flaws.WeakETags {
			w.Header().Set("ETag", "W/"+o.etag)
		}
		w.Header().Set("Last-Modified", o.written.UTC().Format(http.TimeFormat))
		_, _ = w.Write(o.data)
	case req.Kind == Write:
		s.write(w, h, req, o, body)
	default:
		s.remove(w, h, req, o)
	}
}

// maxKey is the length of the longest key, in bytes.
const maxKey = 1024

// write makes or replaces an object. The mutex is held.
func (s *Server) write(w http.ResponseWriter, h http.Header, req Request, o *object, body []byte) {
	none, match := h.Get("If-None-Match") != "" && !s.flaws.IgnoreIfNoneMatch, h.Get("If-Match")
	if s.compared++; s.flaws.OtherPoolEvery > 0 && s.compared%s.flaws.OtherPoolEvery == 0 {
		o = nil
	}
	switch {
	case none && o != nil:
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	case match == "" || s.flaws.IgnoreIfMatch:
	case o == nil:
		refuse(w, http.StatusNotFound, "NoSuchKey")
		return
	case match != o.etag:
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	o = newObject(body, time.Now().Add(s.shift))
	s.buckets[req.Bucket][req.Key] = o
	s.writes[req.Key] = append(s.writes[req.Key], time.Now())
	if s.flaws.NoETags {
		w.Header().Set("X-Amz-Request-Id", "1") // a service that numbers its requests, as most do
	} else {
		w.Header().Set("ETag", o.etag)
	}
}

// remove removes an object. The mutex is held.
func (s *Server) remove(w http.ResponseWriter, h http.Header, req Request, o *object) {
	match := h.Get("If-Match")
	switch {
	case match == "" || s.flaws.DeleteBlindly:
	case s.flaws.RefuseConditions:
		refuse(w, http.StatusNotImplemented, "NotImplemented")
		return
	case o == nil && s.flaws.DeleteAbsent:
	case o == nil && !s.flaws.AbsentIsOther:
		refuse(w, http.StatusNotFound, "NoSuchKey")
		return
	case o == nil || match != o.etag:
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	delete(s.buckets[req.Bucket], req.Key)
	s.writes[req.Key] = append(s.writes[req.Key], time.Now())
	w.WriteHeader(http.StatusNoContent)
}

// replySetting returns a setting of a bucket. The mutex is held.
func (s *Server) replySetting(w http.ResponseWriter, q url.Values) {
	for name, code := range settingNames {
		text := s.settings[name]
		switch {
		case !q.Has(name):
		case text == "" && code != "":
			refuse(w, http.StatusNotFound, code)
			return
		case text == "":
			text = "<VersioningConfiguration/>"
			fallthrough
		default:
			w.Header().Set("Content-Type", "application/xml")
			_, _ = io.WriteString(w, xml.Header+text)
			return
		}
	}
	refuse(w, http.StatusNotImplemented, "NotImplemented")
}

// tokenPrefix begins the tokens by which a listing is continued.
const tokenPrefix = "after "

// listing is a page of a listing.
type listing struct {
	XMLName     xml.Name `xml:"ListBucketResult"`
	IsTruncated bool
	Next        string `xml:"NextContinuationToken,omitempty"`
	Encoding    string `xml:"EncodingType,omitempty"`
	Contents    []struct {
		Key string
	}
}

// listObjects returns a page of a listing. The mutex is held.
func (s *Server) listObjects(w http.ResponseWriter, objects map[string]*object, q url.Values) {
	size, err := strconv.Atoi(q.Get("max-keys"))
	if err != nil {
		size = 1000
	}
	token := q.Get("continuation-token")
	after := strings.TrimPrefix(cmp.Or(token, q.Get("start-after")), tokenPrefix)
	var keys []string
	for key := range objects {
		if strings.HasPrefix(key, q.Get("prefix")) && key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	page := listing{IsTruncated: len(keys) > size, Encoding: q.Get("encoding-type")}
	if s.flaws.EmptyPages && token == "" {
		page.IsTruncated, size = true, 0
	}
	keys = keys[:min(size, len(keys))]
	if page.IsTruncated && !s.flaws.NoTokens {
		page.Next = tokenPrefix + after
		if len(keys) > 0 {
			page.Next = tokenPrefix + keys[len(keys)-1]
		}
	}
	for _, key := range keys {
		if page.Encoding == "url" {
			key = strings.ReplaceAll(url.QueryEscape(key), "%2F", "/")
		}
		page.Contents = append(page.Contents, struct{ Key string }{key})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(page)
}

// refuse writes an error.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s<Error><Code>%s</Code><Message>the test says %s</Message></Error>", xml.Header, code, code)
}
