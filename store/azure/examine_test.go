package azure_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/azure"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
)

// TestExamine: settings of a container and its account that make locks less safe, or cost more than they must, are
// found, and nothing is found in sound ones. The emulator has none of them, so the replies about them are those of the
// service.
func TestExamine(t *testing.T) {
	t.Parallel()
	s := startService(t)
	store := mustOpen(t, s, azure.Options{Prefix: "locks/"})
	release(t, store, acquire(t, store, mutexClaim("m", minute)).Claim)
	service := func(policy string) azuretest.Fate {
		return azuretest.Fate{Status: 200, Body: `<?xml version="1.0" encoding="utf-8"?><StorageServiceProperties>` + policy +
			`</StorageServiceProperties>`}
	}
	says := func(header, value string) azuretest.Fate {
		return azuretest.Fate{Status: 200, Header: http.Header{header: {value}}}
	}
	sku := func(name string) azuretest.Fate { return says("X-Ms-Sku-Name", name) }
	list := func(version string) azuretest.Fate {
		return azuretest.Fate{Status: 200, Body: `<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs><Blob>` +
			`<Name>locks/m</Name>` + version + `</Blob></Blobs><NextMarker/></EnumerationResults>`}
	}
	sound := map[azuretest.Kind]azuretest.Fate{azuretest.Service: service(""), azuretest.Info: sku("Standard_ZRS"),
		azuretest.List: list("")}
	denied := azuretest.Fate{Status: 403, Code: "AuthorizationPermissionMismatch"}
	for what, c := range map[string]struct {
		kind  azuretest.Kind
		fate  azuretest.Fate
		codes []string
	}{
		"sound settings": {azuretest.Info, sku("Premium_LRS"), nil},
		"soft delete": {azuretest.Service, service("<DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days>" +
			"</DeleteRetentionPolicy>"), []string{"azure-soft-delete"}},
		"no soft delete": {azuretest.Service, service("<DeleteRetentionPolicy><Enabled>false</Enabled></DeleteRetentionPolicy>"),
			nil},
		"geo-redundancy": {azuretest.Info, sku("Standard_RAGRS"), []string{"azure-geo-redundancy"}},
		"both":           {azuretest.Info, sku("Standard_GZRS"), []string{"azure-geo-redundancy"}},
		"versions":       {azuretest.List, list("<VersionId>2026-01-01T00:00:00Z</VersionId>"), []string{"azure-versioning"}},
		"a policy":       {azuretest.Container, says("X-Ms-Has-Immutability-Policy", "true"), []string{"azure-immutability"}},
		"a hold":         {azuretest.Container, says("X-Ms-Has-Legal-Hold", "true"), []string{"azure-immutability"}},
		"what is unseen": {azuretest.Service, denied, []string{"azure-unseen"}},
		"no versions with a hierarchical namespace": {azuretest.List,
			azuretest.Fate{Status: 409, Code: "FeatureNotSupportedForAccount"}, []string{"azure-unseen"}},
	} {
		for kind, fate := range sound {
			s.Answer(kind, fate)
		}
		s.Answer(azuretest.Container, noFate)
		s.Answer(c.kind, c.fate)
		storetest.ExpectFindings(t, what, store, c.codes...)
	}
	for kind, fate := range sound {
		s.Answer(kind, fate)
	}
	s.Answer(azuretest.Container, noFate)
	s.Answer(write, azureFate(http.Header{"X-Ms-Version-Id": {"2026-01-01T00:00:00.0000000Z"}}))
	acquire(t, store, mutexClaim("n", minute))
	storetest.ExpectFindings(t, "a write that makes a version", store, "azure-versioning")

	here := strings.TrimPrefix(strings.TrimSuffix(s.URL, "/"+azuretest.Account), "http://")
	away := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", here)
	}}}
	t.Cleanup(away.CloseIdleConnections)
	plain, err := azure.New(t.Context(), away, strings.Replace(s.address(), here, "storage.example", 1),
		with(azure.Options{Prefix: "away/"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { plain.Close() })
	s.Answer(write, noFate)
	storetest.ExpectFindings(t, "another machine over http", plain, "azure-plain")
}

// TestImmutableContainer: a container whose blobs are kept is refused, also if only a write shows that.
func TestImmutableContainer(t *testing.T) {
	t.Parallel()
	s := startService(t)
	s.Answer(azuretest.Container, azuretest.Fate{Status: 200, Header: http.Header{"X-Ms-Has-Immutability-Policy": {"true"}}})
	if _, err := azure.New(t.Context(), newWeb(t), s.address(), with(azure.Options{})); !errors.Is(err, driver.ErrDenied) {
		t.Error(err)
	}
	s.Answer(azuretest.Container, azuretest.Fate{Status: 403, Code: "AuthorizationPermissionMismatch"})
	store := mustOpen(t, s, azure.Options{})
	s.Answer(write, azuretest.Fate{Status: 409, Code: "BlobImmutableDueToPolicy"})
	if _, err := store.Acquire(t.Context(), mutexClaim("m", minute)); !errors.Is(err, driver.ErrDenied) {
		t.Error(err)
	}
}
