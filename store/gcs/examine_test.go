package gcs_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/gcs"
)

// TestExamine: settings of a bucket that make locks less safe, or cost more than they must, are found, and nothing is
// found in sound ones. The emulator has none of them, so the replies about a bucket are those of the service.
func TestExamine(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	var stores = map[string]*gcs.Options{"": quickLayoutOptions(gcs.LayoutRecord), "locks/": quickLayoutOptions(gcs.LayoutVault)}
	for prefix, o := range stores {
		o.Prefix = prefix
		s, _ := mustOpen(t, server, o)
		for _, c := range []struct {
			settings string
			codes    []string
		}{
			{`"storageClass":"STANDARD"`, nil},
			{`"lifecycle":{"rule":[{"action":{"type":"Delete"},"condition":{"age":7}}]}`, []string{"gcs-lifecycle"}},
			{`"lifecycle":{"rule":[{"action":{"type":"Delete"},"condition":{"age":7,"matchesPrefix":["locks/a"]}}]}`,
				[]string{"gcs-lifecycle"}},
			{`"lifecycle":{"rule":[{"action":{"type":"Delete"},"condition":{"numNewerVersions":3}},
				{"action":{"type":"Delete"},"condition":{"isLive":false}},
				{"action":{"type":"Delete"},"condition":{"daysSinceNoncurrentTime":3}},
				{"action":{"type":"AbortIncompleteMultipartUpload"},"condition":{"age":1}}]}`, nil},
			{`"retentionPolicy":{"retentionPeriod":"3600","effectiveTime":"2026-01-01T00:00:00Z"}`, []string{"gcs-retention"}},
			{`"defaultEventBasedHold":true`, []string{"gcs-default-hold"}},
			{`"versioning":{"enabled":true}`, []string{"gcs-versioning"}},
			{`"softDeletePolicy":{"retentionDurationSeconds":"604800"}`, []string{"gcs-soft-delete"}},
			{`"softDeletePolicy":{"retentionDurationSeconds":"0"}`, nil},
			{`"storageClass":"NEARLINE"`, []string{"gcs-storage-class"}},
		} {
			server.SetBucket(bucket, `{"kind":"storage#bucket","name":"bucket",`+c.settings+"}")
			storetest.ExpectFindings(t, c.settings, s, c.codes...)
		}
		server.SetBucket(bucket, "")
		storetest.ExpectFindings(t, "a bucket whose settings may not be seen", s, "gcs-unseen")
	}
	o := quickLayoutOptions(gcs.LayoutRecord)
	o.Prefix = "locks/"
	s, _ := mustOpen(t, server, o)
	server.SetBucket(bucket, `{"name":"bucket","lifecycle":{"rule":[{"action":{"type":"Delete"},
		"condition":{"age":7,"matchesPrefix":["logs/"]}}]}}`)
	storetest.ExpectFindings(t, "a rule for other objects", s)
}
