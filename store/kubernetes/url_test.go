package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

// TestURL: the cluster and the credentials are found where kubectl finds them. Errors about them do not show secrets.
func TestURL(t *testing.T) {
	c, err := kubernetestest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// user writes a kubeconfig whose user has these credentials.
	user := func(name, credentials string) {
		write(name, fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: here, context: {cluster: c, user: u, namespace: default}}
- {name: elsewhere, context: {cluster: c, user: u, namespace: elsewhere}}
- {name: torn, context: {cluster: none, user: u}}
clusters: [{name: c, cluster: {server: "%s", certificate-authority: "%s"}}]
users: [{name: u, user: {%s}}]
`, c.Address(), c.CAFile(), credentials))
	}
	t.Setenv("HOME", dir)
	t.Setenv(kubeconfigs, "")
	t.Setenv(podHostEnv, "")
	use := func(what, url string) {
		t.Helper()
		s, err := driver.Open(t.Context(), url)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer s.Close()
		storetest.Release(t, s, storetest.Acquire(t, s, storetest.Mutex("m", time.Minute)).Claim)
	}
	fail := func(what, url string, is error, says string) {
		t.Helper()
		s, err := driver.Open(t.Context(), url)
		if err == nil {
			s.Close()
		}
		if is != nil && !errors.Is(err, is) || !driverutil.IsFinal(err) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	user("token", "token: all")
	user("unknown", "token: s3cret")
	user("file", "tokenFile: token.txt")
	user("plugin", `exec: {apiVersion: client.authentication.k8s.io/v1, command: ./give-token, env: [{name: SAYS, value: all}]}`)
	user("badplugin", `exec: {command: ./fails, installHint: install it}`)
	user("impersonates", "token: all, as: somebody")
	write("token.txt", "s3cret\n")
	write("give-token", "#!/bin/sh\n[ -n \"$KUBERNETES_EXEC_INFO\" ] || exit 1\n"+
		"echo '{\"kind\": \"ExecCredential\", \"status\": {\"token\": \"'$SAYS'\"}}'\n")
	write("fails", "#!/bin/sh\necho s3cret >&2\nexit 3\n")
	write("none", "s3cret: [")

	const scheme = "kubernetes://"
	fail("nothing is configured", scheme, nil, "set KUBECONFIG")
	use("a file that the URL names", scheme+"?kubeconfig="+path("token"))
	t.Setenv(kubeconfigs, path("missing")+":"+path("token"))
	use("files that KUBECONFIG names", scheme)
	use("a namespace of the URL", scheme+"default?context=elsewhere")
	fail("a context that does not exist", scheme+"?context=nowhere", driver.ErrInvalid, `no context "nowhere"`)
	fail("a context without its cluster", scheme+"?context=torn", driver.ErrInvalid, `no cluster "none"`)
	fail("a token that nobody knows", scheme+"?kubeconfig="+path("unknown"), driver.ErrDenied, "the credentials are not valid")
	fail("a file of something else", scheme+"?kubeconfig="+path("none"), driver.ErrInvalid, "is not a kubeconfig file")
	fail("a file that does not exist", scheme+"?kubeconfig="+path("missing"), driver.ErrInvalid, "no such file")
	fail("a user who impersonates another", scheme+"?kubeconfig="+path("impersonates"), driver.ErrUnsupported, "impersonates")
	fail("a program that fails", scheme+"?kubeconfig="+path("badplugin"), nil, "install it")
	use("a program that gives a token", scheme+"?kubeconfig="+path("plugin"))
	fail("an option that nobody knows", scheme+"?nope=s3cret", driver.ErrInvalid, "nope")
	fail("a host with a port", scheme+"default:6443", driver.ErrInvalid, "kubernetes://[namespace]")

	// A token that was replaced in its file is read again when the server refuses the old one.
	fail("a file with a token that nobody knows", scheme+"?kubeconfig="+path("file"), driver.ErrDenied, "not valid")
	write("token.txt", "all\n")
	s, err := driver.Open(t.Context(), scheme+"?kubeconfig="+path("file"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	g := storetest.Acquire(t, s, storetest.Mutex("m", time.Minute))
	write("token.txt", "may.get.create.update.delete\n")
	storetest.Release(t, s, g.Claim)

	t.Setenv(kubeconfigs, path("missing"))
	t.Setenv(podHostEnv, "10.0.0.1")
	fail("a pod without a service account", scheme, nil, "the pod has no service account")
}

// TestHangingPlugin: a program for credentials that hangs, with a child that keeps its output open, holds up no call
// for longer than the call's context.
func TestHangingPlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plugin := filepath.Join(dir, "plugin")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\nsleep 5 &\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := &authTransport{user: kubeUser{Exec: &kubeExec{Command: plugin}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := a.currentToken(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("a call whose context has ended: %v", err)
	}
	if _, _, err := a.currentToken(t.Context(), ""); !errors.Is(err, errConfig) {
		t.Errorf("a program that prints nothing: %v", err)
	}
}

// TestReplacedRecord: a claim in a record that another client has replaced was ended by that client, and a release of
// it whose reply was lost does not take its absence for its own success.
func TestReplacedRecord(t *testing.T) {
	t.Parallel()
	m := kubernetestest.StartModel()
	t.Cleanup(m.Stop)
	web, stop := m.Client(kubernetestest.AllowAll, nil, nil)
	t.Cleanup(stop)
	base, err := newTable(web, m.Address(), kubernetestest.Namespace, &Options{Layout: LayoutLeaderElection})
	if err != nil {
		t.Fatal(err)
	}
	table := newLeaderElectionTable(base)
	t.Cleanup(func() { table.Close() })
	s := record.New(table)
	g := storetest.Acquire(t, s, storetest.Mutex("a", time.Minute))
	l, err := table.load(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, later := "somebody", "2126-01-01T00:00:00.000000Z"
	for _, holder := range []*string{&other, nil} {
		taken := *l
		taken.Spec.Holder, taken.Spec.RenewTime = holder, &later
		row, err := table.readRow(&taken)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := record.Decode("a", row.Data)
		if err != nil || len(rec.Ended) != 1 || rec.Ended[0].ID != g.ID || rec.Ended[0].Cause != driver.LossGone {
			t.Errorf("%+v, %v", rec, err)
		}
	}
}
