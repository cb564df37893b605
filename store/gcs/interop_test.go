package gcs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/storage"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/store/gcs"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
)

// foreignClient is another lock client, which sends the requests that are in its source. Its loops are its own,
// except that all pauses are shortened alike.
type foreignClient interface {
	tryLock(ctx context.Context) (bool, error)
	unlock(ctx context.Context) error
}

// restClient sends requests of the JSON API.
type restClient struct {
	t    *testing.T
	http http.Client
	base string // of the service
	name string // of the object
}

func (r *restClient) sendRequest(ctx context.Context, method, path, contentType string, body []byte) (int, []byte) {
	q, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if contentType != "" {
		q.Header.Set("Content-Type", contentType)
	}
	a, err := r.http.Do(q)
	if err != nil {
		return 0, nil
	}
	defer a.Body.Close()
	text, _ := io.ReadAll(a.Body)
	return a.StatusCode, text
}

func (r *restClient) uploadObject(ctx context.Context, query string, meta map[string]any, contentType string,
	body []byte) (int, []byte) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	meta["name"] = r.name
	part, _ := w.CreatePart(textproto.MIMEHeader{"Content-Type": {"application/json"}})
	_ = json.NewEncoder(part).Encode(meta)
	part, _ = w.CreatePart(textproto.MIMEHeader{"Content-Type": {contentType}})
	_, _ = part.Write(body)
	w.Close()
	return r.sendRequest(ctx, "POST", "/upload/storage/v1/b/"+bucket+"/o?"+query,
		"multipart/related; boundary="+w.Boundary(), b.Bytes())
}

func (r *restClient) deleteObject(ctx context.Context, query string) error {
	code, _ := r.sendRequest(ctx, "DELETE", "/storage/v1/b/"+bucket+"/o/"+url.PathEscape(r.name)+query, "", nil)
	if code != http.StatusNoContent {
		return fmt.Errorf("the deletion says %d", code)
	}
	return nil
}

// gcslockGo is gcslock in Go: it uploads "1", and deletes without a condition.
type gcslockGo struct{ restClient }

func (c *gcslockGo) tryLock(ctx context.Context) (bool, error) {
	code, _ := c.sendRequest(ctx, "POST", "/upload/storage/v1/b/"+bucket+"/o?name="+c.name+
		"&uploadType=media&ifGenerationMatch=0", "text/plain", []byte("1"))
	return code == http.StatusOK, nil
}

func (c *gcslockGo) unlock(ctx context.Context) error { return c.deleteObject(ctx, "") }

// gsutilClient is gcslock in shell, and gcs-mutex-lock in Python. Both run gsutil.
type gsutilClient struct{ restClient }

func (c *gsutilClient) tryLock(ctx context.Context) (bool, error) {
	code, _ := c.uploadObject(ctx, "alt=json&ifGenerationMatch=0&uploadType=multipart", map[string]any{},
		"application/octet-stream", []byte("lock\n"))
	return code == http.StatusOK, nil
}

func (c *gsutilClient) unlock(ctx context.Context) error { return c.deleteObject(ctx, "") }

// typescriptClient is gcs-mutex-lock in TypeScript: an empty object.
type typescriptClient struct{ restClient }

func (c *typescriptClient) tryLock(ctx context.Context) (bool, error) {
	code, _ := c.uploadObject(ctx, "uploadType=multipart&ifGenerationMatch=0", map[string]any{},
		"application/octet-stream", nil)
	return code == http.StatusOK, nil
}

func (c *typescriptClient) unlock(ctx context.Context) error { return c.deleteObject(ctx, "") }

// terraformClient remembers the generation, and deletes on that condition.
type terraformClient struct {
	restClient
	generation string
}

func (c *terraformClient) tryLock(ctx context.Context) (bool, error) {
	code, text := c.uploadObject(ctx, "alt=json&ifGenerationMatch=0&uploadType=multipart", map[string]any{},
		"text/plain", []byte(`{"ID":"1","Operation":"OperationTypeApply","Who":"somebody"}`))
	var a struct{ Generation string }
	if code == http.StatusOK {
		if err := json.Unmarshal(text, &a); err != nil {
			return false, err
		}
	}
	c.generation = a.Generation
	return code == http.StatusOK, nil
}

func (c *terraformClient) unlock(ctx context.Context) error {
	return c.deleteObject(ctx, "?ifGenerationMatch="+c.generation)
}

// vaultClient is Vault's high availability. It judges by the clock of its own machine.
type vaultClient struct {
	object   *storage.ObjectHandle
	identity string
}

type vaultRecord struct {
	Key       string    `json:"key"`
	Value     string    `json:"value"`
	Identity  string    `json:"identity"`
	Timestamp time.Time `json:"timestamp"`
}

func (c *vaultClient) getRecord(ctx context.Context) (*vaultRecord, *storage.ObjectAttrs, error) {
	attrs, err := c.object.Attrs(ctx)
	if errors.Is(err, storage.ErrObjectNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var r vaultRecord
	if err := json.Unmarshal([]byte(attrs.Metadata["lock"]), &r); err != nil {
		return nil, nil, fmt.Errorf("the lock's record: %w", err)
	}
	return &r, attrs, nil
}

func (c *vaultClient) tryLock(ctx context.Context) (bool, error) {
	r, attrs, err := c.getRecord(ctx)
	if err != nil {
		return false, err
	}
	if r != nil && r.Identity != c.identity && time.Now().UTC().Sub(r.Timestamp) < 15*time.Second {
		return false, nil
	}
	cond := storage.Conditions{DoesNotExist: true}
	if attrs != nil {
		cond = storage.Conditions{GenerationMatch: attrs.Generation, MetagenerationMatch: attrs.Metageneration}
	}
	text, err := json.Marshal(vaultRecord{Key: "core/lock", Value: "a vault", Identity: c.identity,
		Timestamp: time.Now().UTC()})
	if err != nil {
		return false, err
	}
	w := c.object.If(cond).NewWriter(ctx)
	w.DisableAutoChecksum = true // of the emulator
	w.ObjectAttrs.CacheControl, w.ObjectAttrs.Metadata = "no-cache; no-store; max-age=0", map[string]string{"lock": string(text)}
	return w.Close() == nil, nil // it treats any error as a refusal
}

func (c *vaultClient) unlock(ctx context.Context) error {
	r, attrs, err := c.getRecord(ctx)
	if err != nil || r == nil || r.Identity != c.identity {
		return err
	}
	return c.object.If(storage.Conditions{GenerationMatch: attrs.Generation,
		MetagenerationMatch: attrs.Metageneration}).Delete(ctx)
}

// foreignClients makes the foreign clients of a layout for the object of the lock m.
func foreignClients(t *testing.T, s *gcstest.Server, layout gcs.Layout) []foreignClient {
	name := string(layout) + "/m"
	if layout == gcs.LayoutVault {
		var all []foreignClient
		for i := range 2 {
			client := newClient(t, s)
			all = append(all, &vaultClient{client.Bucket(bucket).Object(name), fmt.Sprint("vault-", i)})
		}
		return all
	}
	r := restClient{t: t, base: s.URL, name: name}
	return []foreignClient{&gcslockGo{r}, &gsutilClient{r}, &typescriptClient{r}, &terraformClient{restClient: r}}
}

// TestInterop: two of our clients and the foreign ones of a layout contend for one lock. There is never more than
// one holder.
func TestInterop(t *testing.T) {
	t.Parallel()
	for _, layout := range []gcs.Layout{gcs.LayoutGCSLock, gcs.LayoutVault} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			fail := func(format string, args ...any) {
				// and end the others, which may wait for an object that was left behind
				if ctx.Err() == nil {
					t.Errorf(format, args...)
				}
				stop()
			}
			others := foreignClients(t, s, layout)
			rounds := countFor(10, 1000) // for each
			var inside atomic.Int64
			var wg sync.WaitGroup
			enter := func() {
				if n := inside.Add(1); n != 1 {
					fail("%d hold the lock at a time", n)
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
			}
			var ours, theirs atomic.Int64
			for range 2 {
				store, _ := mustOpen(t, s, quickLayoutOptions(layout))
				client, err := holdfast.New(store, nil)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					for range rounds {
						if err := client.Do(ctx, "m", func(context.Context,
							*holdfast.Lease) error {
							enter()
							return nil
						}); err != nil {
							fail("ours: %v", err)
							return
						}
						ours.Add(1)
						time.Sleep(rand.N(20 * time.Millisecond))
					}
				})
			}
			for _, c := range others {
				wg.Go(func() {
					for range rounds {
						for pause := 10 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause,
							80*time.Millisecond) {
							if ok, err := c.tryLock(ctx); err != nil {
								fail("%T: %v", c, err)
								return
							} else if ok {
								break
							}
							time.Sleep(rand.N(pause))
						}
						if ctx.Err() != nil {
							return
						}
						enter()
						if err := c.unlock(ctx); err != nil {
							fail("%T: %v", c, err)
							return
						}
						theirs.Add(1)
						time.Sleep(rand.N(20 * time.Millisecond))
					}
				})
			}
			wg.Wait()
			t.Logf("held %d times by us, %d times by %d clients of theirs", ours.Load(), theirs.Load(), len(others))
		})
	}
}

// TestForeignHolder: a foreign holder is shown, refuses our claims, can be broken by force only, and expires by
// its own rules.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	for _, layout := range []gcs.Layout{gcs.LayoutGCSLock, gcs.LayoutVault} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			ctx := t.Context()
			store, _ := mustOpen(t, s, quickLayoutOptions(layout))
			for _, c := range foreignClients(t, s, layout) {
				if ok, err := c.tryLock(ctx); !ok || err != nil {
					t.Fatalf("%T does not get a free lock: %v", c, err)
				}
				_, err := store.Acquire(ctx, mutexClaim("m", time.Minute))
				var held *driver.HeldError
				if !errors.As(err, &held) || len(held.Holders) != 1 || !held.Holders[0].Foreign ||
					held.Holders[0].Token != 0 {
					t.Errorf("%T holds the lock, and we are told %v", c, err)
				}
				l, err := store.Inspect(ctx, "m")
				if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign {
					t.Fatalf("%T holds the lock, and we see %+v, %v", c, l, err)
				}
				if err := store.Break(ctx, "m", l.Holders[0].Ref, driver.Break{Mode: driver.BreakGraceful}); !errors.Is(err,
					driver.ErrUnsupported) {
					t.Errorf("a break that a foreign holder cannot learn of: %v", err)
				}
				if err := store.Break(ctx, "m", l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
					t.Error(err)
				}
				g, err := store.Acquire(ctx, mutexClaim("m", time.Minute))
				if err != nil {
					t.Fatalf("after the break: %v", err)
				}
				if ok, err := c.tryLock(ctx); ok || err != nil {
					t.Errorf("%T gets a lock of ours: %v", c, err)
				}
				if err := store.Release(ctx, g.Claim, ""); err != nil {
					t.Error(err)
				}
				if ok, err := c.tryLock(ctx); !ok || err != nil {
					t.Errorf("%T does not get the lock that we released: %v", c, err)
				}
				if err := c.unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestForeignAge: the object of a dead foreign client is taken over when it is old enough by the store's clock,
// and not before; that of a Vault after 15 s.
func TestForeignAge(t *testing.T) {
	t.Parallel()
	for layout, age := range map[gcs.Layout]time.Duration{gcs.LayoutGCSLock: 24 * time.Hour,
		gcs.LayoutVault: 15 * time.Second} {
		s := startServer(t)
		opts := quickLayoutOptions(layout)
		if layout == gcs.LayoutGCSLock {
			opts.ForeignAge = age
		}
		c := foreignClients(t, s, layout)[0]
		if ok, err := c.tryLock(t.Context()); !ok || err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			later time.Duration
			free  bool
		}{{age - 10*time.Second, false}, {age + 6*time.Second, true}} {
			s.Shift(step.later)
			store, _ := mustOpen(t, s, opts)
			_, err := store.Acquire(t.Context(), mutexClaim("m", time.Minute))
			if free := err == nil; free != step.free {
				t.Errorf("%s: after %v: %v", layout, step.later, err)
			}
		}
	}
}

// TestVaultSeesOurEnd: a Vault takes over a lock of ours when it has expired, whatever its TTL, and not before.
func TestVaultSeesOurEnd(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	store, _ := mustOpen(t, s, quickLayoutOptions(gcs.LayoutVault))
	v := foreignClients(t, s, gcs.LayoutVault)[0].(*vaultClient)
	var machine pace.Pace
	defer machine.Watch()()
	for _, ttl := range []time.Duration{5 * time.Second, time.Minute, time.Hour} {
		began := time.Now()
		acquire(t, store, mutexClaim("m", ttl))
		r, attrs, err := v.getRecord(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ends := r.Timestamp.Add(15 * time.Second)
		if d := time.Until(ends) - ttl; d < -3*time.Second-machine.Lost(began) || d > 3*time.Second {
			t.Errorf("a Vault would take over %v after the end of a TTL of %v", d, ttl)
		}
		if !strings.HasSuffix(r.Key, "/m") || r.Identity == "" || r.Value == "" {
			t.Errorf("the record is %+v", r)
		}
		if err := v.object.If(storage.Conditions{GenerationMatch: attrs.Generation}).Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
