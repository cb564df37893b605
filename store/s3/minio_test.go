package s3_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/s3"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

// TestMinIODeletesBlindly: MinIO removes an object although If-Match names another version. That is why the store
// deletes nothing there. If this fails, MinIO compares, and the store may delete.
func TestMinIODeletesBlindly(t *testing.T) {
	t.Parallel()
	client := newClient(t, sharedMinIO(t))
	put := &sdk.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("blind"), Body: bytes.NewReader([]byte("1"))}
	if _, err := client.PutObject(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	_, err := client.DeleteObject(t.Context(), &sdk.DeleteObjectInput{Bucket: put.Bucket, Key: put.Key,
		IfMatch: aws.String(`"00000000000000000000000000000000"`)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.HeadObject(t.Context(), &sdk.HeadObjectInput{Bucket: put.Bucket, Key: put.Key})
	var gone *types.NotFound
	if !errors.As(err, &gone) {
		t.Errorf("the object is still there: %v", err)
	}
	if s, err := s3.New(t.Context(), client, bucket, layoutOptions(s3.LayoutTerraform)); !errors.Is(err,
		driver.ErrUnsupported) {
		t.Errorf("Terraform's layout: %v, %v", s, err)
	}
}

// TestMinIOSettings: what the doctor finds in buckets of MinIO with each setting, and that locks work in them, or are
// refused: in a bucket that keeps old versions, a removed object counts as none.
func TestMinIOSettings(t *testing.T) {
	t.Parallel()
	endpoint := sharedMinIO(t)
	client := newClient(t, endpoint)
	make := func(name string, locked bool) {
		t.Helper()
		if _, err := client.CreateBucket(t.Context(), &sdk.CreateBucketInput{Bucket: &name,
			ObjectLockEnabledForBucket: &locked}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(name string) driver.Store {
		t.Helper()
		s, err := s3.New(t.Context(), client, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	make("plain", false)
	storetest.ExpectFindings(t, "a plain bucket", open("plain"), "s3-kept", "s3-pools")
	make("versioned", false)
	if _, err := client.PutBucketVersioning(t.Context(), &sdk.PutBucketVersioningInput{Bucket: aws.String("versioned"),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled}}); err != nil {
		t.Fatal(err)
	}
	s := open("versioned")
	storetest.ExpectFindings(t, "a bucket with versions", s, "s3-kept", "s3-pools", "s3-versioning")
	var last int64
	for range 3 {
		g := acquire(t, s, mutexClaim("m", time.Minute))
		if g.Token <= last || renew(t, s, g).Err != nil {
			t.Errorf("token %d after %d", g.Token, last)
		}
		last = g.Token
		release(t, s, g.Claim)
	}
	if _, err := client.DeleteObject(t.Context(), &sdk.DeleteObjectInput{Bucket: aws.String("versioned"),
		Key: aws.String("m.json")}); err != nil {
		t.Fatal(err)
	}
	acquire(t, open("versioned"), mutexClaim("m", time.Minute))

	make("retained", true)
	if _, err := client.PutObjectLockConfiguration(t.Context(), &sdk.PutObjectLockConfigurationInput{
		Bucket: aws.String("retained"), ObjectLockConfiguration: &types.ObjectLockConfiguration{
			ObjectLockEnabled: types.ObjectLockEnabledEnabled, Rule: &types.ObjectLockRule{
				DefaultRetention: &types.DefaultRetention{Days: aws.Int32(1),
					Mode: types.ObjectLockRetentionModeGovernance}}},
	}); err != nil {
		t.Fatal(err)
	}
	s, err := s3.New(t.Context(), client, "retained", nil)
	switch {
	case err == nil:
		t.Log("locks work in a bucket with a default retention")
		storetest.ExpectFindings(t, "a bucket with a retention", s, "s3-kept", "s3-pools", "s3-retention")
		s.Close()
	case !errors.Is(err, driver.ErrDenied) || !strings.Contains(err.Error(), "retention"):
		t.Errorf("a bucket with a default retention: %v", err)
	}

	if _, err := client.PutBucketLifecycleConfiguration(t.Context(), &sdk.PutBucketLifecycleConfigurationInput{
		Bucket: aws.String("plain"), LifecycleConfiguration: &types.BucketLifecycleConfiguration{
			Rules: []types.LifecycleRule{{ID: aws.String("old"), Status: types.ExpirationStatusEnabled,
				Filter:     &types.LifecycleRuleFilter{Prefix: aws.String("")},
				Expiration: &types.LifecycleExpiration{Days: aws.Int32(1)}}}}}); err != nil {
		t.Fatal(err)
	}
	storetest.ExpectFindings(t, "a bucket with a rule that removes objects", open("plain"), "s3-lifecycle",
		"s3-pools")
}

// TestMinIOPools: a MinIO with two server pools, which creates an object a second time in the other pool, is refused.
func TestMinIOPools(t *testing.T) {
	t.Parallel()
	m, err := s3test.StartMinIOPools(2, bucket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	s, err := s3.New(t.Context(), newClient(t, m.URL()), bucket, nil)
	if s != nil || !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "server pool") {
		t.Errorf("a MinIO with two server pools: %v", err)
	}
}

// TestMinIORefusals: what MinIO says of a missing bucket, and of credentials that are not valid.
func TestMinIORefusals(t *testing.T) {
	t.Parallel()
	endpoint := sharedMinIO(t)
	if _, err := s3.New(t.Context(), newClient(t, endpoint), "missing", nil); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "there is no bucket missing") {
		t.Errorf("no such bucket: %v", err)
	}
	stranger := sdk.New(newClient(t, endpoint).Options(), func(o *sdk.Options) {
		o.Credentials = aws.CredentialsProviderFunc(staticStranger)
	})
	if _, err := s3.New(t.Context(), stranger, bucket, nil); !errors.Is(err, driver.ErrDenied) ||
		!strings.Contains(err.Error(), "credentials") {
		t.Errorf("unknown credentials: %v", err)
	}
}

// TestMinIOStops: while the server hangs, a renewal has no known outcome, and the claim stands when it continues. After
// it was killed, a claim that was granted is still there.
func TestMinIOStops(t *testing.T) {
	t.Parallel()
	m, err := s3test.StartMinIO(bucket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	store, err := s3.New(t.Context(), newClient(t, m.URL()), bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	g := acquire(t, store, mutexClaim("m", 5*time.Minute))
	m.Stop()
	for err = nil; err == nil; { // a server that was told to stop goes on for a moment
		err = renew(t, store, g).Err
	}
	if driverutil.IsFinal(err) {
		t.Errorf("while the server hangs, a renewal says %v", err)
	}
	m.Continue()
	storetest.Eventually(t, "a renewal after that", func() bool { return renew(t, store, g).Err == nil })
	m.Kill()
	if err := renew(t, store, g).Err; err == nil || driverutil.IsFinal(err) {
		t.Errorf("when there is no server, a renewal says %v", err)
	}
	if err := m.StartAgain(); err != nil {
		t.Fatal(err)
	}
	storetest.Eventually(t, "a renewal after a restart", func() bool { return renew(t, store, g).Err == nil })
	release(t, store, g.Claim)
}
