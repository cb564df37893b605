package gcstest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"
)

// Probe checks that a service does what locks rely on: a write is refused unless its precondition holds, and of several
// writes with one precondition one is done. It uses objects with that prefix. The error names the first failure.
func Probe(ctx context.Context, client *storage.Client, bucket, prefix string) error {
	p := &probe{ctx: ctx, object: prefix + "probe",
		bucket: client.Bucket(bucket).Retryer(storage.WithPolicy(storage.RetryNever))}
	for _, check := range []func() error{p.probeCreate, p.probeReplace, p.probeUpdate, p.probeDelete, p.probeRaces} {
		if err := check(); err != nil {
			return fmt.Errorf("the service is not fit for locks: %w", err)
		}
	}
	return nil
}

// probe is one run of Probe.
type probe struct {
	ctx    context.Context
	bucket *storage.BucketHandle
	object string
}

var absent = storage.Conditions{DoesNotExist: true}

// unchangedConditions is the precondition that an object is as it was.
func unchangedConditions(a *storage.ObjectAttrs) storage.Conditions {
	return storage.Conditions{GenerationMatch: a.Generation, MetagenerationMatch: a.Metageneration}
}

// failingConditions returns preconditions that do not hold for this object.
func failingConditions(a *storage.ObjectAttrs) map[string]storage.Conditions {
	return map[string]storage.Conditions{
		"an object that is there":   absent,
		"another generation":        {GenerationMatch: a.Generation + 1, MetagenerationMatch: a.Metageneration},
		"another metageneration":    {GenerationMatch: a.Generation, MetagenerationMatch: a.Metageneration + 1},
		"another generation (bare)": {GenerationMatch: a.Generation + 1},
	}
}

func (p *probe) insertObject(c storage.Conditions, data string) (*storage.ObjectAttrs, error) {
	w := p.bucket.Object(p.object).If(c).NewWriter(p.ctx)
	w.DisableAutoChecksum = true // emulators do not support it, and it is not what is probed
	w.ChunkSize = 0
	_, err := w.Write([]byte(data))
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return w.Attrs(), nil
}

func (p *probe) removeObject(c storage.Conditions) error {
	return p.bucket.Object(p.object).If(c).Delete(p.ctx)
}

// expectRefusal returns nil if the error is the refusal of a precondition.
func expectRefusal(err error, format string, args ...any) error {
	var e *googleapi.Error
	switch {
	case err == nil:
		return fmt.Errorf(format+" is done, and not refused", args...)
	case errors.As(err, &e) && e.Code == http.StatusPreconditionFailed:
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// probeCreate checks that an object cannot be created twice.
func (p *probe) probeCreate() error {
	if _, err := p.insertObject(absent, "1"); err != nil {
		return fmt.Errorf("an object is created: %w", err)
	}
	_, err := p.insertObject(absent, "2")
	return expectRefusal(err, "creating an object that is there")
}

// probeReplace checks the preconditions of a replacement.
func (p *probe) probeReplace() error {
	a, err := p.bucket.Object(p.object).Attrs(p.ctx)
	if err != nil {
		return err
	}
	for what, c := range failingConditions(a) {
		_, err := p.insertObject(c, "3")
		if err := expectRefusal(err, "replacing %s", what); err != nil {
			return err
		}
	}
	next, err := p.insertObject(unchangedConditions(a), "4")
	switch {
	case err != nil:
		return fmt.Errorf("an object is replaced: %w", err)
	case next.Generation == a.Generation:
		return errors.New("a replaced object keeps its generation")
	}
	return nil
}

// probeUpdate checks that a change of metadata changes the metageneration only, and makes the old
// precondition fail.
func (p *probe) probeUpdate() error {
	o := p.bucket.Object(p.object)
	a, err := o.Attrs(p.ctx)
	if err != nil {
		return err
	}
	next, err := o.If(unchangedConditions(a)).Update(p.ctx,
		storage.ObjectAttrsToUpdate{Metadata: map[string]string{"a": "b"}})
	switch {
	case err != nil:
		return fmt.Errorf("metadata are changed: %w", err)
	case next.Generation != a.Generation || next.Metageneration == a.Metageneration:
		return errors.New("new metadata change the generation, or leave the metageneration")
	}
	_, err = p.insertObject(unchangedConditions(a), "5")
	return expectRefusal(err, "replacing an object whose metadata have changed")
}

// probeDelete checks the preconditions of a removal.
func (p *probe) probeDelete() error {
	a, err := p.bucket.Object(p.object).Attrs(p.ctx)
	if err != nil {
		return err
	}
	for what, c := range failingConditions(a) {
		if c == absent {
			continue // it means nothing for a removal
		}
		if err := expectRefusal(p.removeObject(c), "deleting %s", what); err != nil {
			return err
		}
	}
	if err := p.removeObject(unchangedConditions(a)); err != nil {
		return fmt.Errorf("an object is deleted: %w", err)
	}
	return nil
}

// probeRaces lets eight clients create an object at once, and then replace or delete it at once.
func (p *probe) probeRaces() error {
	const rounds, racers = 10, 8
	race := func(what string, write func(i int) error) error {
		var won atomic.Int64
		var wg sync.WaitGroup
		for i := range racers {
			wg.Go(func() {
				if write(i) == nil {
					won.Add(1)
				}
			})
		}
		wg.Wait()
		if n := won.Load(); n != 1 {
			return fmt.Errorf("of %d who %s at once %d win", racers, what, n)
		}
		return nil
	}
	for range rounds {
		if err := race("create an object", func(i int) error {
			_, err := p.insertObject(absent, fmt.Sprint(i))
			return err
		}); err != nil {
			return err
		}
		a, err := p.bucket.Object(p.object).Attrs(p.ctx)
		if err != nil {
			return err
		}
		if err := race("replace or delete an object", func(i int) error {
			if i%2 == 0 {
				return p.removeObject(unchangedConditions(a))
			}
			_, err := p.insertObject(unchangedConditions(a), fmt.Sprint(i))
			return err
		}); err != nil {
			return err
		}
		if a, err := p.bucket.Object(p.object).Attrs(p.ctx); err == nil {
			if err := p.removeObject(unchangedConditions(a)); err != nil {
				return err
			}
		}
	}
	return nil
}
