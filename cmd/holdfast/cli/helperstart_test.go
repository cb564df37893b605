package cli

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// TestHelpersStartBeforeStores: a helper process works before the packages of the stores, and what they need of the
// network, are initialized. It does not depend on speed: the runtime says which packages were initialized.
func TestHelpersStartBeforeStores(t *testing.T) {
	t.Parallel()
	initialized := regexp.MustCompile(`(?m)^init (\S+) @`)
	heavy := regexp.MustCompile(`^(net/http|crypto/tls|github\.com/holdfast-go/holdfast/store/.*|github\.com/spf13/.*)$`)
	trace := func(name string, args ...string) []string {
		var stderr bytes.Buffer
		c := exec.Command(program)
		c.Args, c.Env, c.Stderr = append([]string{name}, args...), []string{"GODEBUG=inittrace=1"}, &stderr
		_ = c.Run() // the guard ends with an error, because it has no wrapper
		var packages []string
		for _, found := range initialized.FindAllStringSubmatch(stderr.String(), -1) {
			packages = append(packages, found[1])
		}
		if len(packages) < 5 {
			t.Fatalf("%s: no trace of packages: %s", name, stderr.String())
		}
		return packages
	}
	all := trace("holdfast", "version")
	if !strings.Contains(strings.Join(all, "\n"), "holdfast/store/file") {
		t.Errorf("the trace of the program has no store, so this test sees nothing: %s", all)
	}
	for _, name := range []string{guard.Name, guard.ListenerName} {
		for _, path := range trace(name) {
			if heavy.MatchString(path) {
				t.Errorf("%s has initialized %s", name, path)
			}
		}
	}
}

// TestHelperNames: a signal to all processes that have this program's name, as pkill sends it, reaches no helper. The
// names are no longer than the system shows.
func TestHelperNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{guard.Name, guard.ListenerName} {
		if strings.Contains(name, "holdfast") || len(name) > 15 {
			t.Errorf("a helper is called %q", name)
		}
	}
}

// TestExpiredText: the guard, which does not know the library, describes an expired lease as the library does.
func TestExpiredText(t *testing.T) {
	t.Parallel()
	if want := holdfast.LossExpired.Description(); guard.ExpiredText != want {
		t.Errorf("%q instead of %q", guard.ExpiredText, want)
	}
}
