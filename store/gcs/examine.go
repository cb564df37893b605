package gcs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The findings, without the bucket and what was seen there (cloud.google.com/storage/docs: "Object Lifecycle
// Management", "Bucket Lock", "Object holds", "Object Versioning", "Soft delete", "Storage classes").
var (
	findingLifecycle = driver.Finding{Code: "gcs-lifecycle", Severity: driver.SeverityCritical,
		Why: "it may remove the objects of locks that are held",
		Fix: "give the rule a matchesPrefix that leaves out the locks, or keep the locks in a bucket of their own"}
	findingRetention = driver.Finding{Code: "gcs-retention", Severity: driver.SeverityCritical,
		Why: "the objects of locks cannot be replaced or removed, so locks are neither renewed nor released",
		Fix: "gcloud storage buckets update gs://BUCKET --clear-retention-period, or use another bucket"}
	findingHold = driver.Finding{Code: "gcs-default-hold", Severity: driver.SeverityCritical,
		Why: "the objects of locks cannot be replaced or removed, so locks are neither renewed nor released",
		Fix: "gcloud storage buckets update gs://BUCKET --no-default-event-based-hold"}
	findingVersioning = driver.Finding{Code: "gcs-versioning", Severity: driver.SeverityWarning,
		Why: "each renewal leaves an old version of an object, which is billed",
		Fix: "gcloud storage buckets update gs://BUCKET --no-versioning"}
	findingSoftDelete = driver.Finding{Code: "gcs-soft-delete", Severity: driver.SeverityWarning,
		Why: "each renewal leaves a deleted object, which is billed",
		Fix: "gcloud storage buckets update gs://BUCKET --clear-soft-delete"}
	findingStorageClass = driver.Finding{Code: "gcs-storage-class", Severity: driver.SeverityWarning,
		Why: "each object is billed for at least 30 days, and the objects of locks are replaced with each renewal",
		Fix: "gcloud storage buckets update gs://BUCKET --default-storage-class=STANDARD"}
	findingUnseen = driver.Finding{Code: "gcs-unseen", Severity: driver.SeverityUnknown,
		Fix: "allow storage.buckets.get, for example with roles/storage.legacyBucketReader"}
)

// Examine looks at the settings of the bucket.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	var attrs *bucketAttrs
	err := t.callServer(ctx, "storage.buckets.get", func(ctx context.Context) (err error) {
		attrs, err = t.bucket.readBucket(ctx)
		return err
	})
	switch {
	case errors.Is(err, driver.ErrDenied):
		return []driver.Finding{findingUnseen.With(t.bucketName, "the bucket's settings cannot be seen: "+err.Error())}, nil
	case err != nil:
		return nil, err
	}
	var all []driver.Finding
	for _, f := range examineBucket(attrs, t.prefix) {
		f.Fix = strings.ReplaceAll(f.Fix, "BUCKET", t.bucketName)
		f.Subject = t.bucketName
		all = append(all, f)
	}
	return all, nil
}

// examineBucket returns what is wrong with a bucket whose locks have that prefix.
func examineBucket(b *bucketAttrs, prefix string) (all []driver.Finding) {
	add := func(when bool, f driver.Finding, format string, args ...any) {
		if when {
			all = append(all, f.With("", fmt.Sprintf(format, args...)))
		}
	}
	for _, rule := range b.Lifecycle.Rules {
		add(removesLocks(rule, prefix), findingLifecycle, "a lifecycle rule deletes objects%s", describeRule(rule))
	}
	retention := time.Duration(b.RetentionPolicy.Seconds) * time.Second
	add(retention > 0, findingRetention, "the bucket has a retention period of %v", retention)
	add(b.DefaultEventBasedHold, findingHold, "new objects are held (default event-based hold)")
	add(b.Versioning.Enabled, findingVersioning, "the bucket keeps old versions of objects")
	kept := time.Duration(b.SoftDeletePolicy.Seconds) * time.Second
	add(kept > 0, findingSoftDelete, "deleted and replaced objects are kept for %v", kept)
	add(slices.Contains([]string{"NEARLINE", "COLDLINE", "ARCHIVE"}, b.StorageClass), findingStorageClass,
		"the storage class is %s", b.StorageClass)
	return all
}

// removesLocks reports whether a rule may delete an object that is in use below the prefix. A rule for old versions
// does not, and neither does one that never matches a name of a lock.
func removesLocks(rule lifecycleRule, prefix string) bool {
	c := rule.Condition
	if rule.Action.Type != "Delete" || c.IsLive != nil && !*c.IsLive || c.NumNewerVersions > 0 ||
		c.DaysSinceNoncurrentTime > 0 || c.NoncurrentTimeBefore != "" {
		return false
	}
	return len(c.MatchesPrefix) == 0 || slices.ContainsFunc(c.MatchesPrefix, func(p string) bool {
		return strings.HasPrefix(p, prefix) || strings.HasPrefix(prefix, p)
	})
}

// describeRule says which objects a rule deletes.
func describeRule(rule lifecycleRule) (text string) {
	if len(rule.Condition.MatchesPrefix) > 0 {
		text += fmt.Sprintf(" below %q", rule.Condition.MatchesPrefix)
	}
	if days := rule.Condition.Age; days > 0 {
		text += fmt.Sprintf(" that are older than %v", time.Duration(days)*24*time.Hour)
	}
	return text
}
