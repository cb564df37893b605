package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// closeTimeout bounds how long closing the client may delay the end of the program. Claims that are not released by
// then expire after their TTL.
const closeTimeout = time.Second

// defaultDirectory is where the locks of this user are kept if no store is given. Root's are not in a home directory,
// because that may differ between cron, sudo and a login.
func defaultDirectory() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/holdfast", nil
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "holdfast"), nil
	}
	if runtime.GOOS == "windows" {
		if local, err := os.UserCacheDir(); err == nil {
			return filepath.Join(local, "holdfast"), nil
		}
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", usageError("there is no home directory to keep locks in; give a store with --store or HOLDFAST_STORE")
	}
	return filepath.Join(home, ".local", "state", "holdfast"), nil
}

// openClient is openStore for callers that need only the client.
func openClient(ctx context.Context, flag string, o *holdfast.Options) (*holdfast.Client, error) {
	_, client, err := openStore(ctx, flag, o)
	return client, err
}

// openStore opens the store and a client of it, which closes the store.
func openStore(ctx context.Context, flag string, o *holdfast.Options) (driver.Store, *holdfast.Client, error) {
	store, err := openDriver(ctx, flag)
	if err != nil {
		return nil, nil, err
	}
	client, err := newClient(store, o)
	return store, client, err
}

// newClient makes a client, which closes the store.
func newClient(store driver.Store, o *holdfast.Options) (*holdfast.Client, error) {
	client, err := holdfast.New(store, o)
	if err != nil {
		return nil, storeError(errors.Join(err, store.Close()))
	}
	return client, nil
}

// openDriver chooses the store and opens it.
func openDriver(ctx context.Context, flag string) (driver.Store, error) {
	choice, err := resolveStore(flag)
	if err != nil {
		return nil, err
	}
	return openURL(ctx, choice.url)
}

// openURL opens the store that was chosen.
func openURL(ctx context.Context, where string) (driver.Store, error) {
	if err := checkScheme(where); err != nil {
		return nil, err
	}
	store, err := driver.Open(ctx, where)
	if err != nil {
		return nil, storeError(&openError{&holdfast.Error{Op: "open", Err: err}})
	}
	return store, nil
}

// checkScheme refuses what is not a URL of a store that this program knows.
func checkScheme(where string) error {
	if like := suggestURL(where); like != "" {
		return usageError("%w", &openError{fmt.Errorf("the store is not given as a URL; did you mean %s?", like)})
	}
	if runtime.GOOS != "windows" && windowsPath.MatchString(where) {
		return usageError("%w", &openError{errors.New("a path of Windows cannot be used here; give a directory of this " +
			"system, such as file:///var/lib/holdfast")})
	}
	// The library's own error for this is meant for programmers.
	scheme, _, ok := strings.Cut(where, "://")
	if u, err := url.Parse(where); err == nil && ok && u.Scheme == scheme && !slices.Contains(driver.Schemes(), scheme) {
		known := strings.Join(driver.Schemes(), ", ")
		if choice := usedStore.Load(); choice != nil && choice.source == "" {
			return usageError("this command has no default store: give one by --store or HOLDFAST_STORE; known are %s", known)
		}
		meant := ""
		if like := driverutil.FindSimilar(scheme, driver.Schemes()...); like != "" {
			meant = fmt.Sprintf(" (did you mean %s://?)", like)
		}
		return usageError("%w", &openError{fmt.Errorf("unknown store %s://%s; known are %s", scheme, meant, known)})
	}
	return nil
}

// portSchemes are the stores that can be recognized by their default ports.
var portSchemes = map[string]string{"2181": "zookeeper", "2379": "etcd", "3306": "mysql", "4222": "nats", "5432": "postgres", "6379": "redis", "8500": "consul"}

var windowsPath = regexp.MustCompile(`^(file:/*)?[A-Za-z]:[\\/]`)

// suggestURL is the URL that was probably meant by a plain path or host:port, or empty. It never repeats anything
// else, which may contain a password.
func suggestURL(where string) string {
	if host, port, ok := strings.Cut(where, ":"); ok && portSchemes[port] != "" && !strings.ContainsAny(host, "/@") {
		return portSchemes[port] + "://" + where
	}
	if runtime.GOOS == "windows" && !strings.HasPrefix(where, "file:") && windowsPath.MatchString(where) {
		return fileURL(where)
	}
	if filepath.IsAbs(where) && !strings.ContainsAny(where, ":@?#") {
		return fileURL(where)
	}
	return ""
}

// fileURL is the URL of the file store in a directory.
func fileURL(dir string) string {
	return (&url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(dir), "/")}).String()
}

// closeClient closes a client within closeTimeout. Its error adds nothing: releases were confirmed or reported
// before. A system call on a frozen disk ignores the context; it is left behind.
func closeClient(client *holdfast.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = runWithTimeout(2*closeTimeout, func() error { return client.CloseContext(ctx) })
}

var errNoAnswer = errors.New("the store does not answer")

// runWithTimeout runs f and returns after d at the latest, even if f has not returned by then.
func runWithTimeout(d time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		return errNoAnswer
	}
}

// withClient runs f with a client, for the subcommands that hold nothing. A signal ends the program at once, because
// there is nothing to release.
func withClient(flag string, f func(ctx context.Context, client *holdfast.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	client, err := openClient(ctx, flag, nil)
	if err != nil {
		return err
	}
	defer closeClient(client)
	return f(ctx, client)
}

// queryTimeout bounds each subcommand that uses withClient.
const queryTimeout = 30 * time.Second
