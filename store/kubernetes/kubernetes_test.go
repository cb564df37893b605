package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestPermissions: each permission that a role lacks is named in the error. Without watch a waiter polls, and without
// list and delete only listings are refused.
func TestPermissions(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	claim := func(name string) driver.Claim { return storetest.Mutex(name, time.Minute) }
	few := &kubernetes.Options{Prefix: "permissions-"}
	t.Run("get create update", func(t *testing.T) {
		t.Parallel()
		token := kubernetestest.AllowVerbs("get", "create", "update")
		store, other := mustOpen(t, c, token, few), mustOpen(t, c, token, few)
		g := storetest.Acquire(t, store, claim("few"))
		go func() {
			time.Sleep(100 * time.Millisecond)
			if err := store.Release(context.WithoutCancel(t.Context()), g.Claim, ""); err != nil {
				t.Error(err)
			}
		}()
		next := storetest.Acquire(t, other, storetest.Waiting(claim("few")))
		storetest.Release(t, other, next.Claim)
		for _, err := range store.List(t.Context(), "") {
			if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "the permission list ") {
				t.Errorf("a listing without list: %v", err)
			}
		}
	})
	for verb, allowed := range map[string][]string{
		"create": {"get", "update", "watch"}, "update": {"get", "create", "watch"},
	} {
		t.Run("without "+verb, func(t *testing.T) {
			t.Parallel()
			store := mustOpen(t, c, kubernetestest.AllowVerbs(allowed...), few)
			g, err := store.Acquire(t.Context(), claim("without-"+verb))
			if err == nil {
				err = store.Release(t.Context(), g.Claim, "")
			}
			if !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "the permission "+verb+" ") {
				t.Errorf("without %s: %v", verb, err)
			}
		})
	}
}

// TestOpenErrors: what cannot work is refused when the store is opened, with what to do about it.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	page := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(page.Close)
	all, stop := c.Client(kubernetestest.AllowAll, nil, nil)
	t.Cleanup(stop)
	nobody, stop := c.Client("nobody", nil, nil)
	t.Cleanup(stop)
	blind, stop := c.Client(kubernetestest.AllowVerbs("list"), nil, nil)
	t.Cleanup(stop)
	for what, o := range map[string]struct {
		web               *http.Client
		server, namespace string
		opts              *kubernetes.Options
		is                error
		says              string
	}{
		"a token that nobody knows":   {nobody, c.Address(), "default", nil, driver.ErrDenied, "the credentials are not valid"},
		"a role that may not read":    {blind, c.Address(), "default", nil, driver.ErrDenied, "the permission get "},
		"another role's namespace":    {blind, c.Address(), "other", nil, driver.ErrDenied, "namespace other"},
		"a server of something else":  {page.Client(), page.URL, "default", nil, driver.ErrUnsupported, "no Kubernetes"},
		"no HTTP client":              {nil, c.Address(), "default", nil, driver.ErrInvalid, "rest.HTTPClientFor"},
		"an address without a scheme": {all, "10.0.0.1:6443", "default", nil, driver.ErrInvalid, "https://host:6443"},
		"a namespace with a dot":      {all, c.Address(), "a.b", nil, driver.ErrInvalid, "a namespace is"},
		"a layout that nobody knows": {all, c.Address(), "default", &kubernetes.Options{Layout: "x"}, driver.ErrInvalid,
			"use record or leaderelection"},
		"a prefix with a slash": {all, c.Address(), "default", &kubernetes.Options{Prefix: "a/"}, driver.ErrInvalid,
			"a prefix is"},
	} {
		_, err := kubernetes.New(t.Context(), o.web, o.server, o.namespace, o.opts)
		if !errors.Is(err, o.is) || !strings.Contains(err.Error(), o.says) || !driverutil.IsFinal(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNames: every name is a lock of its own, which a listing shows by that name.
func TestNames(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	opts := &kubernetes.Options{Prefix: "names-"}
	store := mustOpen(t, c, kubernetestest.AllowAll, opts)
	names := []string{"a", "A", "a.b", "a-b", "-a", "a-", ".", "..", "a..b", "a/b", "deploy/web", "a b", "日本", "a\nb", "%2f",
		"a--b", "a.41", "runs.of.a", "holdfast", "0", strings.Repeat("x", 246), strings.Repeat("x", 247),
		strings.Repeat("x", driver.MaxName), strings.Repeat("X", driver.MaxName)}
	for _, n := range names {
		storetest.Acquire(t, store, storetest.Mutex(n, time.Minute))
	}
	missing := map[string]bool{}
	for _, n := range names {
		missing[n] = true
	}
	for l, err := range store.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if !missing[l.Name] || len(l.Holders) != 1 {
			t.Errorf("the listing shows %q, %+v", l.Name, l.Holders)
		}
		delete(missing, l.Name)
	}
	if len(missing) > 0 {
		t.Errorf("the listing lacks %v", missing)
	}
}

// TestShownHolder: what kubectl shows as the holder of a lease is the owner who holds the lock, written with the grant.
func TestShownHolder(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	store := mustOpen(t, c, kubernetestest.AllowAll, &kubernetes.Options{Prefix: "shown-"})
	expect := func(want string) {
		t.Helper()
		spec := mustSend(t, c, http.MethodGet, "shown-a", nil)["spec"].(object)
		if got := spec["holderIdentity"]; got != want {
			t.Errorf("the holder is shown as %q, not %q", got, want)
		}
	}
	claim := func(owner string) driver.Claim {
		c := storetest.Mutex("a", time.Minute)
		c.Owner, c.Kind, c.Limit = owner, driver.KindSemaphore, 3
		return c
	}
	first := storetest.Acquire(t, store, claim("web-1 app[12]"))
	expect("web-1 app[12] (holdfast)")
	second := storetest.Acquire(t, store, claim("web-2"))
	expect("web-1 app[12] and 1 more (holdfast)")
	storetest.Release(t, store, first.Claim)
	expect("web-2 (holdfast)")
	storetest.Release(t, store, second.Claim)
	expect("(free)")
	third := storetest.Acquire(t, store, claim("a\nb\x1b[31m"+strings.Repeat("日", 60)))
	expect("a?b?[31m" + strings.Repeat("日", 55) + "… (holdfast)")
	storetest.Release(t, store, third.Claim)
}

// TestOtherLease: a lease that somebody else has made under the name of a lock's object is neither used nor changed.
func TestOtherLease(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	const name = "other-lease-a"
	mustSend(t, c, http.MethodPost, "", object{"metadata": object{"name": name},
		"spec": object{"holderIdentity": "somebody"}})
	before := mustSend(t, c, http.MethodGet, name, nil)
	store := mustOpen(t, c, kubernetestest.AllowAll, &kubernetes.Options{Prefix: "other-lease-"})
	if _, err := store.Acquire(t.Context(), storetest.Mutex("a", time.Minute)); !errors.Is(err, driver.ErrCorrupt) ||
		!strings.Contains(err.Error(), "the lease "+name+" is not Holdfast's") {
		t.Errorf("acquiring: %v", err)
	}
	if after := mustSend(t, c, http.MethodGet, name, nil); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the lease was %v and is %v", before, after)
	}
}

// TestWithoutName: an object of ours that has lost its name stops no listing, and is said to be corrupt.
func TestWithoutName(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	opts := &kubernetes.Options{Prefix: "nameless-"}
	store := mustOpen(t, c, kubernetestest.AllowAll, opts)
	storetest.Acquire(t, store, storetest.Mutex("a", time.Minute))
	storetest.Acquire(t, store, storetest.Mutex("b", time.Minute))
	storetest.Acquire(t, mustOpen(t, c, kubernetestest.AllowAll, &kubernetes.Options{Prefix: "nameless-x-"}),
		storetest.Mutex("c", time.Minute)) // of another store, whose prefix begins with this one
	l := mustSend(t, c, http.MethodGet, "nameless-a", nil)
	delete(l["metadata"].(object)["annotations"].(object), "holdfast/name")
	mustSend(t, c, http.MethodPut, "nameless-a", l)
	other := mustOpen(t, c, kubernetestest.AllowAll, opts)
	var seen []string
	for l, err := range other.List(t.Context(), "") {
		if err != nil {
			t.Errorf("listing: %v", err)
		}
		seen = append(seen, l.Name)
	}
	if fmt.Sprint(seen) != "[b]" {
		t.Errorf("the listing shows %q", seen)
	}
	if _, err := other.Acquire(t.Context(), storetest.Mutex("a", time.Minute)); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("acquiring: %v", err)
	}
}

// TestDeletedObject: when somebody deletes the object of a lock, and a finalizer keeps it for a while, its holder loses
// the lock, and nobody is granted it on the object that goes.
func TestDeletedObject(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	opts := &kubernetes.Options{Prefix: "deleted-"}
	holder, other := mustOpen(t, c, kubernetestest.AllowAll, opts), mustOpen(t, c, kubernetestest.AllowAll, opts)
	old := storetest.Acquire(t, holder, storetest.Mutex("a", time.Minute))
	l := mustSend(t, c, http.MethodGet, "deleted-a", nil)
	l["metadata"].(object)["finalizers"] = []any{"example.com/f"}
	l = mustSend(t, c, http.MethodPut, "deleted-a", l)
	mustSend(t, c, http.MethodDelete, "deleted-a", nil)
	if err := storetest.Renew(t, holder, old).Err; !errors.Is(err, driver.ErrUncertain) {
		t.Errorf("the holder's renewal, with which the object goes: %v", err)
	}
	if err := storetest.Renew(t, holder, old).Err; !errors.Is(err, driver.ErrLost) {
		t.Errorf("the holder's next renewal: %v", err)
	}
	next := storetest.Acquire(t, other, storetest.Mutex("a", time.Minute))
	now := mustSend(t, c, http.MethodGet, "deleted-a", nil)
	if now["metadata"].(object)["uid"] == l["metadata"].(object)["uid"] {
		t.Error("the lock was granted on the object that was deleted")
	}
	if err := storetest.Renew(t, other, next).Err; err != nil {
		t.Errorf("the next holder's renewal: %v", err)
	}
}

// TestTokenFloor: the smallest token to come can be asked for in both layouts.
func TestTokenFloor(t *testing.T) {
	t.Parallel()
	m := startModel(t)
	for _, layout := range []kubernetes.Layout{kubernetes.LayoutRecord, kubernetes.LayoutLeaderElection} {
		store := mustOpen(t, m, kubernetestest.AllowAll, &kubernetes.Options{Layout: layout})
		floor, err := store.ReadTokenFloor(t.Context())
		if g := storetest.Acquire(t, store, storetest.Mutex("a", time.Minute)); err != nil || floor.Token < 1 || g.Token < floor.Token {
			t.Errorf("%s: %+v, %v, then the token %d", layout, floor, err, g.Token)
		}
	}
}

// TestPages: a listing of more objects than fit on one page shows each of them once, even when the server has forgotten
// the moment of the first page.
func TestPages(t *testing.T) {
	t.Parallel()
	m := startModel(t)
	store := mustOpen(t, m, kubernetestest.AllowAll, nil)
	const n = 600 // pages have 250
	for i := range n {
		storetest.Acquire(t, store, storetest.Mutex(fmt.Sprintf("lock-%04d", i), time.Hour))
	}
	for _, compacts := range []bool{false, true} {
		seen := map[string]bool{}
		for l, err := range store.List(t.Context(), "lock-") {
			if err != nil {
				t.Fatal(err)
			}
			if seen[l.Name] {
				t.Errorf("%s is listed twice", l.Name)
			}
			if seen[l.Name] = true; compacts && len(seen) == 1 {
				storetest.Acquire(t, store, storetest.Mutex("another", time.Hour)) // the next page would be of an older version
				m.Compact()
			}
		}
		if len(seen) != n {
			t.Errorf("%d locks are listed", len(seen))
		}
	}
}

// TestRequests promises what each step costs: a take of a lock that does not exist, or is as this client has seen it
// last, is one request, and so are a renewal and a release. Seeing what another client has done is one more read.
func TestRequests(t *testing.T) {
	t.Parallel()
	m := startModel(t)
	ours, theirs := mustOpen(t, m, kubernetestest.AllowAll, nil), mustOpen(t, m, kubernetestest.AllowAll, nil)
	expect := func(what, want string) {
		t.Helper()
		if got := fmt.Sprint(m.CountRequests()); got != want {
			t.Errorf("%s took %s, not %s", what, got, want)
		}
	}
	m.CountRequests()
	g := storetest.Acquire(t, ours, storetest.Mutex("m", time.Minute))
	expect("taking an absent lock", "map[create:1]")
	if err := storetest.Renew(t, ours, g).Err; err != nil {
		t.Fatal(err)
	}
	expect("renewing", "map[update:1]")
	storetest.Release(t, ours, g.Claim)
	expect("releasing", "map[update:1]")
	g = storetest.Acquire(t, ours, storetest.Mutex("m", time.Minute))
	expect("taking a lock as it was left", "map[update:1]")
	for _, want := range []string{"map[create:1 get:1]", "map[get:1]"} {
		if _, err := theirs.Acquire(t.Context(), storetest.Mutex("m", time.Minute)); !errors.Is(err, driver.ErrHeld) {
			t.Fatal(err)
		}
		expect("being refused", want)
	}
	storetest.Release(t, ours, g.Claim)
	m.CountRequests()
	storetest.Acquire(t, theirs, storetest.Mutex("m", time.Minute))
	expect("taking a lock that a stranger has left", "map[get:1 update:1]")
}
