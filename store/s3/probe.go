package s3

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// What a service must do for locks is found out by trying. The result is kept in an object of the bucket, below the
// prefix, so that only the first client in a week tries: the others read one object, which they would do anyway to
// learn the service's clock and to see whether they may use the bucket.
//
// MinIO is tried by each client. With more than one server pool, it looks for the object of a conditional write in one
// of them, which it picks at random by their free space. A pool may be added at any time, and no reply tells of it.

// The keys of the result and, with a random text, of what is tried. No lock has such a key: see decodeName.
const (
	probeKey = string(escapeChar) + "holdfast-probe"
	trialKey = probeKey + "-"
)

// probeAge is how old a result may be.
const probeAge = 7 * 24 * time.Hour

// probeResult is the content of the object with the result.
type probeResult struct {
	Service string  `json:"service"` // for which it is true; the bucket may have been copied
	Removal removal `json:"removal"`
	Time    int64   `json:"time"` // of the service's clock, in seconds since 1970
}

// removal is what a service does with If-Match in DELETE.
type removal string

const (
	removalUnknown  removal = "unknown"  // the client that tried may not delete
	removalBlind    removal = "blind"    // it does not compare
	removalCompares removal = "compares" // it compares, and refuses to remove what is not there
	removalLenient  removal = "lenient"  // it compares, and says of what is not there that it has removed it
)

func (r removal) compares() bool { return r == removalCompares || r == removalLenient }

// probe finds out what the service does, and sets t.removal. The error says why it is not fit for locks. If we must be
// able to delete, the result of a client that may not is not used, and it is an error if we may not.
func (t *table) probe(ctx context.Context, mustDelete bool) error {
	o, err := t.bucket.get(ctx, t.prefix+probeKey, 4096)
	switch {
	case t.bucket.google.Load():
		return errGoogle
	case err != nil && !errors.Is(err, errNotFound):
		return err
	case !t.bucket.clock.Known():
		return fmt.Errorf("%w: the replies have no Date, or come from a cache", driver.ErrUnsupported)
	}
	now := t.bucket.clock.TokenFloor()
	var r probeResult
	isMinIO := t.bucket.minio.Load()
	if err == nil && !isMinIO && json.Unmarshal(o.data, &r) == nil {
		age := time.UnixMicro(now).Sub(time.Unix(r.Time, 0))
		fits := r.Removal != "" && (r.Removal != removalUnknown || !mustDelete)
		if r.Service == t.service && age > -time.Hour && age < probeAge && fits {
			if t.removal = r.Removal; mustDelete {
				return t.checkMayDelete(ctx)
			}
			return nil
		}
	}
	if t.removal, err = t.tryConditions(ctx, mustDelete); err != nil || isMinIO {
		return err
	}
	text, err := json.Marshal(probeResult{Service: t.service, Removal: t.removal, Time: now / 1e6})
	if err == nil {
		_, err = t.bucket.put(ctx, t.prefix+probeKey, o.etag, text)
	}
	if errors.Is(err, record.ErrConflict) { // another client has tried at the same time
		err = nil
	}
	return err
}

// errGoogle is about Cloud Storage, which ignores If-Match and If-None-Match on PUT (Cloud Storage documentation, "HTTP
// headers and query string parameters for XML API").
var errGoogle = fmt.Errorf("%w: Google Cloud Storage does not honor these conditions in its S3 interface; "+
	"use gcs://bucket/prefix", driver.ErrUnsupported)

// checkMayDelete returns an error if this client may not delete. It removes an object that does not exist.
func (t *table) checkMayDelete(ctx context.Context) error {
	err := t.bucket.remove(ctx, t.prefix+trialKey+rand.Text(), `"00000000000000000000000000000000"`)
	if errors.Is(err, errNotFound) || errors.Is(err, record.ErrConflict) {
		return nil
	}
	return err
}

// tryConditions checks on an object of its own that conditions of writes are obeyed, and finds out what those of a
// removal do.
func (t *table) tryConditions(ctx context.Context, mustDelete bool) (does removal, err error) {
	key := t.prefix + trialKey + rand.Text()
	gone := false
	defer func() {
		if !gone { // as far as we may
			_ = t.bucket.remove(context.WithoutCancel(ctx), key, "")
		}
	}()
	put := func(etag string) (string, error) { return t.bucket.put(ctx, key, etag, makeContent(nil)) }
	first, err := put("")
	switch {
	case errors.Is(err, errNoETag):
		return "", fmt.Errorf("%w: %w", driver.ErrUnsupported, err)
	case err != nil:
		gone = driverutil.IsFinal(err)
		return "", err
	}
	if err = t.tryCreates(ctx, key); err != nil {
		return "", err
	}
	second, err := put(first)
	switch {
	case errors.Is(err, record.ErrConflict):
		return "", fmt.Errorf("%w: the service refuses an If-Match in PUT that holds; does a proxy change ETags, or is it "+
			"MinIO with more than one server pool?", driver.ErrUnsupported)
	case err != nil:
		return "", err
	case second == first:
		return "", fmt.Errorf("%w: the service's ETags do not depend on the content", driver.ErrUnsupported)
	}
	if _, err = put(first); !errors.Is(err, record.ErrConflict) {
		return "", notObeyed("If-Match", err)
	}
	o, err := t.bucket.get(ctx, key, maxObject)
	switch {
	case err != nil:
		return "", err
	case o.etag != second:
		return "", fmt.Errorf("%w: a read returns the ETag %s, and the write before it %s; does a proxy change it?",
			driver.ErrUnsupported, o.etag, second)
	}
	does, err = t.tryRemoval(ctx, key, first, second, mustDelete)
	gone = err == nil && does.compares()
	return does, err
}

// tryRemoval finds out what If-Match in DELETE does. The object has the second of two ETags.
func (t *table) tryRemoval(ctx context.Context, key, before, now string, mustDelete bool) (removal, error) {
	err := t.bucket.remove(ctx, key, before)
	switch {
	case errors.Is(err, record.ErrConflict):
	case err == nil, errors.Is(err, errNotFound), errors.Is(err, driver.ErrUnsupported):
		return removalBlind, nil
	case (errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrInvalid)) && !mustDelete:
		return removalUnknown, nil
	default:
		return "", err
	}
	if err = t.bucket.remove(ctx, key, now); err != nil {
		return "", err
	}
	switch err = t.bucket.remove(ctx, key, now); {
	case errors.Is(err, errNotFound), errors.Is(err, record.ErrConflict):
		return removalCompares, nil
	case err == nil:
		return removalLenient, nil
	}
	return "", err
}

// conditionTries is how often a write is tried that must be refused. A service that compares only in one of two parts,
// which it picks at random, refuses all of them once in four billion times. If one part is picked only once in ten
// times, it is once in thirty.
const conditionTries = 32

// tryCreates checks that an object which exists is never created once more. Some answers may be that there were too
// many requests.
func (t *table) tryCreates(ctx context.Context, key string) error {
	const atOnce = 8
	errs := make([]error, conditionTries)
	var all sync.WaitGroup
	for begin := range atOnce {
		all.Go(func() {
			for i := begin; i < conditionTries; i += atOnce {
				_, errs[i] = t.bucket.put(ctx, key, "", makeContent(nil))
			}
		})
	}
	all.Wait()
	created, refused := 0, 0
	for _, err := range errs {
		switch {
		case err == nil:
			created++
		case errors.Is(err, record.ErrConflict):
			refused++
		}
	}
	switch {
	case created > 0 && refused > 0:
		return fmt.Errorf("%w: the service sometimes ignores If-None-Match in PUT, so that two clients could take one "+
			"lock; MinIO does so if it has more than one server pool", driver.ErrUnsupported)
	case created > 0:
		return notObeyed("If-None-Match", nil)
	case refused == 0:
		return errs[0]
	}
	return nil
}

// notObeyed is the error about a condition that did not hold, and for which the service did not refuse a write.
func notObeyed(header string, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: the service ignores %s in PUT, so that two clients could take one lock; a newer version "+
		"of it may not", driver.ErrUnsupported, header)
}
