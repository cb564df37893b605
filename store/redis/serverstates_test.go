package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// expectError checks that an error is of a kind, has these words, and contains no secret.
func expectError(t *testing.T, what string, err, kind error, words ...string) {
	t.Helper()
	if err == nil || kind != nil && !errors.Is(err, kind) {
		t.Errorf("%s: %v, want %v", what, err, kind)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v, want the words %q", what, err, w)
		}
	}
	if strings.Contains(err.Error(), "hunter") {
		t.Errorf("%s: the error contains a secret: %v", what, err)
	}
	t.Logf("%s: %v", what, err)
}

// tryLock makes a claim, and gives up after a short time.
func tryLock(t *testing.T, s driver.Store, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, mutex(name, 5*time.Second))
	return err
}

// TestDiskFails: a server that cannot save accepts no writes, and the error says so. A holder that is not renewed
// trusts its lease until its validity ends, and no longer. It keeps the lease if the disk works again before.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute // long enough for the disk to work again
	server := startServer(t, "--enable-protected-configs", "local")
	failing := make(chan bool, 1)
	holder := openClientWith(t, "redis://"+server.Addr, &holdfast.Options{OnEvent: func(e holdfast.Event) {
		if e.Kind == holdfast.EventRenewalFailing && e.Lock == "long" {
			select {
			case failing <- true:
			default:
			}
		}
	}})
	s := openForTest(t, "redis://"+server.Addr)
	short, long := lockEventually(t, holder, "short", time.Second), lockEventually(t, holder, "long", ttl)
	sendCommand(t, server, "CONFIG", "SET", "save", "3600 1000000")
	dir := filepath.Join(server.Dir, "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sendCommand(t, server, "CONFIG", "SET", "dir", dir)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	saved := func(status string) {
		t.Helper()
		if err := redistest.Until(t.Context(), func() bool {
			_, _ = server.Do("BGSAVE")
			info, err := server.Do("INFO", "persistence")
			return err == nil && strings.Contains(info, "rdb_last_bgsave_status:"+status)
		}); err != nil {
			t.Fatal(err)
		}
	}
	saved("err")
	expectError(t, "MISCONF", tryLock(t, s, "m"), nil, "cannot save to its disk", "MISCONF")
	if err := tryLock(t, s, "m"); driverutil.IsFinal(err) {
		t.Errorf("the error of a disk that may work again is final: %v", err)
	}
	expectLoss(t, short, time.Second, driver.LossExpired, driver.LossUnreachable)
	select {
	case <-failing:
	case <-long.Context().Done():
	}
	sendCommand(t, server, "CONFIG", "SET", "dir", server.Dir)
	saved("ok")
	waitForRenewal(t, long)
	if err := long.Release(); err != nil {
		t.Error(err)
	}
}

// TestServerOutOfMemory: on a server without free memory all locks that are held are renewed, detached, broken and
// released, even if the release has to write a tombstone.
func TestServerOutOfMemory(t *testing.T) {
	t.Parallel()
	for _, layout := range []Layout{LayoutPlain, LayoutRedisson} {
		server := startServer(t)
		s := openForTest(t, "redis://"+server.Addr+"?layout="+string(layout)).(*store)
		claims := []driver.Claim{mutex("m", time.Minute)}
		if layout == LayoutPlain {
			fair, one, two := mutex("f", time.Minute), mutex("s", time.Minute), mutex("s", time.Minute)
			fair.Fair = true
			one.Kind, one.Limit, two.Kind, two.Limit = driver.KindSemaphore, 5, driver.KindSemaphore, 5
			claims = append(claims, fair, one, two)
		}
		var gs []driver.Grant
		for _, c := range append(claims, mutex("barred", time.Minute), mutex("marked", time.Minute),
			mutex("forced", time.Minute)) {
			gs = append(gs, acquire(t, s, c))
		}
		sendCommand(t, server, "CONFIG", "SET", "maxmemory", "1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i, g := range gs {
			if r := renew(t, s, g); r.Err != nil {
				t.Errorf("%s: renewing %s: %v", layout, g.Name, r.Err)
			}
			var err error
			switch g.Name {
			case "marked":
				err = s.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakGraceful, Reason: strings.Repeat("x", driver.MaxReason)})
			case "forced":
				err = s.Break(ctx, g.Name, g.Ref, driver.Break{Mode: driver.BreakForce, Reason: strings.Repeat("x", driver.MaxReason)})
			case "barred":
				s.addInFlight(g.ID)
				err = s.Release(ctx, g.Claim, "")
			default:
				if i%2 == 0 {
					if err := s.Detach(ctx, g, 30*time.Second); err != nil {
						t.Errorf("%s: detaching %s: %v", layout, g.Name, err)
					}
				}
				err = s.Release(ctx, g.Claim, "")
			}
			if err != nil {
				t.Errorf("%s: %s: %v", layout, g.Name, err)
			}
		}
	}
}

// TestOpenInTime: opening a store takes no longer than its context allows, however many servers accept the connection
// and send nothing.
func TestOpenInTime(t *testing.T) {
	t.Parallel()
	var at [3]string
	for i := range at {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		at[i] = silent.Addr().String()
	}
	all := at[0] + "?addrs=" + at[1] + "," + at[2]
	for _, raw := range []string{"redis://" + at[0], "rediss://" + at[0], "redis+sentinel://" +
		strings.Replace(all, "?", "/m1?", 1),
		"redis+cluster://" + at[0], "redlock://" + all} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		start := time.Now()
		_, err := openStore(ctx, raw)
		cancel()
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > linkTimeout*2/3 {
			t.Errorf("%s: after %v: %v", raw, took, err)
		}
	}
}

// TestServerIsLoading: calls wait for a server that is still loading its data.
func TestServerIsLoading(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--save", "", "--key-load-delay", "20000", "--loading-process-events-interval-bytes",
		"1024")
	s := openForTest(t, "redis://"+server.Addr)
	g := acquire(t, s, mutex("held", time.Hour))
	sendCommand(t, server, "EVAL", "for i = 1, 1500 do redis.call('SET', 'filler' .. i, string.rep('x', 100)) end", "0")
	sendCommand(t, server, "SAVE")
	server.Kill()
	again := make(chan error, 1)
	go func() { again <- server.Restart() }()
	var loading error
	if err := redistest.Until(t.Context(), func() bool {
		_, err := server.Do("GET", "x")
		return err != nil && strings.Contains(err.Error(), "LOADING")
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s.Renew(ctx, []driver.Grant{g}, func(_ int, r driver.Renewal) { loading = r.Err })
	if loading == nil || loss(loading) != "" || driverutil.IsFinal(loading) {
		t.Errorf("a renewal while it loads: %v", loading)
	}
	t.Logf("a renewal while it loads: %v", loading)
	late, err := openStore(ctx, "redis://"+server.Addr)
	if err != nil {
		t.Fatalf("opening while it loads: %v", err)
	}
	defer late.Close()
	// The rest is loaded at once.
	time.AfterFunc(300*time.Millisecond, func() { _, _ = server.Do("CONFIG", "SET", "key-load-delay", "0") })
	acquire(t, late, mutex("late", 30*time.Second))
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	if r := renew(t, s, g); r.Err != nil {
		t.Errorf("renewing a lock that was on the disk: %v", r.Err)
	}
}

// TestServerTooOld: the error says if a server lacks a command, and there is a warning for an old version. The servers
// are real ones: from some a command was removed, and of one the reply to INFO is changed on the way.
func TestServerTooOld(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"EVALSHA", "EVAL"} { // hosted servers disable them
		server := startServer(t, "--rename-command", command, "")
		err := tryLock(t, openForTest(t, "redis://"+server.Addr), "m")
		expectError(t, "a server without "+command, err, driver.ErrUnsupported, "renamed or disabled", "'"+command+"'")
		if err != nil && strings.Contains(err.Error(), "too old") { // every version has it
			t.Errorf("a server without %s: %v", command, err)
		}
	}
	server := startServer(t, "--rename-command", "HELLO", "")
	sendCommand(t, server, "CONFIG", "SET", "requirepass", "hunter2")
	if s, err := openStore(t.Context(), "redis://:hunter2@"+server.Addr); err != nil {
		expectError(t, "a server without HELLO", err, driver.ErrUnsupported, "too old")
	} else {
		t.Cleanup(func() { s.Close() })
		if err := tryLock(t, s, "m"); err != nil {
			expectError(t, "a server without HELLO", err, driver.ErrUnsupported, "too old")
		}
	}
	server = startServer(t, "--rename-command", "TIME", "")
	expectError(t, "a server without TIME", tryLock(t, openForTest(t, "redis://"+server.Addr), "m"),
		driver.ErrUnsupported, "too old")

	real := sendCommand(t, server, "INFO", "server")
	_, version, _ := strings.Cut(real, "redis_version:")
	version, _, _ = strings.Cut(version, "\r")
	via, err := servertest.NewLink(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(via.Close)
	old := "5.0." + strings.Repeat("9", len(version)-4)
	via.Replace("redis_version:"+version, "redis_version:"+old)
	found, err := openForTest(t, "redis://"+via.Addr).(*store).Examine(t.Context())
	if err != nil || !slices.ContainsFunc(found, func(f driver.Finding) bool { return f.Code == "redis-version" }) {
		t.Errorf("a server of version %s: %v %v", old, found, err)
	}
	for text, what := range map[string]string{
		"ERR unknown command 'AUTH', with args beginning with: 'user' 'hunter2'":                                        "too old",
		"ERR Write commands not allowed after non deterministic commands. Call redis.replicate_commands() at the start": "too old",
	} {
		expectError(t, text, finalReply(text, true, LayoutPlain, &driverutil.Admission{}), driver.ErrUnsupported, what)
	}
}

// TestClusterMisused: for what cannot be done in a Cluster, the error names the remedy.
func TestClusterMisused(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Cluster(t.Context()))
	refused := 0
	for _, server := range g.Servers {
		if err := tryLock(t, openForTest(t, "redis://"+server.Addr), "m"); err != nil {
			refused++
			expectError(t, "a Cluster opened as one server", err, driver.ErrUnsupported, "redis+cluster://")
		}
	}
	if refused != 2 {
		t.Errorf("%d of 3 servers refuse a lock of one slot", refused)
	}
	// A name of any form has all its keys in one slot.
	s := openForTest(t, "redis+cluster://"+g.Servers[0].Addr)
	for _, name := range []string{"{", "}", "}{", "{}x", "a{b", "a}b", "a{}{b}c", "{a}{b}", "x{y}z"} {
		for _, fair := range []bool{false, true} {
			c := mutex(name, time.Minute)
			c.Fair = fair
			got := acquire(t, s, c)
			if r := renew(t, s, got); r.Err != nil {
				t.Errorf("%q: %v", name, r.Err)
			}
			if err := s.Release(t.Context(), c, ""); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	r := openForTest(t, "redis+cluster://"+g.Servers[0].Addr+"?layout=redisson")
	expectError(t, "two slots", tryLock(t, r, "a{b"), driver.ErrInvalid, "two hash slots", "braces")
	expectError(t, "a reply", finalReply("CROSSSLOT Keys in request don't hash to the same slot", false, LayoutPlain,
		&driverutil.Admission{}), driver.ErrInvalid, "two hash slots")
	if err := tryLock(t, openForTest(t, "redis+cluster://"+startServer(t).Addr), "m"); err != nil {
		t.Errorf("one server opened as a Cluster: %v", err)
	}
}

// TestSentinelMisused: a Sentinel that is opened as a server, and a server that is opened as a Sentinel, have other
// errors than a server that is too old.
func TestSentinelMisused(t *testing.T) {
	t.Parallel()
	g := mustStart(t)(redistest.Replicated(t.Context()))
	expectError(t, "a Sentinel", tryLock(t, openForTest(t, "redis://"+g.SentinelAddrs()[0]), "m"),
		driver.ErrUnsupported, "redis+sentinel://")
	_, err := openStore(t.Context(), "redis+sentinel://"+g.Addrs()[0]+"/"+redistest.MasterName)
	expectError(t, "a server", err, driver.ErrUnsupported, "no Sentinel")
}

// TestTLS: rediss:// verifies the server by the user's own CA, presents a client certificate if one is required, and
// never continues without encryption. The errors say what to set.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, other := newCA(t, dir, "ours"), newCA(t, dir, "other")
	serverCert, serverKey := ours.issue(t, "server")
	clientCert, clientKey := ours.issue(t, "client")
	strangeCert, strangeKey := other.issue(t, "strange")
	port, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	server := startServer(t, "--tls-port", port, "--tls-cert-file", serverCert, "--tls-key-file", serverKey,
		"--tls-ca-cert-file", ours.file, "--tls-auth-clients", "no")
	at := "127.0.0.1:" + port
	lockAt := func(raw string) error {
		s, err := openStore(t.Context(), raw)
		if err != nil {
			return err
		}
		defer s.Close()
		return tryLock(t, s, "m"+strconv.Itoa(len(raw)))
	}
	if err := lockAt("rediss://" + at + "?tls-ca=" + ours.file); err != nil {
		t.Errorf("our own CA: %v", err)
	}
	if err := lockAt("redis://" + at + "?tls=true&tls-ca=" + ours.file); err != nil {
		t.Errorf("redis:// with tls=true: %v", err)
	}
	expectError(t, "no CA", lockAt("rediss://u:hunter2@"+at), driver.ErrDenied, "tls-ca")
	expectError(t, "another CA", lockAt("rediss://u:hunter2@"+at+"?tls-ca="+other.file), driver.ErrDenied, "tls-ca")
	expectError(t, "another name", lockAt("rediss://u:hunter2@"+at+"?tls-name=elsewhere&tls-ca="+ours.file),
		driver.ErrDenied, "tls-name")
	expectError(t, "no TLS where it is wanted", lockAt("redis://u:hunter2@"+at), nil, "rediss://")
	_, err = driver.Open(t.Context(), "rediss://u:hunter2@"+server.Addr+"?tls-ca="+ours.file) // this server does not answer TLS
	expectError(t, "TLS where there is none", err, nil, "redis://")

	sendCommand(t, server, "CONFIG", "SET", "tls-auth-clients", "yes")
	expectError(t, "no client certificate", lockAt("rediss://u:hunter2@"+at+"?tls-ca="+ours.file), nil, "tls-cert")
	expectError(t, "a client certificate of another CA",
		lockAt("rediss://u:hunter2@"+at+"?tls-ca="+ours.file+"&tls-cert="+strangeCert+"&tls-key="+strangeKey),
		nil, "tls-cert")
	if err := lockAt("rediss://" + at + "?tls-ca=" + ours.file + "&tls-cert=" + clientCert + "&tls-key=" +
		clientKey); err != nil {
		t.Errorf("a client certificate: %v", err)
	}
}

// certAuthority is a certificate authority.
type certAuthority struct {
	dir, name, file string
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
}

func newCA(t *testing.T, dir, name string) *certAuthority {
	t.Helper()
	a := &certAuthority{dir: dir, name: name, file: filepath.Join(dir, name+".pem")}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	a.key = newKey(t)
	writePEM(t, a.file, "CERTIFICATE", a.sign(t, a.cert, a.key))
	return a
}

func (a *certAuthority) sign(t *testing.T, c *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(crand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// issue makes a certificate for loopback and returns its files.
func (a *certAuthority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k := newKey(t)
	der := a.sign(t, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127,
			0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, k)
	private, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
	writePEM(t, cert, "CERTIFICATE", der)
	writePEM(t, key, "EC PRIVATE KEY", private)
	return cert, key
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
