package driverutil

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
)

// Admission is what a store knows of whether its servers admit it: whether they take its password, token or
// certificate, and whether it trusts theirs. While these are replaced, the servers and the files of a client do not
// agree for a moment. So once a store has worked, a refusal counts as if the servers did not answer, and is
// [driver.ErrDenied] only when it has lasted for the [driver.UnreachableTimeout]. The zero value is ready. The
// methods may be called concurrently.
type Admission struct {
	// Clock is the clock of this machine. Default: [driver.SystemClock].
	Clock driver.Clock
	// Sources are where the secrets come from. An error says what is wrong with them.
	Sources []SecretSource

	settled atomic.Bool // worked and not refused; CredentialsAccepted need not take the mutex then

	mu           sync.Mutex
	worked       bool           // the servers have admitted the store
	refused      bool           // and have not admitted it since they refused it
	refusedSince driver.Instant // the first refusal
	refusedLast  driver.Instant // the last refusal
}

// CredentialsAccepted notes that the servers know the store. A store calls it after each answer that shows it, also
// after a refusal: that there is no such object, or that it has changed.
func (a *Admission) CredentialsAccepted() {
	if a.settled.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.worked, a.refused = true, false
	a.settled.Store(true)
}

// HasWorked reports whether the servers have ever admitted the store.
func (a *Admission) HasWorked() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.worked
}

// CredentialsRefused returns the error of a request whose credentials the servers do not know, or take for expired.
func (a *Admission) CredentialsRefused(err error) error {
	err = AddProblems(err, a.Sources)
	if a.mayPass() {
		return err
	}
	return fmt.Errorf("%w: %w", driver.ErrDenied, err)
}

// CertificateRefused returns the error of a connection on which one side does not trust the certificate of the other.
func (a *Admission) CertificateRefused(err error) error {
	err = AddProblems(err, a.Sources)
	if a.mayPass() {
		return err
	}
	return RefuseStore(err)
}

// mayPass notes a refusal, and reports whether the next one may be an admission.
func (a *Admission) mayPass() bool {
	limit := driver.UnreachableTimeout(driver.MaxTTL)
	a.mu.Lock()
	defer a.mu.Unlock()
	clock := a.Clock
	if clock.Monotonic == nil {
		clock = driver.SystemClock
	}
	now := clock.Now()
	a.settled.Store(false)
	if !a.refused || now.Since(a.refusedLast) > limit { // after a pause it may be another cause
		a.refused, a.refusedSince = true, now
	}
	a.refusedLast = now
	return a.worked && now.Since(a.refusedSince) <= limit
}

// SecretSource is a [Secret], or [TLSFiles].
type SecretSource interface {
	// Problem says why the source has no newer secret than before, or is nil.
	Problem() error
}

// AddProblems adds to an error what is wrong with the sources.
func AddProblems(err error, sources []SecretSource) error {
	for _, f := range sources {
		if p := f.Problem(); p != nil {
			err = fmt.Errorf("%w (%w)", err, p)
		}
	}
	return err
}
