//go:build unix

package storetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Rotation is a store whose password and certificates are replaced while it is in use.
type Rotation struct {
	Files *SecretFiles
	// URL is the store's URL with the files of a directory.
	URL func(dir string) string
	// Accept makes the server take the new password: besides the old one, or instead of it if OnePassword is set.
	Accept      func()
	OnePassword bool
	// Refuse takes the old password away. It may be nil.
	Refuse func()
	// Reload makes the server read its certificates again. It is nil if the store has none.
	Reload func()
}

// rotationTTL is the TTL of the leases. What a rotation interrupts must be shorter, also on a busy machine.
const rotationTTL = 20 * time.Second

// rotationLoad is a load of holders and waiters.
type rotationLoad struct {
	t        *testing.T
	link     servertest.Net
	ctx      context.Context // to open stores, whose connections go through the link
	leases   []*holdfast.Lease
	attempts atomic.Int32 // to acquire a lock
	waiters  sync.WaitGroup
}

// Rotate replaces the password and the certificates of both sides while leases are renewed and waiters queue. After
// each step it cuts all connections. No lease is lost, also while a file is half written, and no waiter gives up,
// also while the server takes another password than that of the file. At the end the server refuses the old secrets.
func Rotate(t *testing.T, r Rotation) {
	l := &rotationLoad{t: t}
	defer l.link.Close()
	l.ctx = driverutil.WithDialer(t.Context(), func(_ context.Context, _, address string) (net.Conn, error) {
		return l.link.Dial(address)
	})
	clients := make([]*holdfast.Client, 3)
	for i := range clients {
		clients[i] = l.open(r.URL(r.Files.Client))
		defer clients[i].Close()
	}
	l.begin(clients)

	step := func(what string, do ...func()) {
		for _, f := range do {
			if f != nil {
				f()
			}
		}
		l.link.Each((*servertest.Link).Reset)
		for i, client := range clients {
			l.useLock(what, client, fmt.Sprint("free-", i))
		}
	}
	step("files that are half written", r.Files.tear)
	refused := func(what string) func() {
		return func() {
			l.link.Each((*servertest.Link).Reset)
			l.expectRefusal(what, clients[2])
		}
	}
	step("two authorities", r.Files.trustBoth, r.Reload)
	if r.OnePassword {
		step("the old password after the new one", r.Accept,
			refused("the server takes another password"), r.Files.writePassword)
	} else {
		step("a second password", r.Accept, r.Files.writePassword)
	}
	if r.Reload != nil {
		step("new certificates", r.Files.forgetNew, r.Files.useNew, r.Reload,
			refused("the server's certificate is of another authority"), r.Files.trustBothAgain)
	}
	step("only new secrets", r.Files.trustNew, r.Reload, r.Refuse)
	l.awaitRenewals()
	l.end()
	r.expectOldRefused(t)
}

func (l *rotationLoad) open(url string) *holdfast.Client {
	l.t.Helper()
	client, err := holdfast.Open(l.ctx, url, &holdfast.Options{TTL: rotationTTL, OnEvent: func(e holdfast.Event) {
		if e.Kind == holdfast.EventAttempt {
			l.attempts.Add(1)
		}
	}})
	if err != nil {
		l.t.Fatal(err)
	}
	return client
}

// begin takes locks with two clients, and has waiters of both queue for one of them. The third has nothing under way.
func (l *rotationLoad) begin(clients []*holdfast.Client) {
	l.t.Helper()
	l.useLock("at the start", clients[2], "free")
	before := l.attempts.Load()
	for i := range 6 {
		lease, err := clients[i%2].Mutex(fmt.Sprint("held-", i), nil).Lock(l.t.Context())
		if err != nil {
			l.t.Fatal(err)
		}
		l.leases = append(l.leases, lease)
	}
	for i := range 4 {
		l.waiters.Go(func() {
			lease, err := clients[i%2].Mutex("held-0", nil).Lock(l.t.Context())
			if err == nil {
				err = lease.Release()
			}
			if err != nil {
				l.t.Errorf("waiter %d: %v", i, err)
			}
		})
	}
	Eventually(l.t, "all ask for their locks", func() bool { return l.attempts.Load() == before+10 })
}

// useLock takes a lock and releases it. No lease may have been lost, and no error may be one that lasts.
func (l *rotationLoad) useLock(what string, client *holdfast.Client, name string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	lease, err := client.Mutex(name, nil).Lock(ctx)
	for err != nil && !driverutil.IsFinal(err) && ctx.Err() == nil { // the machine is busy
		lease, err = client.Mutex(name, nil).Lock(ctx)
	}
	if err == nil {
		err = lease.Release()
	}
	if err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
	for i, lease := range l.leases {
		if err := lease.Err(); err != nil {
			l.t.Fatalf("%s: lease %d: %v", what, i, err)
		}
	}
}

// awaitRenewals waits until each lease was renewed since the call.
func (l *rotationLoad) awaitRenewals() {
	l.t.Helper()
	end := func(lease *holdfast.Lease) time.Time { return time.Now().Add(lease.Remaining()) }
	before := make([]time.Time, len(l.leases))
	for i, lease := range l.leases {
		before[i] = end(lease)
	}
	const slack = 50 * time.Millisecond // of reading the two clocks
	for i, lease := range l.leases {
		for limit := time.Now().Add(time.Minute); !end(lease).After(before[i].Add(slack)); time.Sleep(5 * time.Millisecond) {
			if lease.Remaining() == 0 || time.Now().After(limit) {
				l.t.Fatalf("lease %d is not renewed: %v", i, lease.Err())
			}
		}
	}
}

// expectRefusal checks that a lock cannot be taken now, and that the client does not take this for the last word.
func (l *rotationLoad) expectRefusal(what string, client *holdfast.Client) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := client.Mutex("free", nil).TryLock(ctx); err == nil || errors.Is(err, holdfast.ErrDenied) {
		l.t.Errorf("%s: %v", what, err)
	}
}

// end releases all leases, and waits for the waiters.
func (l *rotationLoad) end() {
	l.t.Helper()
	for i, lease := range l.leases {
		if err := lease.Release(); err != nil {
			l.t.Errorf("lease %d: %v", i, err)
		}
	}
	l.waiters.Wait()
}

// expectOldRefused checks that a client with an old password, or with old certificates, can see no lock.
func (r *Rotation) expectOldRefused(t *testing.T) {
	var tries sync.WaitGroup
	defer tries.Wait()
	expect := func(what, dir string, wantDenied bool) {
		url := r.URL(dir)
		tries.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if !wantDenied { // it may be tried again
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				defer cancel()
			}
			client, err := holdfast.Open(ctx, url, nil)
			if err == nil {
				defer client.Close()
				_, err = client.Inspect(ctx, "free")
			}
			if err == nil || wantDenied && !errors.Is(err, holdfast.ErrDenied) {
				t.Errorf("%s after the rotation: %v", what, err)
			}
		})
	}
	f := r.Files
	if r.Accept != nil {
		f.write(f.Old, fileCA, f.new.ca)
		f.write(f.Old, fileCert, f.new.client)
		f.write(f.Old, fileKey, f.new.clientKey)
		expect("the old password", f.Old, true)
	}
	if r.Reload != nil {
		tries.Wait()
		f.write(f.Old, filePassword, []byte(f.NewPassword))
		f.write(f.Old, fileCert, f.old.client)
		f.write(f.Old, fileKey, f.old.clientKey)
		expect("the old certificate of the client", f.Old, false)
	}
}
