package s3_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// TestNewRefuses: a nil client and options that cannot work are refused with an error that says why, before any
// request.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	client := newClient(t, server.URL)
	for what, c := range map[string]struct {
		client *sdk.Client
		bucket string
		opts   *s3.Options
		want   error
	}{
		"no client":                  {nil, bucket, nil, driver.ErrInvalid},
		"no bucket":                  {client, "", nil, driver.ErrInvalid},
		"an unknown layout":          {client, bucket, &s3.Options{Layout: "other"}, driver.ErrInvalid},
		"a line end in the prefix":   {client, bucket, &s3.Options{Prefix: "a\nb"}, driver.ErrInvalid},
		"a prefix that is not UTF-8": {client, bucket, &s3.Options{Prefix: "\xff"}, driver.ErrInvalid},
		"a slash before the prefix":  {client, bucket, &s3.Options{Prefix: "/a"}, driver.ErrInvalid},
		"an empty segment":           {client, bucket, &s3.Options{Prefix: "a//"}, driver.ErrInvalid},
		"a parent":                   {client, bucket, &s3.Options{Prefix: "../"}, driver.ErrInvalid},
		"a long prefix": {client, bucket, &s3.Options{Prefix: strings.Repeat("a/", 129)},
			driver.ErrInvalid},
		"a long last segment": {client, bucket, &s3.Options{Prefix: "a/" + strings.Repeat("a", 101)},
			driver.ErrInvalid},
		"a negative foreign age": {client, bucket, &s3.Options{Layout: s3.LayoutTerraform, ForeignAge: -1},
			driver.ErrInvalid},
		"an age in the default layout": {client, bucket, &s3.Options{ForeignAge: time.Hour}, driver.ErrInvalid},
		"a directory bucket":           {client, "b--use1-az4--x-s3", nil, driver.ErrUnsupported},
		"its access point":             {client, "a--use1-az4--xa-s3", nil, driver.ErrUnsupported},
		"buckets of several regions": {client, "arn:aws:s3::123456789012:accesspoint/m.mrap", nil,
			driver.ErrUnsupported},
		"Cloud Storage": {newClient(t, "https://storage.googleapis.com"), bucket, nil,
			driver.ErrUnsupported},
	} {
		if s, err := s3.New(t.Context(), c.client, c.bucket, c.opts); s != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
		if s, err := s3.NewTable(t.Context(), c.client, c.bucket, c.opts); s != nil || !errors.Is(err, c.want) {
			t.Errorf("a table, %s: %v, %v", what, s, err)
		}
	}
	if n := server.Counts(); n != "" {
		t.Errorf("requests were sent: %s", n)
	}
}

// TestUnfitServices: a service that ignores a condition of writes is refused when it is tried, even if it ignores one
// in ten, and so is Cloud Storage, with a pointer to its own store. What else prevents its use is reported at once,
// with what to do. Nothing of the trial remains.
func TestUnfitServices(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		flaws s3test.Flaws
		deny  s3test.Kind
		drop  bool
		want  error
		says  string
	}{
		"ignores If-None-Match": {flaws: s3test.Flaws{IgnoreIfNoneMatch: true}, want: driver.ErrUnsupported,
			says: "ignores If-None-Match"},
		"ignores If-Match": {flaws: s3test.Flaws{IgnoreIfMatch: true}, want: driver.ErrUnsupported,
			says: "ignores If-Match"},
		"compares in another pool at times": {flaws: s3test.Flaws{OtherPoolEvery: 10}, want: driver.ErrUnsupported,
			says: "server pool"},
		"changes the ETag of what it returns": {flaws: s3test.Flaws{WeakETags: true}, want: driver.ErrUnsupported,
			says: "change"},
		"has no ETags":  {flaws: s3test.Flaws{NoETags: true}, want: driver.ErrUnsupported, says: "no ETag"},
		"Cloud Storage": {flaws: s3test.Flaws{Google: true}, want: driver.ErrUnsupported, says: "gcs://"},
		"no Date":       {flaws: s3test.Flaws{NoDate: true}, want: driver.ErrUnsupported, says: "no Date"},
		"another region": {flaws: s3test.Flaws{Region: "eu-central-1"}, want: driver.ErrInvalid,
			says: "eu-central-1"},
		"expired credentials": {flaws: s3test.Flaws{ExpiredToken: true}, want: driver.ErrDenied,
			says: "have expired"},
		"no bucket":     {drop: true, want: driver.ErrDenied, says: "there is no bucket"},
		"may not read":  {deny: s3test.Read, want: driver.ErrDenied, says: "s3:GetObject"},
		"may not list":  {deny: s3test.List, want: driver.ErrDenied, says: "s3:ListBucket"},
		"may not write": {deny: s3test.Write, want: driver.ErrDenied, says: "s3:PutObject"},
	} {
		s := startServer(t)
		s.SetFlaws(c.flaws)
		if c.deny != "" {
			s.Deny(c.deny)
		}
		if c.drop {
			s.DropBucket(bucket)
		}
		store, err := s3.New(t.Context(), newClient(t, s.URL), bucket, nil)
		if store != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
		if names := s.Names(bucket); len(names) != 0 {
			t.Errorf("%s: what remains is %q", what, names)
		}
	}
}

// TestProbeFails: whatever request of a trial fails, nothing of the trial remains, and the error is the service's.
func TestProbeFails(t *testing.T) {
	t.Parallel()
	for n := range int64(40) {
		s := startServer(t)
		var count atomic.Int64
		s.Decide = func(r s3test.Request) (f s3test.Fate) {
			if r.Kind != s3test.Read && count.Add(1) == n+1 {
				f = s3test.Fate{RefuseStatus: 503, Code: "SlowDown"}
			}
			return f
		}
		store, err := s3.New(t.Context(), newClient(t, s.URL), bucket, nil)
		switch {
		case err == nil:
			store.Close()
		case !strings.Contains(err.Error(), "SlowDown"):
			t.Errorf("request %d failed: %v", n, err)
		}
		if names := s.Names(bucket); len(names) > 1 || len(names) == 1 && names[0] != "=holdfast-probe" {
			t.Errorf("request %d failed, and %q remain", n, names)
		}
	}
}

// TestProbeIsKept: only the first client in a week tries out a service. The result is not used for another service, nor
// if it is older, or not one. MinIO is tried by each client, since a pool may have been added.
func TestProbeIsKept(t *testing.T) {
	t.Parallel()
	const tried, known = "read 2, write 36, delete 3", "read 1"
	s := startServer(t)
	expect := func(what, want string) {
		t.Helper()
		if got := s.Counts(); got != want {
			t.Errorf("%s took %q, not %q", what, got, want)
		}
	}
	open := func(endpoint string) {
		table, err := s3.NewTable(t.Context(), newClient(t, endpoint), bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		table.Close()
	}
	open(s.URL)
	expect("the first client", tried)
	open(s.URL)
	expect("the second client", known)
	if names := s.Names(bucket); len(names) != 1 {
		t.Errorf("what remains of it is %q", names)
	}
	open(strings.Replace(s.URL, "127.0.0.1", "localhost", 1))
	expect("a client of another service", tried)
	open(s.URL)
	expect("the first service", tried)
	s.Shift(8 * 24 * time.Hour)
	open(s.URL) // the first request is refused because this machine's clock is wrong, and sent again
	expect("a week later", "read 3, write 36, delete 3")
	s.Shift(0)
	s.Put(bucket, "=holdfast-probe", []byte("what is this?"))
	open(s.URL)
	expect("a client that finds something else", tried)
	s.SetFlaws(s3test.Flaws{MinIO: true})
	for range 2 {
		open(s.URL)
		expect("a client of MinIO", "read 2, write 35, delete 3")
	}
}

// TestMayNotDelete: without the permission to delete, and on services that do not know a condition of DELETE, locks
// work, and nothing is ever deleted. A name that is to be forgotten is, and can be used again. Terraform's layout is
// refused.
func TestMayNotDelete(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(s *s3test.Server){
		"denied":          func(s *s3test.Server) { s.Deny(s3test.Delete) },
		"blind":           func(s *s3test.Server) { s.SetFlaws(s3test.Flaws{DeleteBlindly: true}) },
		"not implemented": func(s *s3test.Server) { s.SetFlaws(s3test.Flaws{RefuseConditions: true}) },
	} {
		s := startServer(t)
		prepare(s)
		store := mustOpen(t, s, nil)
		s.Counts()
		release(t, store, acquire(t, store, mutexClaim("m", time.Minute)).Claim)
		if err := store.Forget(t.Context(), "m"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for l, err := range store.List(t.Context(), "") {
			t.Errorf("%s: listed is %v, %v", what, l, err)
		}
		acquire(t, store, mutexClaim("m", time.Minute))
		if n := s.Counts(); strings.Contains(n, "delete") || s.Get(bucket, "m.json") == nil {
			t.Errorf("%s: something was deleted: %s", what, n)
		}
		want := driver.ErrUnsupported
		if what == "denied" {
			want = driver.ErrDenied
		}
		if _, err := s3.New(t.Context(), newClient(t, s.URL), bucket,
			layoutOptions(s3.LayoutTerraform)); !errors.Is(err, want) {
			t.Errorf("%s: Terraform's layout: %v", what, err)
		}
	}
}

// TestPermissionIsOwn: that one client may not delete says nothing about the others, and the reverse. In Terraform's
// layout a client that may not is refused at once. In ours it keeps what it cannot delete.
func TestPermissionIsOwn(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	terraform := &s3.Options{Layout: s3.LayoutTerraform}
	open := func(opts *s3.Options) (driver.Store, error) {
		store, err := s3.New(t.Context(), newClient(t, s.URL), bucket, opts)
		if err == nil {
			t.Cleanup(func() { store.Close() })
		}
		return store, err
	}
	s.Deny(s3test.Delete)
	if _, err := open(nil); err != nil {
		t.Fatal(err)
	}
	s.Deny()
	if _, err := open(terraform); err != nil {
		t.Errorf("a client that may delete, after one that may not: %v", err)
	}
	s.Deny(s3test.Delete)
	if _, err := open(terraform); !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "s3:DeleteObject") {
		t.Errorf("a client that may not delete, after one that may: %v", err)
	}
	store, err := open(nil)
	if err != nil {
		t.Fatal(err)
	}
	release(t, store, acquire(t, store, mutexClaim("m", time.Minute)).Claim)
	if err := store.Forget(t.Context(), "m"); err != nil {
		t.Errorf("forgetting without the permission to delete: %v", err)
	}
	for l, err := range store.List(t.Context(), "") {
		t.Errorf("listed is %v, %v", l, err)
	}
}

// TestWrongClock: a client whose time of day is wrong is told so by the service, and signs with the service's.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Shift(3 * time.Hour)
	for _, attempts := range []int{0, 1, 5} { // what the user's client is set to
		client := sdk.New(newClient(t, s.URL).Options(), func(o *sdk.Options) { o.RetryMaxAttempts = attempts })
		store, err := s3.New(t.Context(), client, bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		g := acquire(t, store, mutexClaim("m", time.Minute))
		if err := renew(t, store, g).Err; err != nil {
			t.Error(err)
		}
		release(t, store, g.Claim)
	}
}

// TestRefusalsWhileHeld: what a service says of a write decides what becomes of it. Too many requests, trouble of the
// service, and a write that came in between are no refusals, and the same claim is renewed later. A missing permission
// and credentials that have expired are reported.
func TestRefusalsWhileHeld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		code   string
		want   error // nil: it is tried again
	}{
		{409, "ConditionalRequestConflict", nil}, {429, "TooManyRequests", nil}, {503, "SlowDown", nil},
		{500, "InternalError", nil}, {400, "RequestTimeout", nil}, {400, "BadDigest", nil}, {409, "OperationAborted",
			nil},
		{403, "AccessDenied", driver.ErrDenied}, {400, "ExpiredToken", nil},
		{403, "RequestTimeTooSkewed", driver.ErrDenied}, {403, "InvalidObjectState", driver.ErrDenied},
		{400, "KMS.DisabledException", driver.ErrDenied}, {507, "XMinioStorageFull", driver.ErrDenied},
		{400, "KeyTooLongError", driver.ErrInvalid}, {301, "PermanentRedirect", driver.ErrInvalid},
		{404, "NoSuchBucket", driver.ErrDenied}, {405, "MethodNotAllowed", driver.ErrUnsupported},
	} {
		s := startServer(t)
		fate := make(chan s3test.Fate, 2)
		s.Decide = func(r s3test.Request) (f s3test.Fate) {
			if r.Kind == s3test.Write {
				select {
				case f = <-fate:
				default:
				}
			}
			return f
		}
		store := mustOpen(t, s, nil)
		g := acquire(t, store, mutexClaim("m", time.Minute))
		fate <- s3test.Fate{RefuseStatus: c.status, Code: c.code}
		if c.code == "RequestTimeTooSkewed" { // the SDK tries again once
			fate <- s3test.Fate{RefuseStatus: c.status, Code: c.code}
		}
		err := renew(t, store, g).Err
		switch {
		case c.want == nil && (driverutil.IsFinal(err) || renew(t, store, g).Err != nil):
			t.Errorf("%d %s: %v, and then %v", c.status, c.code, err, renew(t, store, g).Err)
		case c.want != nil && !errors.Is(err, c.want):
			t.Errorf("%d %s: %v", c.status, c.code, err)
		}
	}
}
