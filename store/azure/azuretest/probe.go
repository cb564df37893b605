package azuretest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"
)

// Probe checks with Microsoft's own library that a service keeps what locks need: conditions of writes that are atomic,
// ETags that differ, and leases that exclude. name is a blob that it makes and removes.
func Probe(ctx context.Context, client *azblob.Client, container, name string) error {
	p := &probe{ctx, client.ServiceClient().NewContainerClient(container).NewBlockBlobClient(name)}
	for _, check := range []func() error{p.probeWrites, p.probeDelete, p.probeRaces, p.probeLeases} {
		if err := check(); err != nil {
			return fmt.Errorf("this service is not fit for locks: %w", err)
		}
	}
	return nil
}

type probe struct {
	ctx  context.Context
	blob *blockblob.Client
}

var (
	absent = &blob.ModifiedAccessConditions{IfNoneMatch: to.Ptr(azcore.ETagAny)}
	stale  = &blob.ModifiedAccessConditions{IfMatch: to.Ptr(azcore.ETag(`"0x8D000000000000"`))}
)

func match(etag azcore.ETag) *blob.ModifiedAccessConditions {
	return &blob.ModifiedAccessConditions{IfMatch: &etag}
}

func (p *probe) write(c *blob.ModifiedAccessConditions, leaseID *string) (azcore.ETag, error) {
	r, err := p.blob.UploadBuffer(p.ctx, []byte("x"), &blockblob.UploadBufferOptions{AccessConditions: &blob.AccessConditions{
		ModifiedAccessConditions: c, LeaseAccessConditions: &blob.LeaseAccessConditions{LeaseID: leaseID}}})
	if err != nil {
		return "", err
	}
	return *r.ETag, nil
}

func (p *probe) remove(c *blob.ModifiedAccessConditions) error {
	_, err := p.blob.Delete(p.ctx, &blob.DeleteOptions{AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: c}})
	return err
}

// expect returns nil if the error is the refusal with that code.
func expect(what string, err error, code bloberror.Code) error {
	switch {
	case err == nil:
		return errors.New(what + " is done, and not refused")
	case bloberror.HasCode(err, code):
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (p *probe) probeWrites() error {
	first, err := p.write(absent, nil)
	if err != nil {
		return err
	}
	second, err := p.write(match(first), nil)
	if err != nil {
		return err
	}
	if first == second {
		return errors.New("a blob that is written twice with the same content keeps its ETag")
	}
	_, err1 := p.write(absent, nil)
	_, err2 := p.write(match(first), nil)
	return errors.Join(expect("making a blob that is there", err1, bloberror.BlobAlreadyExists),
		expect("replacing a blob that has changed", err2, bloberror.ConditionNotMet))
}

func (p *probe) probeDelete() error {
	now, err := p.write(nil, nil)
	if err != nil {
		return err
	}
	if err := expect("deleting a blob that has changed", p.remove(stale), bloberror.ConditionNotMet); err != nil {
		return err
	}
	if err := p.remove(match(now)); err != nil {
		return err
	}
	_, err = p.write(match(now), nil)
	if err := expect("replacing a blob that is not there", err, bloberror.ConditionNotMet); err != nil {
		return err
	}
	again, err := p.write(absent, nil)
	if err == nil && again == now {
		err = errors.New("a blob that is made again gets an ETag that it had before")
	}
	return errors.Join(err, p.remove(match(again)))
}

// probeRaces lets eight clients make a blob at once, and then replace or delete it at once.
func (p *probe) probeRaces() error {
	const rounds, racers = 10, 8
	race := func(what string, try func(i int) error) error {
		var won atomic.Int64
		var all sync.WaitGroup
		for i := range racers {
			all.Go(func() {
				if try(i) == nil {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if n := won.Load(); n != 1 {
			return fmt.Errorf("of %d who %s at once %d win", racers, what, n)
		}
		return nil
	}
	for range rounds {
		var made atomic.Pointer[azcore.ETag]
		err := race("make a blob", func(int) error {
			etag, err := p.write(absent, nil)
			if err == nil {
				made.Store(&etag)
			}
			return err
		})
		if err == nil {
			err = race("replace or delete a blob", func(i int) error {
				if i%2 == 0 {
					return p.remove(match(*made.Load()))
				}
				_, err := p.write(match(*made.Load()), nil)
				return err
			})
		}
		if err != nil {
			return err
		}
		_ = p.remove(nil) // it may be gone
	}
	return nil
}

func (p *probe) probeLeases() error {
	if _, err := p.write(absent, nil); err != nil {
		return err
	}
	id := "6b1b1b44-5d0a-4a7e-9d1b-0f3a7d2f0001"
	ours, err := lease.NewBlobClient(p.blob, &lease.BlobClientOptions{LeaseID: &id})
	if err != nil {
		return err
	}
	theirs, err := lease.NewBlobClient(p.blob, nil)
	if err != nil {
		return err
	}
	if _, err := ours.AcquireLease(p.ctx, 15, nil); err != nil {
		return err
	}
	_, err = theirs.AcquireLease(p.ctx, 15, nil)
	_, without := p.write(nil, nil)
	_, with := p.write(nil, &id)
	_, again := ours.AcquireLease(p.ctx, 15, nil)
	_, released := ours.ReleaseLease(p.ctx, nil)
	_, late := p.write(nil, &id)
	return errors.Join(expect("leasing a blob twice", err, bloberror.LeaseAlreadyPresent),
		expect("writing a leased blob without the id", without, bloberror.LeaseIDMissing), with, again, released,
		expect("writing with the id of a lease that has ended", late, bloberror.LeaseNotPresentWithBlobOperation),
		p.remove(nil))
}
