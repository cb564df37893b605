package s3_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// TestExamine: settings of a bucket that make locks less safe, or cost more than they must, are found, and nothing is
// found in sound ones.
func TestExamine(t *testing.T) {
	t.Parallel()
	rule := func(text string) string {
		return "<LifecycleConfiguration><Rule><ID>old</ID><Status>Enabled</Status>" + text +
			"</Rule></LifecycleConfiguration>"
	}
	for _, layout := range layouts {
		server := startServer(t)
		store := mustOpen(t, server, &s3.Options{Prefix: "locks/", Layout: layout})
		for _, c := range []struct {
			setting, text string
			codes         []string
		}{
			{"versioning", "", nil},
			{"versioning", "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>", nil},
			{"versioning", "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
				[]string{"s3-versioning"}},
			{"object-lock",
				"<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>",
				nil},
			{"object-lock",
				"<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>" +
					"<Mode>COMPLIANCE</Mode><Days>7</Days></DefaultRetention></Rule></ObjectLockConfiguration>",
				[]string{"s3-retention"}},
			{"lifecycle", rule("<Filter><Prefix></Prefix></Filter><Expiration><Days>1</Days></Expiration>"),
				[]string{"s3-lifecycle"}},
			{"lifecycle", rule("<Prefix>locks/a</Prefix><Expiration><Days>2</Days></Expiration>"),
				[]string{"s3-lifecycle"}},
			{"lifecycle",
				rule("<Filter><Prefix>locks/</Prefix></Filter><Expiration><Date>2030-01-01T00:00:00Z</Date></Expiration>"),
				[]string{"s3-lifecycle"}},
			{"lifecycle", rule("<Filter><Prefix>locks/</Prefix></Filter><Expiration><Days>3</Days></Expiration>"),
				[]string{"s3-lifecycle-runs"}},
			{"lifecycle", rule("<Filter><Prefix>logs/</Prefix></Filter><Expiration><Days>1</Days></Expiration>"), nil},
			{"lifecycle",
				rule("<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter><Expiration><Days>1</Days></Expiration>"), nil},
			{"lifecycle",
				rule("<Filter><And><Prefix>locks/</Prefix><ObjectSizeGreaterThan>1000000</ObjectSizeGreaterThan></And>" +
					"</Filter><Expiration><Days>1</Days></Expiration>"), nil},
			{"lifecycle",
				rule("<Filter/><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>"),
				nil},
			{"lifecycle", rule("<Filter/><Transition><Days>30</Days><StorageClass>GLACIER</StorageClass></Transition>"),
				[]string{"s3-archive"}},
			{"replication",
				"<ReplicationConfiguration><Role>r</Role><Rule><Status>Enabled</Status><Filter><Prefix>lo</Prefix>" +
					"</Filter></Rule></ReplicationConfiguration>", []string{"s3-replication"}},
		} {
			server.Set(c.setting, c.text)
			storetest.ExpectFindings(t, c.text, store, c.codes...)
			server.Set(c.setting, "")
		}
		server.Deny(s3test.Settings)
		storetest.ExpectFindings(t, "a bucket whose settings may not be seen", store, "s3-unseen")
	}
	blind := startServer(t)
	blind.SetFlaws(s3test.Flaws{DeleteBlindly: true})
	store := mustOpen(t, blind, nil)
	storetest.ExpectFindings(t, "a service that deletes without comparing", store, "s3-kept")
	blind.Set("lifecycle", rule("<Filter/><Expiration><Days>7</Days></Expiration>"))
	storetest.ExpectFindings(t, "one with a rule that removes idle locks", store, "s3-lifecycle-runs")
}

// TestExaminePlain: a connection to another machine that is not encrypted is found.
func TestExaminePlain(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(server.URL, "http://"))
	}}
	t.Cleanup(transport.CloseIdleConnections)
	store, err := s3.New(t.Context(), s3test.NewClient("http://minio.example.com", &http.Client{Transport: transport}),
		bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	storetest.ExpectFindings(t, "an endpoint without TLS", store, "s3-plain")
}
