package driverutil_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// TestCredentialsRefused: credentials that were never accepted are denied at once, and those that were only when they
// were refused for as long as a store may be unreachable. A refusal after a pause begins again.
func TestCredentialsRefused(t *testing.T) {
	t.Parallel()
	var passed time.Duration
	now := func() time.Duration { return passed }
	c := driverutil.Admission{Clock: driver.Clock{Monotonic: now, Boottime: now}}
	limit := driver.UnreachableTimeout(driver.MaxTTL)
	refusal := errors.New("expired")
	expect := func(what string, denied bool) {
		t.Helper()
		if err := c.CredentialsRefused(refusal); errors.Is(err, driver.ErrDenied) != denied || !errors.Is(err, refusal) {
			t.Errorf("%s: %v", what, err)
		}
	}
	expect("never accepted", true)
	c.CredentialsAccepted()
	expect("the first refusal", false)
	passed += limit
	expect("refused for the limit", false)
	passed += time.Millisecond
	expect("refused for longer", true)
	passed += limit + time.Millisecond
	expect("after a pause", false)
	passed += limit
	c.CredentialsAccepted()
	passed += limit / 2
	expect("accepted in between", false)
}

// TestRefusalNamesFile: a refusal says what is wrong with the files of the secrets. One of a certificate matches
// ErrDenied only if the store has never worked.
func TestRefusalNamesFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := new(driverutil.Secret)
	if err := secret.ReadFrom(path); err != nil {
		t.Fatal(err)
	}
	a := driverutil.Admission{Sources: secret.Sources()}
	refusal := errors.New("not known")
	for _, worked := range []bool{false, true} {
		if worked {
			a.CredentialsAccepted()
		}
		for _, torn := range []bool{false, true} {
			text := "one"
			if torn {
				text = ""
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			secret.Current()
			for what, err := range map[string]error{"credentials": a.CredentialsRefused(refusal),
				"certificate": a.CertificateRefused(refusal)} {
				if !errors.Is(err, refusal) || errors.Is(err, driver.ErrDenied) == worked ||
					strings.Contains(err.Error(), path) != torn {
					t.Errorf("%s, worked %t, torn %t: %v", what, worked, torn, err)
				}
			}
		}
	}
}
