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

// foreign is another lock client, request by request as its source has them. Its loops are its own, but for their pauses,
// which are shortened alike.
type foreign interface {
	try(ctx context.Context) (bool, error)
	unlock(ctx context.Context) error
}

// rest sends the requests of the JSON interface.
type rest struct {
	t    *testing.T
	http http.Client
	base string // of the service
	name string // of the object
}

func (r *rest) send(ctx context.Context, method, path, contentType string, body []byte) (int, []byte) {
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

func (r *rest) upload(ctx context.Context, query string, meta map[string]any, contentType string, body []byte) (int, []byte) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	meta["name"] = r.name
	part, _ := w.CreatePart(textproto.MIMEHeader{"Content-Type": {"application/json"}})
	_ = json.NewEncoder(part).Encode(meta)
	part, _ = w.CreatePart(textproto.MIMEHeader{"Content-Type": {contentType}})
	_, _ = part.Write(body)
	w.Close()
	return r.send(ctx, "POST", "/upload/storage/v1/b/"+bucket+"/o?"+query, "multipart/related; boundary="+w.Boundary(), b.Bytes())
}

func (r *rest) delete(ctx context.Context, query string) error {
	code, _ := r.send(ctx, "DELETE", "/storage/v1/b/"+bucket+"/o/"+url.PathEscape(r.name)+query, "", nil)
	if code != http.StatusNoContent {
		return fmt.Errorf("the deletion says %d", code)
	}
	return nil
}

// gcslockGo is gcslock in Go: a simple upload of "1", and a bare deletion.
type gcslockGo struct{ rest }

func (c *gcslockGo) try(ctx context.Context) (bool, error) {
	code, _ := c.send(ctx, "POST", "/upload/storage/v1/b/"+bucket+"/o?name="+c.name+"&uploadType=media&ifGenerationMatch=0", "text/plain", []byte("1"))
	return code == http.StatusOK, nil
}

func (c *gcslockGo) unlock(ctx context.Context) error { return c.delete(ctx, "") }

// gsutil is gcslock in shell and gcs-mutex-lock in Python, which both run gsutil.
type gsutil struct{ rest }

func (c *gsutil) try(ctx context.Context) (bool, error) {
	code, _ := c.upload(ctx, "alt=json&ifGenerationMatch=0&uploadType=multipart", map[string]any{}, "application/octet-stream", []byte("lock\n"))
	return code == http.StatusOK, nil
}

func (c *gsutil) unlock(ctx context.Context) error { return c.delete(ctx, "") }

// typescript is gcs-mutex-lock in TypeScript: an empty object.
type typescript struct{ rest }

func (c *typescript) try(ctx context.Context) (bool, error) {
	code, _ := c.upload(ctx, "uploadType=multipart&ifGenerationMatch=0", map[string]any{}, "application/octet-stream", nil)
	return code == http.StatusOK, nil
}

func (c *typescript) unlock(ctx context.Context) error { return c.delete(ctx, "") }

// terraform keeps the generation, and deletes by it.
type terraform struct {
	rest
	generation string
}

func (c *terraform) try(ctx context.Context) (bool, error) {
	code, text := c.upload(ctx, "alt=json&ifGenerationMatch=0&uploadType=multipart", map[string]any{}, "text/plain", []byte(`{"ID":"1","Operation":"OperationTypeApply","Who":"somebody"}`))
	var a struct{ Generation string }
	if code == http.StatusOK {
		if err := json.Unmarshal(text, &a); err != nil {
			return false, err
		}
	}
	c.generation = a.Generation
	return code == http.StatusOK, nil
}

func (c *terraform) unlock(ctx context.Context) error {
	return c.delete(ctx, "?ifGenerationMatch="+c.generation)
}

// vault is Vault's high availability. It judges by the clock of its machine.
type vault struct {
	object   *storage.ObjectHandle
	identity string
}

type vaultRecord struct {
	Key       string    `json:"key"`
	Value     string    `json:"value"`
	Identity  string    `json:"identity"`
	Timestamp time.Time `json:"timestamp"`
}

func (c *vault) get(ctx context.Context) (*vaultRecord, *storage.ObjectAttrs, error) {
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

func (c *vault) try(ctx context.Context) (bool, error) {
	r, attrs, err := c.get(ctx)
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
	text, err := json.Marshal(vaultRecord{Key: "core/lock", Value: "a vault", Identity: c.identity, Timestamp: time.Now().UTC()})
	if err != nil {
		return false, err
	}
	w := c.object.If(cond).NewWriter(ctx)
	w.DisableAutoChecksum = true // of the emulator
	w.ObjectAttrs.CacheControl, w.ObjectAttrs.Metadata = "no-cache; no-store; max-age=0", map[string]string{"lock": string(text)}
	return w.Close() == nil, nil // it takes any error for a refusal
}

func (c *vault) unlock(ctx context.Context) error {
	r, attrs, err := c.get(ctx)
	if err != nil || r == nil || r.Identity != c.identity {
		return err
	}
	return c.object.If(storage.Conditions{GenerationMatch: attrs.Generation, MetagenerationMatch: attrs.Metageneration}).Delete(ctx)
}

// clients makes the foreign clients of a layout, on the object of the lock m.
func clients(t *testing.T, s *gcstest.Server, layout gcs.Layout) []foreign {
	name := string(layout) + "/m"
	if layout == gcs.LayoutVault {
		var all []foreign
		for i := range 2 {
			client, _ := dial(t, s)
			all = append(all, &vault{client.Bucket(bucket).Object(name), fmt.Sprint("vault-", i)})
		}
		return all
	}
	r := rest{t: t, base: s.URL, name: name}
	return []foreign{&gcslockGo{r}, &gsutil{r}, &typescript{r}, &terraform{rest: r}}
}

// TestInterop: two of our clients and those that are in use already want one lock all the time, and one at a time has it.
func TestInterop(t *testing.T) {
	t.Parallel()
	for _, layout := range []gcs.Layout{gcs.LayoutGCSLock, gcs.LayoutVault} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := start(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			fail := func(format string, args ...any) { // and end the others, who may wait for what is left behind
				if ctx.Err() == nil {
					t.Errorf(format, args...)
				}
				stop()
			}
			others := clients(t, s, layout)
			rounds := times(10, 1000) // for each
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
				store, _ := open(t, s, quickIn(layout))
				client, err := holdfast.New(store, nil)
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					for range rounds {
						if err := client.Do(ctx, "m", func(context.Context, *holdfast.Lease) error { enter(); return nil }); err != nil {
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
						for pause := 10 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 80*time.Millisecond) {
							if ok, err := c.try(ctx); err != nil {
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

// TestForeignHolder: a foreign holder is shown, refuses us, is broken by force only, and ends by its own rules.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	for _, layout := range []gcs.Layout{gcs.LayoutGCSLock, gcs.LayoutVault} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			s := start(t)
			ctx := t.Context()
			store, _ := open(t, s, quickIn(layout))
			for _, c := range clients(t, s, layout) {
				if ok, err := c.try(ctx); !ok || err != nil {
					t.Fatalf("%T does not get a free lock: %v", c, err)
				}
				_, err := store.Acquire(ctx, mutex("m", time.Minute))
				var held *driver.HeldError
				if !errors.As(err, &held) || len(held.Holders) != 1 || !held.Holders[0].Foreign || held.Holders[0].Token != 0 {
					t.Errorf("%T holds the lock, and we are told %v", c, err)
				}
				l, err := store.Inspect(ctx, "m")
				if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign {
					t.Fatalf("%T holds the lock, and we see %+v, %v", c, l, err)
				}
				if err := store.Break(ctx, "m", l.Holders[0].Ref, driver.BreakGraceful); !errors.Is(err, driver.ErrUnsupported) {
					t.Errorf("a break that a foreign holder cannot hear: %v", err)
				}
				if err := store.Break(ctx, "m", l.Holders[0].Ref, driver.BreakForce); err != nil {
					t.Error(err)
				}
				g, err := store.Acquire(ctx, mutex("m", time.Minute))
				if err != nil {
					t.Fatalf("after the break: %v", err)
				}
				if ok, err := c.try(ctx); ok || err != nil {
					t.Errorf("%T gets a lock of ours: %v", c, err)
				}
				if err := store.Release(ctx, g.Claim, ""); err != nil {
					t.Error(err)
				}
				if ok, err := c.try(ctx); !ok || err != nil {
					t.Errorf("%T does not get the lock that we released: %v", c, err)
				}
				if err := c.unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestForeignAge: what a dead foreign client has left is taken over when it is old enough by the store's clock, and not
// before; and a Vault's after its 15 s.
func TestForeignAge(t *testing.T) {
	t.Parallel()
	for layout, age := range map[gcs.Layout]time.Duration{gcs.LayoutGCSLock: 24 * time.Hour, gcs.LayoutVault: 15 * time.Second} {
		s := start(t)
		opts := quickIn(layout)
		if layout == gcs.LayoutGCSLock {
			opts.ForeignAge = age
		}
		c := clients(t, s, layout)[0]
		if ok, err := c.try(t.Context()); !ok || err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			later time.Duration
			free  bool
		}{{age - 10*time.Second, false}, {age + 6*time.Second, true}} {
			s.Shift(step.later)
			store, _ := open(t, s, opts)
			_, err := store.Acquire(t.Context(), mutex("m", time.Minute))
			if free := err == nil; free != step.free {
				t.Errorf("%s: after %v: %v", layout, step.later, err)
			}
		}
	}
}

// TestVaultSeesOurEnd: a Vault takes over a lock of ours when its TTL is over, whatever that is, and not before.
func TestVaultSeesOurEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	store, _ := open(t, s, quickIn(gcs.LayoutVault))
	v := clients(t, s, gcs.LayoutVault)[0].(*vault)
	var machine pace.Pace
	defer machine.Watch()()
	for _, ttl := range []time.Duration{5 * time.Second, time.Minute, time.Hour} {
		began := time.Now()
		acquire(t, store, mutex("m", ttl))
		r, attrs, err := v.get(t.Context())
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
