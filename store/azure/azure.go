// Package azure keeps locks in a container of Azure Blob Storage: one blob per lock, which is replaced on a condition
// on its ETag. There is no server to run.
//
//	import _ "github.com/holdfast-go/holdfast/store/azure"
//
//	client, err := holdfast.Open(ctx, "azure://account/container/locks-", nil)
//
// A program that has credentials of its own passes them:
//
//	key, err := azure.SharedKey("account", os.Getenv("AZURE_STORAGE_KEY"))
//	store, err := azure.New(ctx, http.DefaultClient, "https://account.blob.core.windows.net/container",
//		&azure.Options{Credentials: key})
//	client, err := holdfast.New(store, nil)
//
// Tokens of managed identities and of all else that Microsoft's library knows come from package
// [github.com/holdfast-go/holdfast/store/azure/identity].
//
// # Layout
//
// The lock NAME is the blob whose name is PREFIX and NAME. It contains JSON that people can read. The blob stays when
// the lock is free, for its token. Any client that lists or waits removes it after ten idle minutes. Slashes and
// backslashes in a name are escaped, and what else the service does not accept, so it does not matter whether the
// account has a hierarchical namespace.
//
// # Time
//
// The store's clock decides when a claim has expired. Each reply tells it, by its Date, to a second. The service
// promises nothing about the clocks of its hosts, so a second is allowed for these. No client's time of day is used,
// except that it stands in the first request: the service refuses a request that is dated a quarter of an hour off.
//
// # Permissions
//
// The role Storage Blob Data Contributor on the container, or a shared access signature with the permissions r, c, w, d
// and l. No immutability policy, legal hold or lifecycle rule may affect the locks.
//
// # Decisions
//
// The requests are our own, and not those of Microsoft's library (azblob), as on Cloud Storage. Six kinds of requests
// are needed. With the library a program is larger by 4.8 MB (10.8 MB instead of 6.0 MB, stripped), for the columns of
// Apache Arrow among other things; it sends a version of the API that emulators refuse until they know it; and it does
// not number its requests, by which a reply is told from one of a cache. The library for tokens is large, too, so it is
// in a package of its own.
//
// A container with an immutability policy is refused when it is opened, because there a lock could be taken once, and
// never be renewed or released.
package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options are the settings of a store. The zero value and nil mean the defaults.
type Options struct {
	// Credentials are what the service asks of each request: see [SharedKey], [SharedAccessSignature] and [Token]. nil:
	// the HTTP client adds them.
	Credentials Credentials
	// Prefix is put before the names of all blobs as it is: "locks/" makes locks/NAME. At most 256 bytes, which do not
	// end a part between slashes with a dot, and have no backslash and no control character.
	Prefix string
	// Layout is how a lock is stored in the container. All users of a lock must use the same one. Default:
	// LayoutRecord.
	Layout Layout
	// Clock is the client's clock, which tests replace. Default: driver.SystemClock.
	Clock driver.Clock

	place   string                    // the store, for people; empty: its address
	sources []driverutil.SecretSource // of the credentials
}

// New makes a store that keeps locks in a container, whose address is such as
// https://account.blob.core.windows.net/container. The client must not send a request again by itself. It stays the
// caller's: Close does not close it.
//
// New sends two or three requests, bounded by ctx, from which it learns the store's clock. It returns ErrInvalid if the
// client is nil or an option cannot work, and ErrDenied if the container does not exist, may not be read or has an
// immutability policy.
func New(ctx context.Context, client *http.Client, container string, opts *Options) (driver.Store, error) {
	t, err := newTable(ctx, client, container, opts)
	if err != nil {
		return nil, err
	}
	return newStore(t, opts), nil
}

// NewTable gives access to bare records, for data that is built on records but is no lock. It is opened like New. Use a
// Prefix that no store of locks has.
func NewTable(ctx context.Context, client *http.Client, container string, opts *Options) (record.Table, error) {
	t, err := newTable(ctx, client, container, opts)
	if err != nil {
		return nil, err
	}
	return t, nil
}

const maxPrefix = 256

// newTable checks the options, reads the service's clock and looks at the container.
func newTable(ctx context.Context, client *http.Client, container string, opts *Options) (*table, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil: pass one such as http.DefaultClient", driver.ErrInvalid)
	}
	account, name, err := splitAddress(container)
	if err != nil {
		return nil, err
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &table{containerClient: newContainerClient(client, account, name, o), prefix: o.Prefix, place: o.place}
	if t.place == "" {
		t.place = account + "/" + name + "/" + o.Prefix
	}
	err = t.readServerClock(ctx)
	if errors.Is(err, driver.ErrDenied) && t.clock.Known() {
		err = t.readServerClock(ctx) // with a date of the service's own
	}
	if err == nil {
		err = t.checkMutable(ctx)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// splitAddress splits the address of a container into those of the account and the name of the container. No error
// shows the address: it may have a signature.
func splitAddress(address string) (account, container string, err error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", "", fmt.Errorf("%w: write the address of the container as https://ACCOUNT.blob.core.windows.net/CONTAINER",
			driver.ErrInvalid)
	}
	if u.RawQuery != "" {
		return "", "", fmt.Errorf("%w: the address of the container has a query: pass a shared access signature as credentials",
			driver.ErrInvalid)
	}
	path := strings.Trim(u.Path, "/")
	at := strings.LastIndexByte(path, '/')
	if container = path[at+1:]; container == "" {
		return "", "", fmt.Errorf("%w: the address names no container", driver.ErrInvalid)
	}
	return strings.TrimSuffix(u.Scheme+"://"+u.Host+"/"+path[:max(at, 0)], "/"), container, nil
}

// withDefaults checks the options, and fills in the defaults.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if err := driverutil.CheckLayout(c.Layout, layouts...); err != nil {
		return c, err
	}
	if !isPrefix(c.Prefix) {
		return c, fmt.Errorf("%w: a prefix is at most %d bytes of UTF-8, without a slash at its beginning, two slashes in a "+
			"row, a dot before a slash, a backslash, an equals sign or a control character", driver.ErrInvalid, maxPrefix)
	}
	if c.Clock.Monotonic == nil {
		c.Clock = driver.SystemClock
	}
	return c, nil
}

// isPrefix reports whether the service leaves the names with a prefix as they are.
func isPrefix(prefix string) bool {
	plain := strings.ReplaceAll(prefix, "/", "")
	return len(prefix) <= maxPrefix && utf8.ValidString(prefix) && encodeName(plain+"x") == plain+"x" &&
		!strings.HasPrefix(prefix, "/") && !strings.Contains(prefix, "//") && !strings.Contains(prefix, "./")
}

// newStore makes the store of a table.
func newStore(t *table, o *Options) driver.Store {
	if o != nil && o.Layout == LayoutLease {
		return newLeaseStore(t)
	}
	return record.New(t)
}
