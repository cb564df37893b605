package s3

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The findings, without the bucket and what was seen there (Amazon S3 User Guide: "Managing the lifecycle of objects",
// "Locking objects with Object Lock", "Retaining multiple versions of objects", "Replicating objects").
var (
	findingLifecycle = driver.Finding{Code: "s3-lifecycle", Severity: driver.SeverityCritical,
		Why: "it may remove the objects of locks that are held",
		Fix: "let the rule wait for three days, give it a prefix that leaves out the locks, or keep them in a " +
			"bucket of their own"}
	findingRuns = driver.Finding{Code: "s3-lifecycle-runs", Severity: driver.SeverityWarning,
		Why: "it also removes the run ledger's objects, and what has succeeded is then run again",
		Fix: "run nothing again after that time, or give the rule a prefix that leaves out PREFIX=holdfast-runs/"}
	findingArchive = driver.Finding{Code: "s3-archive", Severity: driver.SeverityCritical,
		Why: "an archived object cannot be read, so its lock can be neither taken nor listed",
		Fix: "give the rule a prefix that leaves out the locks, or keep them in a bucket of their own"}
	findingRetention = driver.Finding{Code: "s3-retention", Severity: driver.SeverityWarning,
		Why: "each renewal leaves a version of an object that nobody can remove before its time, and that is billed",
		Fix: "keep the locks in a bucket without Object Lock"}
	findingVersioning = driver.Finding{Code: "s3-versioning", Severity: driver.SeverityWarning,
		Why: "each renewal leaves an old version of an object, which is billed",
		Fix: "keep the locks in a bucket without versioning, or remove old versions after a day: a lifecycle rule " +
			"with NoncurrentVersionExpiration, and ExpiredObjectDeleteMarker"}
	findingReplication = driver.Finding{Code: "s3-replication", Severity: driver.SeverityWarning,
		Why: "the other bucket learns of each write later: clients that use it take locks that are held here",
		Fix: "let all clients use this bucket, or leave the prefix of the locks out of the rule"}
	findingKept = driver.Finding{Code: "s3-kept", Severity: driver.SeverityWarning,
		What: "the service does not compare the ETag before it deletes an object, or we may not delete",
		Why:  "the objects of idle locks remain forever, and each listing reads all of them",
		Fix: "allow s3:DeleteObject; or, if the service is the cause, let a lifecycle rule remove objects after " +
			"three days or more"}
	findingPlain = driver.Finding{Code: "s3-plain", Severity: driver.SeverityWarning,
		What: "the connection to another machine is not encrypted",
		Why:  "an attacker between this client and the service can read the locks and impersonate the service",
		Fix:  "use an endpoint with https"}
	findingPools = driver.Finding{Code: "s3-pools", Severity: driver.SeverityUnknown,
		What: "the service is MinIO, and how many server pools it has cannot be seen",
		Why:  "with more than one, two clients can take one lock",
		Fix:  "use a MinIO with one server pool, and never add another"}
	findingUnseen = driver.Finding{Code: "s3-unseen", Severity: driver.SeverityUnknown,
		Fix: "allow s3:GetBucketVersioning, s3:GetLifecycleConfiguration, s3:GetBucketObjectLockConfiguration and " +
			"s3:GetReplicationConfiguration"}
)

// minExpirationDays is the age in days at which no object is that of a lock in use: the longest TTL is one day, and a
// rule counts from midnight to midnight.
const minExpirationDays = 3

// bucketSettings are the settings of a bucket that matter here. What the service does not know is nil.
type bucketSettings struct {
	versioning  *sdk.GetBucketVersioningOutput
	retention   *sdk.GetObjectLockConfigurationOutput
	lifecycle   *sdk.GetBucketLifecycleConfigurationOutput
	replication *sdk.GetBucketReplicationOutput
}

// Examine looks at the settings of the bucket.
func (t *table) Examine(ctx context.Context) ([]driver.Finding, error) {
	all := t.examineAccess()
	s, err := t.readSettings(ctx)
	switch {
	case errors.Is(err, driver.ErrDenied):
		all = append(all, findingUnseen.With("", "some of the bucket's settings cannot be seen: "+err.Error()))
	case err != nil:
		return nil, err
	}
	all = append(all, s.examine(t.prefix)...)
	if s.lifecycle != nil && slices.ContainsFunc(s.lifecycle.Rules, func(r types.LifecycleRule) bool {
		return matches(r, t.prefix) && expires(r)
	}) {
		all = slices.DeleteFunc(all, func(f driver.Finding) bool { return f.Code == findingKept.Code })
	}
	for i := range all {
		all[i].Subject = t.bucket.bucket
		all[i].Fix = strings.ReplaceAll(all[i].Fix, "PREFIX", t.prefix)
	}
	return all, nil
}

// examineAccess returns what is wrong with how the service is used.
func (t *table) examineAccess() (all []driver.Finding) {
	if !t.removal.compares() {
		all = append(all, findingKept)
	}
	if t.bucket.minio.Load() {
		all = append(all, findingPools)
	}
	e, err := url.Parse(aws.ToString(t.bucket.client.Options().BaseEndpoint))
	if err == nil && e.Scheme == "http" && !driverutil.IsLoopback(e.Hostname()) {
		all = append(all, findingPlain)
	}
	return all
}

// readSettings reads the settings of the bucket. Those that are there are returned also with an error.
func (t *table) readSettings(ctx context.Context) (s bucketSettings, err error) {
	c, name := t.bucket, &t.bucket.bucket
	var errs [4]error
	s.versioning, errs[0] = sendRequest(ctx, c, "s3:GetBucketVersioning", c.client.GetBucketVersioning,
		&sdk.GetBucketVersioningInput{Bucket: name})
	s.retention, errs[1] = sendRequest(ctx, c, "s3:GetBucketObjectLockConfiguration",
		c.client.GetObjectLockConfiguration,
		&sdk.GetObjectLockConfigurationInput{Bucket: name})
	s.lifecycle, errs[2] = sendRequest(ctx, c, "s3:GetLifecycleConfiguration", c.client.GetBucketLifecycleConfiguration,
		&sdk.GetBucketLifecycleConfigurationInput{Bucket: name})
	s.replication, errs[3] = sendRequest(ctx, c, "s3:GetReplicationConfiguration", c.client.GetBucketReplication,
		&sdk.GetBucketReplicationInput{Bucket: name})
	for _, e := range errs {
		// A setting that was never made is not found, and there are services that know none.
		known := e == nil || errors.Is(e, errNotFound) || errors.Is(e, driver.ErrUnsupported)
		if !known && !errors.Is(err, driver.ErrDenied) {
			err = e
		}
	}
	return s, err
}

// examine returns what is wrong with a bucket whose locks have that prefix.
func (s *bucketSettings) examine(prefix string) (all []driver.Finding) {
	add := func(when bool, f driver.Finding, format string, args ...any) {
		if when {
			all = append(all, f.With("", fmt.Sprintf(format, args...)))
		}
	}
	if s.lifecycle != nil {
		for _, r := range s.lifecycle.Rules {
			if !matches(r, prefix) {
				continue
			}
			if id := aws.ToString(r.ID); expires(r) && isLate(r) {
				add(true, findingRuns, "the lifecycle rule %q removes objects after %d days", id, *r.Expiration.Days)
			} else {
				add(expires(r), findingLifecycle, "the lifecycle rule %q removes objects", id)
			}
			add(archives(r), findingArchive, "the lifecycle rule %q archives objects", aws.ToString(r.ID))
		}
	}
	locked := s.retention != nil && s.retention.ObjectLockConfiguration != nil &&
		s.retention.ObjectLockConfiguration.Rule != nil &&
		s.retention.ObjectLockConfiguration.Rule.DefaultRetention != nil
	add(locked, findingRetention, "new objects are retained (Object Lock with a default retention)")
	add(s.versioning != nil && s.versioning.Status == types.BucketVersioningStatusEnabled && !locked, findingVersioning,
		"the bucket keeps old versions of objects")
	if s.replication != nil && s.replication.ReplicationConfiguration != nil {
		for _, r := range s.replication.ReplicationConfiguration.Rules {
			//lint:ignore SA1019 older rules have it
			at := aws.ToString(r.Prefix)
			if r.Filter != nil {
				at = aws.ToString(r.Filter.Prefix)
			}
			if r.Status == types.ReplicationRuleStatusEnabled && overlap(at, prefix) {
				add(true, findingReplication, "objects are replicated to another bucket")
				break
			}
		}
	}
	return all
}

// overlap reports whether there can be keys with both prefixes.
func overlap(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) }

// matches reports whether a rule is for objects below a prefix. The objects of locks have no tags.
func matches(r types.LifecycleRule, prefix string) bool {
	//lint:ignore SA1019 older rules have it
	at := aws.ToString(r.Prefix)
	if f := r.Filter; f != nil {
		larger := aws.ToInt64(f.ObjectSizeGreaterThan)
		if f.Tag != nil {
			return false
		}
		if at = aws.ToString(f.Prefix); f.And != nil {
			if len(f.And.Tags) > 0 {
				return false
			}
			at, larger = aws.ToString(f.And.Prefix), aws.ToInt64(f.And.ObjectSizeGreaterThan)
		}
		if larger > record.MaxData {
			return false
		}
	}
	return r.Status == types.ExpirationStatusEnabled && overlap(at, prefix)
}

// expires reports whether a rule removes current objects.
func expires(r types.LifecycleRule) bool {
	return r.Expiration != nil && (aws.ToInt32(r.Expiration.Days) > 0 || r.Expiration.Date != nil)
}

// isLate reports whether a rule that removes objects leaves those of locks in use.
func isLate(r types.LifecycleRule) bool { return aws.ToInt32(r.Expiration.Days) >= minExpirationDays }

// archives reports whether a rule makes current objects unreadable.
func archives(r types.LifecycleRule) bool {
	return slices.ContainsFunc(r.Transitions, func(t types.Transition) bool {
		return t.StorageClass == types.TransitionStorageClassGlacier ||
			t.StorageClass == types.TransitionStorageClassDeepArchive
	})
}
