package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The findings, without the container and what was seen there (learn.microsoft.com: "Store business-critical blob data
// with immutable storage", "Blob versioning", "Soft delete for blobs", "Azure Storage redundancy"). The lifecycle rules
// of an account cannot be seen by those who may use its blobs.
var (
	findingImmutable = driver.Finding{Code: "azure-immutability", Severity: driver.SeverityCritical,
		Why: "the blobs of locks cannot be replaced or removed, so locks are neither renewed nor released",
		Fix: "use a container without an immutability policy and without a legal hold"}
	findingVersioning = driver.Finding{Code: "azure-versioning", Severity: driver.SeverityWarning,
		Why: "each renewal leaves an old version of a blob, which is billed, and listings become slow",
		Fix: "use an account without versioning, or remove old versions by a lifecycle rule after a day"}
	findingSoftDelete = driver.Finding{Code: "azure-soft-delete", Severity: driver.SeverityWarning,
		Why: "each renewal leaves a deleted copy of a blob, which is billed",
		Fix: "az storage blob service-properties delete-policy update --enable false, or use another account"}
	findingGeo = driver.Finding{Code: "azure-geo-redundancy", Severity: driver.SeverityWarning,
		Why: "a failover to the other region forgets the last writes: a lock can then have two holders, and a token come twice",
		Fix: "use zone-redundant storage (ZRS), or end all holders and raise the tokens after a failover: holdfast token floor"}
	findingPlain = driver.Finding{Code: "azure-plain", Severity: driver.SeverityWarning,
		What: "the connection to another machine is not encrypted",
		Why:  "an attacker between this client and the service can read the locks and impersonate the service",
		Fix:  "use an endpoint with https"}
	findingUnseen = driver.Finding{Code: "azure-unseen", Severity: driver.SeverityUnknown,
		Fix: "use a key of the account, or the role Storage Account Contributor, for holdfast doctor"}
)

// Examine looks at the settings of the container and of its account.
func (t *table) Examine(ctx context.Context) (all []driver.Finding, err error) {
	var unseen []string
	see := func(what string, look func() error) error {
		err := look()
		var refused *refusal
		if errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrInvalid) || errors.As(err, &refused) {
			unseen = append(unseen, what)
			return nil
		}
		return err
	}
	add := func(when bool, f driver.Finding, format string, args ...any) {
		if when {
			all = append(all, f.With(t.container, fmt.Sprintf(format, args...)))
		}
	}
	err = errors.Join(
		see("the container's policies", func() error {
			h, err := t.readProperties(ctx, false)
			add(isImmutable(h), findingImmutable, "the container has an immutability policy or a legal hold")
			return err
		}),
		see("the account's redundancy", func() error {
			h, err := t.readProperties(ctx, true)
			sku := h.Get("X-Ms-Sku-Name")
			add(strings.Contains(sku, "GRS") || strings.Contains(sku, "GZRS"), findingGeo,
				"the account has a copy in another region (%s)", sku)
			return err
		}),
		see("whether deleted blobs are kept", func() error {
			days, err := t.readSoftDelete(ctx)
			add(days > 0, findingSoftDelete, "deleted and replaced blobs are kept for %d days", days)
			return err
		}),
		see("whether old versions are kept", func() error {
			kept, err := t.keepsVersions(ctx)
			add(kept, findingVersioning, "the account keeps old versions of blobs")
			return err
		}),
	)
	if err != nil {
		return nil, err
	}
	if u, err := url.Parse(t.account); err == nil && u.Scheme == "http" && !driverutil.IsLoopback(u.Hostname()) {
		all = append(all, findingPlain)
	}
	if len(unseen) > 0 {
		all = append(all, findingUnseen.With(t.container, strings.Join(unseen, ", and ")+" cannot be seen"))
	}
	return all, nil
}

// keepsVersions reports whether the account keeps old versions. A write of a blob says so, and a listing of what was
// written.
func (t *table) keepsVersions(ctx context.Context) (bool, error) {
	if t.versioned.Load() {
		return true, nil
	}
	page, _, err := t.list(ctx, t.prefix, "", "versions", 1)
	return len(page) > 0 && page[0].VersionID != "", err
}

// isImmutable reports whether the properties of a container say that its blobs are kept.
func isImmutable(h http.Header) bool {
	return h.Get("X-Ms-Has-Immutability-Policy") == "true" || h.Get("X-Ms-Has-Legal-Hold") == "true"
}

// checkMutable refuses a container whose blobs are kept. Not all who may use locks may see that.
func (t *table) checkMutable(ctx context.Context) error {
	h, err := t.readProperties(ctx, false)
	var refused *refusal
	switch {
	case errors.Is(err, driver.ErrDenied), errors.As(err, &refused) && refused.status < 500:
		return nil
	case err != nil:
		return err
	case isImmutable(h):
		return driverutil.RefuseStore(fmt.Errorf("the container %s: %s", t.container, keptText))
	}
	return nil
}
