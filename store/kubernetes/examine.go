package kubernetes

import (
	"context"
	"errors"
	"net/url"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

var (
	findingPolls = driver.Finding{Code: "kubernetes-polls", Severity: driver.SeverityWarning,
		What: "we may not watch leases",
		Why:  "waiters read the lock again and again, and learn later that it is free",
		Fix:  "add the verb watch to the role"}
	findingKept = driver.Finding{Code: "kubernetes-kept", Severity: driver.SeverityWarning,
		What: "we may not list or delete leases",
		Why:  "the objects of idle locks remain forever",
		Fix:  "add the verbs list and delete to the role"}
	findingPlain = driver.Finding{Code: "kubernetes-plain", Severity: driver.SeverityWarning,
		What: "the connection to another machine is not encrypted, or the server's certificate is not checked",
		Why:  "an attacker between this client and the server can read the credentials and impersonate the server",
		Fix:  "use an address with https, and certificate-authority instead of insecure-skip-tls-verify"}
)

// Examine tries what the role allows, with requests that change nothing.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	absent := objectName(defaultPrefix, "holdfast-probe")
	watched := t.watch(ctx, absent, "0", func() error { return errChanged }, nil)
	_, listed := t.list(ctx, t.labels(), "")
	removed := t.remove(ctx, absent, "none", "1") // there is no such object
	for _, err := range []error{watched, listed, removed} {
		if err != nil && !errors.Is(err, errChanged) && !errors.Is(err, driver.ErrDenied) && !errors.Is(err, errNotFound) {
			return nil, err
		}
	}
	all := t.examineConnection()
	if errors.Is(watched, driver.ErrDenied) {
		all = append(all, findingPolls.With(t.namespace, findingPolls.What))
	}
	if errors.Is(listed, driver.ErrDenied) || errors.Is(removed, driver.ErrDenied) {
		all = append(all, findingKept.With(t.namespace, findingKept.What))
	}
	return all, nil
}

// Examine leaves out what this layout does not do: its waiters poll, and its objects stay.
func (e *leaderElectionTable) Examine(context.Context) ([]driver.Finding, error) {
	return e.t.examineConnection(), nil
}

func (t *table) examineConnection() []driver.Finding {
	if t.isPlain() {
		return []driver.Finding{findingPlain.With(t.server, findingPlain.What)}
	}
	return nil
}

// isPlain reports whether somebody between this client and the server could impersonate the server.
func (t *table) isPlain() bool {
	at, err := url.Parse(t.server)
	return err == nil && !driverutil.IsLoopback(at.Hostname()) && (at.Scheme == "http" || t.insecure)
}
