package cli

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
)

// servedProgram is a running holdfast serve.
type servedProgram struct {
	*startedProgram
	url    string
	client *http.Client
}

// startServe starts a server on a port of its own, or where the flags say, and waits until it listens.
func (w *workspace) startServe(flags ...string) *servedProgram {
	w.Helper()
	args := append([]string{"serve", "--json"}, flags...)
	if !strings.Contains(strings.Join(flags, " "), "--listen") {
		args = append(args, "--listen", "127.0.0.1:0")
	}
	return w.newProgram(args...).launch().awaitServe()
}

// awaitServe waits until a server says where it listens.
func (r *startedProgram) awaitServe() *servedProgram {
	r.Helper()
	r.awaitOutput("\n")
	var record struct{ Listen string }
	if err := json.Unmarshal([]byte(r.readStdout()), &record); err != nil {
		r.Fatal(err)
	}
	s := &servedProgram{startedProgram: r, url: record.Listen, client: &http.Client{}}
	if path, ok := strings.CutPrefix(record.Listen, "unix:"); ok {
		s.url = "http://localhost"
		s.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
	}
	r.Cleanup(s.client.CloseIdleConnections)
	return s
}

// post sends a request with a JSON body.
func (s *servedProgram) post(ctx context.Context, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return s.client.Do(r)
}

// mustPost posts a request that must succeed.
func (s *servedProgram) mustPost(path, body string) {
	s.Helper()
	response, err := s.post(s.Context(), path, body)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		s.Fatal(response.Status)
	}
}

// servedHold is a lock that is held over HTTP.
type servedHold struct {
	s     *servedProgram
	lines *bufio.Scanner
	last  map[string]any
	close func()
}

// holdLock holds a lock over HTTP. close closes the connection.
func (s *servedProgram) holdLock(name, body string) (*servedHold, error) {
	ctx, cancel := context.WithCancel(context.Background())
	response, err := s.post(ctx, "/v1/locks/"+name+"/hold", body)
	if err != nil {
		cancel()
		return nil, err
	}
	h := &servedHold{s: s, lines: bufio.NewScanner(response.Body), close: func() { cancel(); response.Body.Close() }}
	if response.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(response.Body)
		h.close()
		return nil, fmt.Errorf("%d: %s", response.StatusCode, data)
	}
	if _, err := h.next("acquired"); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// next reads lines until one is this event. The error says that the stream has ended.
func (h *servedHold) next(event string) (map[string]any, error) {
	for h.lines.Scan() {
		h.last = nil
		if err := json.Unmarshal(h.lines.Bytes(), &h.last); err != nil {
			return nil, err
		}
		if h.last["event"] == event {
			return h.last, nil
		}
	}
	return nil, fmt.Errorf("the stream ended without %s; the last line was %v; %w", event, h.last, io.ErrUnexpectedEOF)
}

func (s *servedProgram) mustHold(name, body string) *servedHold {
	s.Helper()
	h, err := s.holdLock(name, body)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(h.close)
	return h
}

// TestServe: serve says where it listens; a lock is held for as long as its connection is open; SIGTERM releases the
// locks whose clients were told, and ends the program.
func TestServe(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s := w.startServe("--grace", "1m")
	checkRecord(t, strings.TrimSpace(s.readStdout()))
	a := s.mustHold("a", "")
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	a.close()
	w.runProgram("run", "--wait", "1m", "a", "true").check(t, 0)
	b := s.mustHold("b", "")
	s.signal(unix.SIGTERM)
	if line, err := b.next("lost"); err != nil || line["cause"] != "shutdown" {
		t.Errorf("%v %v", line, err)
	}
	w.runProgram("run", "-n", "b", "true").check(t, 75) // its client has not stopped yet
	b.close()
	s.wait().check(t, 0)
	w.runProgram("run", "-n", "b", "true").check(t, 0)
}

// TestServeLeavesARun: the exit code says that a run was still in progress when the grace period had passed, and nobody
// else gets its key until its TTL has passed.
func TestServeLeavesARun(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s := w.startServe("--grace", "0s")
	s.mustPost("/v1/ledgers/l/keys/k/begin", "")
	s.signal(unix.SIGTERM)
	if r := s.wait(); r.code != 69 || !strings.Contains(r.err, "something was still held or in progress") {
		t.Error(r.description)
	}
	w.runProgram("once", "--ledger", "l", "k", "true").check(t, 75)
}

// startChild starts a server as a program does that needs one for itself. end ends the standard input, as the system
// does when the program has died.
func (w *workspace) startChild(flags ...string) (s *servedProgram, end func()) {
	w.Helper()
	r := w.newProgram(append([]string{"serve", "--json", "--exit-with-stdin"}, flags...)...)
	in, err := r.cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	if _, err := io.WriteString(in, childToken+"\n"); err != nil {
		w.Fatal(err)
	}
	s = r.launch().awaitServe()
	s.client.Transport = bearer{s.client.Transport}
	return s, func() { _ = in.Close() }
}

const childToken = "a token that nobody can guess"

// bearer adds the token to each request.
type bearer struct{ http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+childToken)
	return b.RoundTripper.RoundTrip(r)
}

// TestServeForAParent: a server that a program has started for itself listens where nobody else can call, wants the
// token of its standard input, leaves signals to the program, and ends with the program, whose locks are free then,
// and whose runs have failed.
func TestServeForAParent(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s, end := w.startChild()
	var record struct{ Listen string }
	if err := json.Unmarshal([]byte(s.readStdout()), &record); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(strings.TrimPrefix(record.Listen, "unix:"))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info, err)
	}
	stranger := &http.Client{Transport: s.client.Transport.(bearer).RoundTripper}
	if response, err := stranger.Get(s.url + "/v1/locks"); err != nil || response.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: %v %v", response, err)
	}
	for _, n := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		s.signal(n)
	}
	s.mustHold("a", `{"ttl_ms": 86400000, "on_shutdown": "detach"}`)
	s.mustPost("/v1/ledgers/l/keys/k/begin", `{"ttl_ms": 86400000}`)
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	end()
	s.wait().check(t, 0)
	w.runProgram("run", "-n", "a", "true").check(t, 0)
	w.runProgram("once", "--ledger", "l", "k", "true").check(t, 0)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the socket is left: %v", err)
	}
}

// TestServeForAParentOnTCP: a server for a program can listen elsewhere, where its token is needed, too.
func TestServeForAParentOnTCP(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s, end := w.startChild("--listen", "127.0.0.1:0")
	s.client.Transport = bearer{http.DefaultTransport}
	s.mustPost("/v1/locks/a/try", `{"ttl_ms": 60000}`)
	end()
	s.wait().check(t, 0)
}

// TestServeForAParentWithoutToken: without a token nobody could call.
func TestServeForAParentWithoutToken(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for in, words := range map[string]string{"": "stdin has ended", "short\n": "16 characters"} {
		r := w.newProgram("serve", "--exit-with-stdin")
		r.cmd.Stdin = strings.NewReader(in)
		r.launch().wait().check(t, 64, words)
	}
}

// TestServeUsage: what cannot be served is refused with a reason.
func TestServeUsage(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.writeFile("tokens", "token:0123456789abcdef a see *\n")
	w.writeFile("wrong", "\ntoken:x a see *\n")
	w.writeFile("open", "token:0123456789abcdef a see *\n")
	if err := errors.Join(os.Chmod(w.filePath("open"), 0o644), unix.Mkfifo(w.filePath("fifo"), 0o600),
		os.Symlink("tokens", w.filePath("link"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags string
		words string
	}{
		{"--listen 0.0.0.0:0", "--tls-cert"},
		{"--listen [::]:0 --tokens tokens", "--tls-cert"},
		{"--listen example.org:0", "--tls-cert"},
		{"--listen x", "HOST:PORT"},
		{"--listen unix:", "unix:"},
		{"--tls-cert x", "belong together"},
		{"--client-ca x", "--tls-cert"},
		{"--tokens missing", "missing"},
		{"--tokens wrong", "line 2"},
		{"--tokens open", "chmod"},
		{"--exit-with-stdin --tokens tokens", "leave --tokens"},
		{"--max-streams 0", "--max-streams"},
		{"--rate -1", "--rate"},
		{"--grace 2m", "--grace"},
		{"--audit-log /nowhere/log", "--audit-log"},
		{"--audit-log fifo", "nobody reads"},
		{"--audit-log link", "symbolic link"},
		{"--tls-cert tokens --tls-key tokens", "--tls-cert"},
	} {
		w.runProgram(append([]string{"serve"}, strings.Fields(c.flags)...)...).check(t, 64, c.words)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.runProgram("serve", "--listen", l.Addr().String()).check(t, 69, "cannot listen")
}

// TestServeUnixSocket: a unix socket is for its owner and group; that of a server that died is replaced, and that of
// one that lives is left as it is.
func TestServeUnixSocket(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	path := w.filePath("s")
	listen := "unix:" + path
	first := w.startServe("--listen", listen)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 || info.Mode()&os.ModeSocket == 0 {
		t.Errorf("%v %v", info, err)
	}
	first.mustHold("a", "")
	w.runProgram("serve", "--listen", listen).check(t, 69, "another server")
	first.signal(unix.SIGKILL)
	<-first.ended
	second := w.startServe("--listen", listen)
	second.mustHold("a", "")
	second.signal(unix.SIGTERM)
	second.waitFor(2*testTimeout).check(t, 0)
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left")
	}
	w.writeFile("file", "text")
	w.runProgram("serve", "--listen", "unix:"+w.filePath("file")).check(t, 69, "is no socket")
	other, err := net.Listen("unix", w.filePath("other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	w.runProgram("serve", "--listen", "unix:"+w.filePath("other")).check(t, 69, "another program")
}

// TestServeKilled: the clients of a server that was killed see the end of their connections. They were told that their
// locks, leaderships and runs are valid for a while, so nobody else gets one before, also on a file store.
func TestServeKilled(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s := w.startServe()
	h := s.mustHold("a", `{"ttl_ms": 86400000}`)
	short := s.mustHold("b", `{"ttl_ms": 1000}`)
	s.mustPost("/v1/ledgers/l/keys/k/begin", `{"ttl_ms": 86400000}`)
	s.signal(unix.SIGKILL)
	for _, h := range []*servedHold{h, short} {
		if line, err := h.next("lost"); err == nil {
			t.Errorf("a killed server has said %v", line)
		}
	}
	w.runProgram("run", "-n", "a", "true").check(t, 75)
	w.runProgram("once", "--ledger", "l", "k", "true").check(t, 75)
	w.runProgram("run", "--wait", "1m", "b", "true").check(t, 0)
}

// TestServeStopped: while a server is stopped for longer than the TTL, somebody else gets the lock; afterwards the
// client is told that it is lost, and so is who asks.
func TestServeStopped(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s := w.startServe()
	h := s.mustHold("a", `{"ttl_ms": 1000}`)
	hold, token := h.last["hold"], h.last["token"].(float64)
	s.signal(unix.SIGSTOP)
	r := w.runProgram("hold", "--json", "--ttl", "5m", "--max-hold", "2s", "a")
	var record struct{ Token float64 }
	if err := json.Unmarshal([]byte(r.out), &record); err != nil || record.Token <= token {
		t.Errorf("%v: %s", err, r.description)
	}
	s.signal(unix.SIGCONT)
	if _, err := h.next("lost"); err != nil {
		t.Error(err)
	}
	response, err := s.post(context.Background(), fmt.Sprintf("/v1/holds/%s/check", hold), "")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusGone {
		t.Errorf("%d", response.StatusCode)
	}
}

// TestServeCounter: processes that count under one lock, through two servers and directly, count exactly, also while a
// server is killed, and each gets its turns.
func TestServeCounter(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	w.store = "redis://" + startRedis(t).Addr
	servers := []*servedProgram{w.startServe(), w.startServe(), w.startServe("--listen", "unix:"+w.filePath("s"))}
	client, err := holdfast.Open(context.Background(), w.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	counter := w.filePath("counter")
	w.writeFile("counter", "0")
	count := func() error {
		var n int
		if _, err := fmt.Sscan(w.readFile(counter), &n); err != nil {
			return err
		}
		return os.WriteFile(counter, fmt.Append(nil, n+1), 0o600)
	}
	const turns = 20
	var all sync.WaitGroup
	for _, s := range servers[:2] {
		for range 2 {
			all.Go(func() {
				for range turns {
					h, err := s.holdLock("counter", `{"ttl_ms": 10000, "fair": true}`)
					if err == nil {
						err = count()
						h.close()
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	for range 2 {
		all.Go(func() {
			for range turns {
				lease, err := client.Mutex("counter", &holdfast.LockOptions{Fair: true}).Lock(context.Background())
				if err == nil {
					err = count()
					_ = lease.Release()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	// The third server is killed while it holds the lock; its holder has counted nothing. The TTL also bounds for how
	// long a busy machine may keep the server from renewing the claim while it waits.
	if _, err := servers[2].holdLock("counter", `{"ttl_ms": 5000, "fair": true}`); err != nil {
		t.Error(err)
	}
	servers[2].signal(unix.SIGKILL)
	all.Wait()
	if text := w.readFile(counter); text != fmt.Sprint(6*turns) {
		t.Errorf("counted %s instead of %d", text, 6*turns)
	}
}

// TestServeWithoutStore: while the store cannot be reached, the server says so, and does not hold what it cannot renew.
func TestServeWithoutStore(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	redis := startRedis(t)
	w.store = "redis://" + redis.Addr
	s := w.startServe()
	h := s.mustHold("a", `{"ttl_ms": 2000}`)
	ready := func() int {
		response, err := s.client.Get(s.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if code := ready(); code != http.StatusOK {
		t.Errorf("%d", code)
	}
	redis.Stop()
	// If this machine is busy, the lock may expire before the first renewal has failed.
	if line, err := h.next("lost"); err != nil || line["cause"] != "unreachable" && line["cause"] != "expired" {
		t.Errorf("%v %v", line, err)
	}
	w.awaitTrue("not ready", func() bool { return ready() == http.StatusServiceUnavailable })
}

// TestServeSystemd: a socket that systemd has opened is used, and systemd is told when the server is ready and when it
// stops.
func TestServeSystemd(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	notices, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: w.filePath("notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notices.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	start := func(args ...string) *startedProgram {
		r := w.newProgram(args...)
		r.cmd = exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, program}, args...)...)
		r.cmd.Dir, r.cmd.SysProcAttr = w.dir, &unix.SysProcAttr{Setsid: true}
		r.cmd.Env = w.testEnvironment("LISTEN_FDS=1", "NOTIFY_SOCKET="+w.filePath("notify"))
		r.cmd.ExtraFiles = []*os.File{file}
		return r.launch()
	}
	if r := start("serve", "--listen", "127.0.0.1:0").wait(); r.code != 64 || !strings.Contains(r.err, "leave --listen") {
		t.Error(r.description)
	}
	s := start("serve", "--json").awaitServe()
	if s.url != "http://"+l.Addr().String() {
		t.Errorf("it listens on %s, not on %s", s.url, l.Addr())
	}
	notice := func() string {
		buffer := make([]byte, 1000)
		_ = notices.SetReadDeadline(time.Now().Add(testTimeout))
		n, err := notices.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		return string(buffer[:n])
	}
	if text := notice(); text != "READY=1" {
		t.Error(text)
	}
	s.mustHold("a", "").close()
	s.signal(unix.SIGTERM)
	if text := notice(); text != "STOPPING=1" {
		t.Error(text)
	}
	s.wait()
}

// testAuthority signs certificates.
type testAuthority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	serial      int64
}

func newAuthority(t *testing.T) *testAuthority {
	t.Helper()
	a := &testAuthority{}
	key, data := a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	certificate, err := x509.ParseCertificate(data)
	if err != nil {
		t.Fatal(err)
	}
	a.key, a.certificate = key, certificate
	return a
}

// sign makes a certificate: of the authority itself, if it has none yet.
func (a *testAuthority) sign(t *testing.T, c *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.serial++
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(a.serial), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = c, key
	}
	data, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return key, data
}

// writePair signs a certificate and writes it and its key.
func (a *testAuthority) writePair(w *workspace, name string, c *x509.Certificate) tls.Certificate {
	w.Helper()
	key, data := a.sign(w.T, c)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		w.Fatal(err)
	}
	w.writeFile(name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: data})))
	w.writeFile(name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	return tls.Certificate{Certificate: [][]byte{data}, PrivateKey: key}
}

// TestServeTLS: beyond the machine, a caller needs a client certificate or a token, and has the rights of its line; on
// SIGHUP the files are read again, and the names of a new certificate are allowed.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	authority := newAuthority(t)
	w.writeFile("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.certificate.Raw})))
	authority.writePair(w, "server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames: []string{"locks.example.org"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	ops := authority.writePair(w, "ops", &x509.Certificate{Subject: pkix.Name{CommonName: "ops"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	w.writeFile("tokens", "cert:ops operators see,hold *\ntoken:0123456789abcdef app hold a\n")
	s := w.startServe("--listen", "0.0.0.0:0", "--tls-cert", "server.pem", "--tls-key", "server.key",
		"--client-ca", "ca.pem", "--tokens", "tokens")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	s.url = "https://127.0.0.1:" + port
	roots := x509.NewCertPool()
	roots.AddCert(authority.certificate)
	host := ""
	show := func(token string, certificates ...tls.Certificate) int {
		t.Helper()
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}}
		defer transport.CloseIdleConnections()
		r, err := http.NewRequest(http.MethodGet, s.url+"/v1/locks/b", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if code := show(""); code != http.StatusUnauthorized {
		t.Errorf("without anything: %d", code)
	}
	if code := show("", ops); code != http.StatusOK {
		t.Errorf("with a certificate: %d", code)
	}
	if code := show("0123456789abcdef"); code != http.StatusForbidden {
		t.Errorf("with a token that may hold a alone: %d", code)
	}
	w.writeFile("tokens", "token:0123456789abcdef app see *\n")
	s.signal(unix.SIGHUP)
	w.awaitTrue("the new rights", func() bool { return show("0123456789abcdef") == http.StatusOK })
	if code := show("", ops); code != http.StatusUnauthorized {
		t.Errorf("with a certificate that has no rights any more: %d", code)
	}
	host = "renewed.example.org"
	if code := show("0123456789abcdef"); code != http.StatusForbidden {
		t.Errorf("with a name that the certificate does not have: %d", code)
	}
	authority.writePair(w, "server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames: []string{"Renewed.example.org"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	s.signal(unix.SIGHUP)
	w.awaitTrue("the new name", func() bool { return show("0123456789abcdef") == http.StatusOK })
	w.writeFile("tokens", "wrong\n")
	s.signal(unix.SIGHUP)
	w.awaitTrue("a message", func() bool { return strings.Contains(s.readStderr(), "line 1") })
	if code := show("0123456789abcdef"); code != http.StatusOK {
		t.Errorf("after a wrong file: %d", code)
	}
}

// TestServeAuditLog: each break has two lines in the audit log, as docs/json-schema.json has them, also after the log
// was rotated. SIGHUP lets go of the old file.
func TestServeAuditLog(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s := w.startServe("--allow-break", "--audit-log", "audit")
	h := s.mustHold("a", "")
	response, err := s.post(context.Background(), "/v1/locks/a/break", `{"force": true, "reason": "INC-1"}`)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if _, err := h.next("lost"); err != nil {
		t.Error(err)
	}
	check := func() {
		t.Helper()
		n := 0
		for line := range wholeLines(w.readFile(w.filePath("audit"))) {
			if checkRecord(t, line) != recordAudit {
				t.Errorf("%s", line)
			}
			n++
		}
		if info, err := os.Stat(filepath.Join(w.dir, "audit")); n != 2 || err != nil || info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%d lines; %v %v", n, info, err)
		}
	}
	check()
	if err := os.Remove(w.filePath("audit")); err != nil {
		t.Fatal(err)
	}
	s.signal(unix.SIGHUP)
	w.awaitTrue("a new audit log", func() bool { _, err := os.Stat(w.filePath("audit")); return err == nil })
	h = s.mustHold("a", "")
	if response, err = s.post(context.Background(), "/v1/locks/a/break", `{"force": true}`); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if _, err := h.next("lost"); err != nil {
		t.Error(err)
	}
	check()
}

// TestServeOutputClosed: an error output that nobody reads any more does not end the server, and with it all locks.
// What cannot be written to it first, as the audit log, is not done.
func TestServeOutputClosed(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	defer write.Close()
	s := w.newProgram("serve", "--json", "--listen", "127.0.0.1:0", "--allow-break", "--audit-log", "fd:2").
		launch(write).awaitServe()
	s.mustHold("a", "")
	response, err := s.post(context.Background(), "/v1/locks/a/break", `{"force": true}`)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Error(response.Status)
	}
	s.mustPost("/v1/locks/b/try", `{"ttl_ms": 3000}`)
}
