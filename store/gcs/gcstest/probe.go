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

// Probe looks whether a service keeps what locks rely upon: a write is refused unless its precondition holds, and of several
// writes with one precondition one is done. The prefix is for objects of its own. The error names the first lie.
func Probe(ctx context.Context, client *storage.Client, bucket, prefix string) error {
	p := &probe{ctx: ctx, bucket: client.Bucket(bucket).Retryer(storage.WithPolicy(storage.RetryNever)), object: prefix + "probe"}
	for _, check := range []func() error{p.creates, p.replaces, p.updates, p.deletes, p.races} {
		if err := check(); err != nil {
			return fmt.Errorf("the service is not fit for locks: %w", err)
		}
	}
	return nil
}

type probe struct {
	ctx    context.Context
	bucket *storage.BucketHandle
	object string
}

var absent = storage.Conditions{DoesNotExist: true}

func at(a *storage.ObjectAttrs) storage.Conditions {
	return storage.Conditions{GenerationMatch: a.Generation, MetagenerationMatch: a.Metageneration}
}

// wrong are preconditions that do not hold where a stands.
func wrong(a *storage.ObjectAttrs) map[string]storage.Conditions {
	return map[string]storage.Conditions{
		"an object that is there":   absent,
		"another generation":        {GenerationMatch: a.Generation + 1, MetagenerationMatch: a.Metageneration},
		"another metageneration":    {GenerationMatch: a.Generation, MetagenerationMatch: a.Metageneration + 1},
		"another generation (bare)": {GenerationMatch: a.Generation + 1},
	}
}

func (p *probe) insert(c storage.Conditions, data string) (*storage.ObjectAttrs, error) {
	w := p.bucket.Object(p.object).If(c).NewWriter(p.ctx)
	w.DisableAutoChecksum = true // emulators do not know of it, and it is not what is probed
	w.ChunkSize = 0
	_, err := w.Write([]byte(data))
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return w.Attrs(), nil
}

func (p *probe) remove(c storage.Conditions) error {
	return p.bucket.Object(p.object).If(c).Delete(p.ctx)
}

// refused fails unless the error is the refusal of a precondition.
func refused(err error, format string, args ...any) error {
	var e *googleapi.Error
	switch {
	case err == nil:
		return fmt.Errorf(format+" is done, and not refused", args...)
	case errors.As(err, &e) && e.Code == http.StatusPreconditionFailed:
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func (p *probe) creates() error {
	if _, err := p.insert(absent, "1"); err != nil {
		return fmt.Errorf("an object is created: %w", err)
	}
	_, err := p.insert(absent, "2")
	return refused(err, "creating an object that is there")
}

func (p *probe) replaces() error {
	a, err := p.bucket.Object(p.object).Attrs(p.ctx)
	if err != nil {
		return err
	}
	for what, c := range wrong(a) {
		_, err := p.insert(c, "3")
		if err := refused(err, "replacing %s", what); err != nil {
			return err
		}
	}
	next, err := p.insert(at(a), "4")
	switch {
	case err != nil:
		return fmt.Errorf("an object is replaced: %w", err)
	case next.Generation == a.Generation:
		return errors.New("a replaced object keeps its generation")
	}
	return nil
}

func (p *probe) updates() error {
	o := p.bucket.Object(p.object)
	a, err := o.Attrs(p.ctx)
	if err != nil {
		return err
	}
	next, err := o.If(at(a)).Update(p.ctx, storage.ObjectAttrsToUpdate{Metadata: map[string]string{"a": "b"}})
	switch {
	case err != nil:
		return fmt.Errorf("metadata are changed: %w", err)
	case next.Generation != a.Generation || next.Metageneration == a.Metageneration:
		return errors.New("new metadata change the generation, or leave the metageneration")
	}
	_, err = p.insert(at(a), "5")
	return refused(err, "replacing an object whose metadata have changed")
}

func (p *probe) deletes() error {
	a, err := p.bucket.Object(p.object).Attrs(p.ctx)
	if err != nil {
		return err
	}
	for what, c := range wrong(a) {
		if c == absent {
			continue // makes no sense here
		}
		if err := refused(p.remove(c), "deleting %s", what); err != nil {
			return err
		}
	}
	if err := p.remove(at(a)); err != nil {
		return fmt.Errorf("an object is deleted: %w", err)
	}
	return nil
}

// races has eight create an object at once, then eight replace or delete it.
func (p *probe) races() error {
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
			_, err := p.insert(absent, fmt.Sprint(i))
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
				return p.remove(at(a))
			}
			_, err := p.insert(at(a), fmt.Sprint(i))
			return err
		}); err != nil {
			return err
		}
		if a, err := p.bucket.Object(p.object).Attrs(p.ctx); err == nil {
			if err := p.remove(at(a)); err != nil {
				return err
			}
		}
	}
	return nil
}
