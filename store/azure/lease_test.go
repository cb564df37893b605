package azure_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/pace"
	"github.com/holdfast-go/holdfast/internal/sessiontest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/azure"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
)

func leaseOptions() azure.Options { return azure.Options{Prefix: "leases/", Layout: azure.LayoutLease} }

// TestLeaseConformance: the layout keeps every promise of the contract that it does not refuse.
func TestLeaseConformance(t *testing.T) {
	storetest.Conform(t, newHarness(t, startService(t), leaseOptions()), drivertest.Options{Parallel: 16})
}

// foreigner is another program, which leases a blob by Microsoft's library alone.
type foreigner struct {
	*lease.BlobClient
	blob *blockblob.Client
	id   string
}

func newForeigner(t testing.TB, s *service, name string) *foreigner {
	t.Helper()
	id := newGUID()
	f := &foreigner{blob: s.blobClient("leases/" + name), id: id}
	var err error
	if f.BlobClient, err = lease.NewBlobClient(f.blob, &lease.BlobClientOptions{LeaseID: &id}); err != nil {
		t.Fatal(err)
	}
	return f
}

var guids atomic.Int64

func newGUID() string { return fmt.Sprintf("6b1b1b44-5d0a-4a7e-9d1b-%012x", guids.Add(1)) }

// lock is what DistributedLock.Azure does: it tries to lease the blob, and makes it first if there is none.
func (f *foreigner) lock(ctx context.Context, seconds int32) error {
	_, err := f.AcquireLease(ctx, seconds, nil)
	if bloberror.HasCode(err, bloberror.BlobNotFound) {
		_, err = f.blob.UploadBuffer(ctx, nil, &blockblob.UploadBufferOptions{
			Metadata: map[string]*string{"__DistributedLock": to.Ptr("1")}})
		if err == nil || bloberror.HasCode(err, bloberror.LeaseIDMissing) {
			_, err = f.AcquireLease(ctx, seconds, nil)
		}
	}
	return err
}

// unlock is what DistributedLock.Azure does: it deletes the blob if it is one of its own, and else releases the lease.
func (f *foreigner) unlock(ctx context.Context) error {
	now, err := f.blob.GetProperties(ctx, nil)
	if err != nil {
		return err
	}
	for key := range now.Metadata {
		if strings.EqualFold(key, "__DistributedLock") {
			_, err := f.blob.Delete(ctx, &blob.DeleteOptions{AccessConditions: &blob.AccessConditions{
				LeaseAccessConditions: &blob.LeaseAccessConditions{LeaseID: &f.id}}})
			return err
		}
	}
	_, err = f.ReleaseLease(ctx, nil)
	return err
}

// expectLeased fails unless nobody else can lease or write the blob.
func expectLeased(t *testing.T, f *foreigner) {
	t.Helper()
	if err := f.lock(t.Context(), 15); !bloberror.HasCode(err, bloberror.LeaseAlreadyPresent) {
		t.Errorf("a foreign client takes the lease of a holder of ours: %v", err)
	}
	if _, err := f.blob.UploadBuffer(t.Context(), []byte("x"), nil); !bloberror.HasCode(err, bloberror.LeaseIDMissing) {
		t.Errorf("a foreign client writes the blob of a holder of ours: %v", err)
	}
}

// TestLeaseInterop: a client that leases blobs by Microsoft's library alone and a client of ours exclude each other,
// no matter who has made the blob. Content and metadata of others stay.
func TestLeaseInterop(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startService(t)
	store, other := mustOpen(t, s, leaseOptions()), mustOpen(t, s.second(t), leaseOptions())
	for _, name := range []string{"ours", "theirs", "prod/terraform.tfstate"} {
		them := newForeigner(t, s, name)
		switch name {
		case "theirs":
			if err := them.lock(ctx, 60); err != nil {
				t.Fatal(err)
			}
			if err := them.unlock(ctx); err != nil {
				t.Fatal(err)
			}
		case "prod/terraform.tfstate":
			if _, err := them.blob.UploadBuffer(ctx, []byte("the state"), &blockblob.UploadBufferOptions{
				Metadata: map[string]*string{"Kept": to.Ptr("yes")}}); err != nil {
				t.Fatal(err)
			}
		}
		var last int64
		for range 3 {
			g := acquire(t, store, mutexClaim(name, minute))
			if g.Token <= last {
				t.Errorf("%s: the token %d comes after %d", name, g.Token, last)
			}
			last = g.Token
			expectLeased(t, them)
			if err := renew(t, store, g).Err; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := other.Acquire(ctx, mutexClaim(name, minute)); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("%s: next to a holder of ours: %v", name, err)
			}
			expectLeased(t, them)
			release(t, store, g.Claim)

			if err := them.lock(ctx, -1); err != nil {
				t.Fatalf("%s: after our release: %v", name, err)
			}
			_, err := other.Acquire(ctx, mutexClaim(name, minute))
			held, ok := errors.AsType[*driver.HeldError](err)
			if !ok || len(held.Holders) != 1 || !held.Holders[0].Foreign || held.Holders[0].Token != 0 {
				t.Errorf("%s: next to a foreign holder: %v", name, err)
			}
			if err := them.unlock(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	state := newForeigner(t, s, "prod/terraform.tfstate").blob
	now, err := state.GetProperties(ctx, nil)
	if text, readErr := s.readBlob(ctx, "leases/prod/terraform.tfstate"); err != nil || readErr != nil || text != "the state" {
		t.Errorf("the content of the blob is %q, %v", text, readErr)
	}
	kept := false
	for key, value := range now.Metadata {
		kept = kept || strings.EqualFold(key, "kept") && *value == "yes"
	}
	if !kept {
		t.Errorf("the metadata are %v", now.Metadata)
	}
}

// TestLeaseRounds: of clients of both kinds that want one lock, one has it at a time.
func TestLeaseRounds(t *testing.T) {
	t.Parallel()
	s := startService(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*minute)
	defer cancel()
	var holders, ours, theirs atomic.Int64
	inside := func(count *atomic.Int64) {
		if n := holders.Add(1); n != 1 {
			t.Errorf("%d holders at once", n)
		}
		time.Sleep(2 * time.Millisecond)
		count.Add(1)
		holders.Add(-1)
	}
	const rounds = 8
	var all sync.WaitGroup
	for range 2 {
		store := mustOpen(t, s.second(t), leaseOptions())
		all.Go(func() {
			for range rounds {
				g, err := store.Acquire(ctx, storetest.Waiting(mutexClaim("m", minute)))
				if err != nil {
					t.Error(err)
					return
				}
				inside(&ours)
				if err := store.Release(ctx, g.Claim, ""); err != nil {
					t.Error(err)
				}
			}
		})
		them := newForeigner(t, s, "m")
		all.Go(func() {
			for n := 0; n < rounds && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
				if them.lock(ctx, 60) != nil {
					continue
				}
				n++
				inside(&theirs)
				if err := them.unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if ours.Load() != 2*rounds || theirs.Load() != 2*rounds {
		t.Errorf("ours held it %d times, and theirs %d times", ours.Load(), theirs.Load())
	}
}

// TestLeasePython: a client in Python that leases blobs by Microsoft's library alone and a client of ours exclude each
// other. It needs Debian's python3-azure-storage.
func TestLeasePython(t *testing.T) {
	t.Parallel()
	s := startService(t)
	sessiontest.Interop(t, mustOpen(t, s, leaseOptions()), driver.KindMutex, func(lock, file string) func() (int, error) {
		return func() (added int, err error) {
			out, err := exec.CommandContext(t.Context(), "/usr/bin/python3", "testdata/peer.py", s.address(), azuretest.Account,
				azuretest.Key, "leases/"+lock, strconv.Itoa(*sessiontest.Rounds), file).CombinedOutput()
			if err != nil {
				return 0, fmt.Errorf("%w: %s", err, out)
			}
			_, err = fmt.Sscanf(string(out), "added %d", &added)
			return added, err
		}
	})
}

// TestLeaseTerraform: what Terraform writes next to its lease is shown, and it sees who our holder is, and can end our
// lease by the id that it shows.
func TestLeaseTerraform(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startService(t)
	store := mustOpen(t, s, leaseOptions())
	them := newForeigner(t, s, "m")
	if err := them.lock(ctx, -1); err != nil {
		t.Fatal(err)
	}
	info, _ := json.Marshal(map[string]string{"ID": them.id, "Who": "ann@laptop", "Operation": "OperationTypeApply"})
	held := &blob.AccessConditions{LeaseAccessConditions: &blob.LeaseAccessConditions{LeaseID: &them.id}}
	if _, err := them.blob.SetMetadata(ctx, map[string]*string{
		"terraformlockid": to.Ptr(base64.StdEncoding.EncodeToString(info))},
		&blob.SetMetadataOptions{AccessConditions: held}); err != nil {
		t.Fatal(err)
	}
	l, err := store.Inspect(ctx, "m")
	if err != nil || len(l.Holders) != 1 || l.Holders[0].Owner != "ann@laptop OperationTypeApply" {
		t.Errorf("Terraform's holder is %+v, %v", l.Holders, err)
	}
	n := 0
	for l, err := range store.List(ctx, "") {
		if n++; err != nil || l.Name != "m" {
			t.Errorf("listed is %v, %v", l, err)
		}
	}
	if n != 1 {
		t.Errorf("%d locks are listed", n)
	}
	if err := store.Break(ctx, "m", l.Holders[0].Ref, driver.Break{Mode: driver.BreakForce}); err != nil {
		t.Fatalf("breaking a lease without an end: %v", err)
	}
	c := mutexClaim("m", minute)
	c.Owner = "us"
	g := acquire(t, store, c)
	now, err := them.blob.GetProperties(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var shown struct{ ID, Who string }
	for key, value := range now.Metadata {
		if strings.EqualFold(key, "terraformlockid") {
			text, _ := base64.StdEncoding.DecodeString(*value)
			_ = json.Unmarshal(text, &shown)
		}
	}
	if shown.Who != "us" {
		t.Errorf("Terraform sees the holder %+v", shown)
	}
	unlocker, err := lease.NewBlobClient(them.blob, &lease.BlobClientOptions{LeaseID: &shown.ID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unlocker.ReleaseLease(ctx, nil); err != nil {
		t.Fatalf("force-unlock: %v", err)
	}
	if err := renew(t, store, g).Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("after force-unlock: %v", err)
	}
}

// TestLeaseRace: a foreign client that takes the lease between the two requests of a client of ours has the lock, and
// is not taken for that client.
func TestLeaseRace(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startService(t)
	them := newForeigner(t, s.second(t), "m")
	var raced atomic.Bool
	s.Decide = func(r azuretest.Request) azuretest.Fate {
		if r.Kind == azuretest.Lease && r.Action == "acquire" && !raced.Swap(true) {
			if err := them.lock(ctx, 60); err != nil {
				t.Error(err)
			}
		}
		return noFate
	}
	store := mustOpen(t, s, leaseOptions())
	c := mutexClaim("m", minute)
	c.Owner = "us"
	_, err := store.Acquire(ctx, c)
	held, ok := errors.AsType[*driver.HeldError](err)
	if !ok || len(held.Holders) != 1 || !held.Holders[0].Foreign || held.Holders[0].Owner != "a foreign client" {
		t.Errorf("next to a foreign client that was faster: %v", err)
	}
	if err := them.unlock(ctx); err != nil {
		t.Fatal(err)
	}
	release(t, store, acquire(t, store, c).Claim)
}

// TestLeaseLost: a holder whose lease a foreign client has broken, and taken and released since, has lost its lock.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), startService(t)
	store := mustOpen(t, s, leaseOptions())
	for what, end := range map[string]func(*foreigner) error{
		"broken": func(f *foreigner) error {
			_, err := f.BreakLease(ctx, &lease.BlobBreakOptions{BreakPeriod: to.Ptr(int32(0))})
			return err
		},
		"being broken": func(f *foreigner) error {
			_, err := f.BreakLease(ctx, &lease.BlobBreakOptions{BreakPeriod: to.Ptr(int32(60))})
			return err
		},
		"taken in between": func(f *foreigner) error {
			_, err := f.BreakLease(ctx, &lease.BlobBreakOptions{BreakPeriod: to.Ptr(int32(0))})
			return errors.Join(err, f.lock(ctx, 15), f.unlock(ctx))
		},
	} {
		name := strings.ReplaceAll(what, " ", "-")
		g := acquire(t, store, mutexClaim(name, minute))
		if err := end(newForeigner(t, s, name)); err != nil {
			t.Fatal(err)
		}
		if err := renew(t, store, g).Err; !errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: a renewal: %v", what, err)
		}
	}
}

// TestLeaseOfDeadHolder: what a dead client of ours leaves blocks our own clients until its TTL, and not for as long as
// its lease, which has no end if the TTL is longer than a minute.
func TestLeaseOfDeadHolder(t *testing.T) {
	t.Parallel()
	s := startService(t)
	var machine pace.Pace
	defer machine.Watch()()
	began := time.Now()
	dead, store := mustOpen(t, s, leaseOptions()), mustOpen(t, s.second(t), leaseOptions())
	g := acquire(t, dead, mutexClaim("m", 2*time.Second))
	next := acquire(t, store, storetest.Waiting(mutexClaim("m", 2*minute)))
	held := store.Info().Clock.Since(g.Since)
	if held < 2*time.Second || held > 12*time.Second+machine.Lost(began) || next.Token <= g.Token {
		t.Errorf("replaced after %v, with token %d after %d", held, next.Token, g.Token)
	}
	now, err := s.blobClient("leases/m").GetProperties(t.Context(), nil)
	if err != nil || now.LeaseDuration == nil || *now.LeaseDuration != lease.DurationTypeInfinite {
		t.Errorf("the lease of a claim of two minutes is %+v, %v", now.LeaseDuration, err)
	}
	release(t, store, next.Claim)
	if now, err = s.blobClient("leases/m").GetProperties(t.Context(), nil); err != nil ||
		*now.LeaseStatus != lease.StatusTypeUnlocked {
		t.Errorf("after the release: %v, %v", *now.LeaseStatus, err)
	}
}

// TestLeaseLostReplies: a step of a take, a renewal or a release whose reply is lost is settled by a read.
func TestLeaseLostReplies(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]azuretest.Fate{
		"the reply is lost":   {DropReply: true},
		"the service is busy": {Status: http.StatusServiceUnavailable, Code: "ServerBusy"},
	} {
		for step := range 4 {
			t.Run(fmt.Sprintf("%s, step %d", name, step), func(t *testing.T) {
				t.Parallel()
				s := startService(t)
				var at atomic.Int64
				at.Store(-1)
				s.Decide = func(r azuretest.Request) azuretest.Fate {
					if isWrite(r) && at.Add(-1) == -1 {
						return fate
					}
					return noFate
				}
				store := mustOpen(t, s, leaseOptions())
				them := newForeigner(t, s.second(t), "m")
				var last int64
				for range 3 {
					at.Store(int64(step))
					g, err := store.Acquire(t.Context(), mutexClaim("m", minute))
					if err != nil || g.Token <= last {
						t.Fatalf("acquiring: token %d after %d, %v", g.Token, last, err)
					}
					last = g.Token
					expectLeased(t, them)
					at.Store(int64(step))
					if err := renew(t, store, g).Err; errors.Is(err, driver.ErrLost) {
						t.Fatalf("renewing: %v", err)
					}
					at.Store(-1)
					if err := renew(t, store, g).Err; err != nil {
						t.Fatalf("renewing again: %v", err)
					}
					at.Store(int64(step))
					if err := store.Release(t.Context(), g.Claim, ""); err != nil && !errors.Is(err, driver.ErrUncertain) {
						t.Fatalf("releasing: %v", err)
					}
					at.Store(-1)
					if err := them.lock(t.Context(), 15); err != nil {
						t.Fatalf("after the release: %v", err)
					}
					if err := them.unlock(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// TestLeaseNames: a lock has the blob that a foreign client has for the same name, if it can have one.
func TestLeaseNames(t *testing.T) {
	t.Parallel()
	s := startService(t)
	store := mustOpen(t, s, leaseOptions())
	for _, name := range []string{"a=b", "a/b", "ä b", "a.b"} {
		acquire(t, store, mutexClaim(name, minute))
		if _, err := s.blobClient("leases/"+name).GetProperties(t.Context(), nil); err != nil {
			t.Errorf("the lock %q has another blob: %v", name, err)
		}
	}
	odd := []string{"a/", "/a", "a//b", "a.", "a./b", "..", "a\\b", "a\nb"}
	for _, name := range odd {
		acquire(t, store, mutexClaim(name, minute))
	}
	n := 0
	for l, err := range store.List(t.Context(), "a") {
		if n++; err != nil || len(l.Holders) != 1 || !strings.HasPrefix(l.Name, "a") {
			t.Errorf("listed is %+v, %v", l, err)
		}
	}
	if n != 9 {
		t.Errorf("%d locks begin with a", n)
	}
	if _, err := store.Acquire(t.Context(), mutexClaim("=a", minute)); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a name that begins with an equals sign: %v", err)
	}
}
