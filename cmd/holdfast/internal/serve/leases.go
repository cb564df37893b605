package serve

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// held is a lease, or a group of them.
type held interface {
	Context() context.Context
	Err() error
	Remaining() time.Duration
	Release() error
}

// leases are what a request was granted: the lease of its lock, and those of the locks in also. They are valid, lost
// and released together.
type leases struct {
	held
	client *holdfast.Client
	all    []*holdfast.Lease // the lock of the path comes first
	left   lockHandle        // what was detached although not all could be
}

// acquireLeases acquires the locks of a request, all or none.
func acquireLeases(ctx context.Context, client *holdfast.Client, r *acquire.Request) (*leases, error) {
	if len(r.Also) == 0 {
		lease, err := r.Acquire(ctx, client)
		if err != nil {
			return nil, err
		}
		return &leases{held: lease, client: client, all: []*holdfast.Lease{lease}}, nil
	}
	group, err := r.AcquireAll(ctx, client)
	if err != nil {
		return nil, err
	}
	all := group.Leases()
	slices.SortStableFunc(all, func(a, b *holdfast.Lease) int {
		switch r.Name {
		case a.Name():
			return -1
		case b.Name():
			return 1
		}
		return 0
	})
	return &leases{held: group, client: client, all: all}, nil
}

// first is the lease of the lock in the path.
func (l *leases) first() *holdfast.Lease { return l.all[0] }

// viewAlso is what a client learns of the locks besides the first.
func (l *leases) viewAlso() (also []alsoView) {
	for _, lease := range l.all[1:] {
		also = append(also, alsoView{Lock: lease.Name(), Token: lease.Token(), Ref: shown.HiddenRef(lease.Ref())})
	}
	return also
}

// detach leaves all locks to one handle. If one of them is lost, those that were detached before it stay held until
// Release, as the others do: the client may be working.
func (l *leases) detach() (h lockHandle, err error) {
	var errs []error
	for i, lease := range l.all {
		one, err := lease.Detach()
		errs = append(errs, err)
		switch {
		case i == 0:
			h.Handle = one
			h.permits, _ = lease.Permits()
		case one.ID != "":
			h.also = append(h.also, one)
		}
	}
	if err = errors.Join(errs...); err != nil {
		l.left = h
	}
	return h, err
}

// Release releases all locks.
func (l *leases) Release() error {
	err := l.held.Release()
	releaseHandles(l.client, l.left)
	return err
}

// releaseUntold releases locks of which their client does not know, at once: nobody has used them, so their MinHold is
// not kept, for which a lease that is released would stay held.
func (l *leases) releaseUntold() {
	handle, err := l.detach()
	if err != nil {
		_ = l.Release()
		return
	}
	releaseHandles(l.client, handle)
}

// releaseHandles releases the locks of a handle that no client has got.
func releaseHandles(client *holdfast.Client, h lockHandle) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	for _, one := range h.all() {
		if one.ID != "" {
			_ = client.Release(ctx, one)
		}
	}
}
