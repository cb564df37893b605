package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// openErrorCase is a URL of a store that cannot be opened, and what the message has to say.
type openErrorCase struct {
	url   string
	code  int
	words []string
}

// expectOpenErrors checks messages about opening a store: they name the store and where its URL is from, show no part
// of a password, and claim nothing that is not so.
func (w *workspace) expectOpenErrors(never []string, cases []openErrorCase) {
	w.Helper()
	// A program names the reason only if it has met it by the time that it gives up. On a busy machine that takes long.
	for few := range slices.Chunk(cases, 5) {
		var started []*startedProgram
		for _, c := range few {
			r := w.newProgram("run", "-q", "--ttl", "1s", "--store-wait", "5s", "a", "true")
			r.cmd.Env = w.testEnvironment("HOLDFAST_STORE=" + c.url)
			started = append(started, r.launch())
		}
		for i, c := range few {
			got := started[i].wait()
			got.check(w.T, c.code, append(c.words, "from HOLDFAST_STORE)")...)
			for _, word := range never {
				if strings.Contains(got.err, word) {
					w.Errorf("%s: %q is said; %s", c.url, word, got.description)
				}
			}
		}
	}
}

// TestOpenErrors: a store that cannot be opened is named, with the reason and with what to do.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	port, err := servertest.FreePort() // nobody listens on it
	if err != nil {
		t.Fatal(err)
	}
	at := "127.0.0.1:" + port
	never := []string{"p4ss", "w0rd", "denie", "outcome", "invalid argument", "open: ", "postgres."}
	w.expectOpenErrors(never, []openErrorCase{
		{"redis://:p4ss#w0rd@" + at, 64, []string{"write %23 for a #", "(store redis://..., "}},
		{"redis://:x@p4ss#w0rd@" + at, 64, []string{"write %23 for a #", "(store redis://..., "}},
		{"redis://:x@p4ss/w0rd@" + at, 64, []string{"%2F for /", "(store redis://..., "}},
		{"redis://:x@p4ss?w0rd@" + at, 64, []string{"%3F for ?", "(store redis://..., "}},
		{"redis://:p4ss w0rd@" + at, 64, []string{"%20 for a blank", "(store redis://..., "}},
		{"redis://:p4ss%w0rd@" + at, 64, []string{"%25 for a %", "(store redis://..., "}},
		{"redis://" + at + "?password=p4ss&w0rd", 64, []string{"unknown option", "(store redis://" + at + ", "}},
		{"redis://:x@" + at, 69, []string{"connecting to Redis: dial tcp " + at, "refused", "(store redis://" + at + ", "}},
		{"redis://" + at + "/0?tls-ca=/no/file", 64, []string{"tls-ca: open /no/file: no such file", "(store redis://" + at + "/0, "}},
		{"redis://" + at + "?password-file=/no/file", 64, []string{"password-file", "/no/file: no such file"}},
		{"etcd://u:x@" + at, 69, []string{"(store etcd://" + at + ", "}},
		{"etcd://" + at, 69, []string{"no connection to etcd", at, "set tls=true", "(store etcd://" + at + ", "}},
		{"etcd://" + at + "?tls=true", 69, []string{"no connection to etcd", "uses TLS"}},
		{"zookeeper://" + at, 69, []string{"refused", "(store zookeeper://" + at + ", "}},
		{"postgres://u:p4ss@" + at + "/db", 69, []string{"PostgreSQL cannot be reached: dial tcp " + at + ": connect: connection refused (store postgres://" + at + "/db, "}},
		{"mysql://u:p4ss@" + at + "/db", 69, []string{"MySQL cannot be reached: dial tcp " + at + ": connect: connection refused (store mysql://" + at + "/db, "}},
		{"nats://u:p4ss@" + at + "/b", 69, []string{"NATS cannot be reached: dial tcp " + at + ": connect: connection refused (store nats://" + at + "/b, "}},
		{"nats://u:p4ss@" + at, 64, []string{"names no bucket; it looks like nats://[user[:password]@]host[:4222][,host...]/bucket"}},
		{"consul://:p4ss@" + at, 69, []string{"no connection to Consul: dial tcp " + at + ": connect: connection refused", "(store consul://" + at + ", "}},
		{"mysql://u:p4ss@" + at, 64, []string{"names no database; it looks like mysql://[user[:password]@][host[:3306]]/database"}},
		{"s3://u:p4ss@locks", 64, []string{"AWS_ACCESS_KEY_ID"}},
		{"file:///dev/null", 69, []string{"/dev/null is not a directory", "(store file:///dev/null, "}},
		{"p4ss:w0rd@host", 64, []string{"looks like scheme://", "(the store's URL is from"}},
		{"/var/lib/locks", 64, []string{"did you mean file:///var/lib/locks? (the store's URL is from"}},
	})
	w.runProgram("lst").check(t, 64, "did you mean list? See holdfast --help")
}

// TestOpenErrorsOfRedis: a server that refuses the client, or speaks TLS where the client does not, is told from a
// wrong password.
func TestOpenErrorsOfRedis(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	tlsPort, err := servertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	cert, key := w.filePath("cert.pem"), w.filePath("key.pem")
	w.writeCertificate("other.example")
	server, err := redistest.Start("--tls-port", tlsPort, "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	plain, overTLS := server.Addr, "127.0.0.1:"+tlsPort
	w.expectOpenErrors([]string{"denie", "outcome", "invalid argument", "open: "}, []openErrorCase{
		{"redis://" + overTLS, 69, []string{"if the server uses TLS, open it as rediss://"}},
		{"rediss://" + plain, 69, []string{"if the server does not use TLS, open it as redis://"}},
		{"rediss://" + overTLS, 69, []string{"certificate", "set tls-"}},
		{"rediss://" + overTLS + "/0?tls-ca=" + cert, 69, []string{"certificate is for another name; set tls-name"}},
		{"redis://" + plain + "/99", 64, []string{"no database with the number that the URL names"}},
	})
	if _, err := server.Do("LPUSH", "list", "x"); err != nil {
		t.Fatal(err)
	}
	w.runProgram("run", "-n", "--store", "redis://"+plain, "list", "true").check(t, 75,
		"list is held by no client: a list is stored under the key, which is no lock")
	if _, err := server.Do("ACL", "SETUSER", "default", "resetpass", ">p4ssw0rd"); err != nil {
		t.Fatal(err)
	}
	w.expectOpenErrors([]string{"outcome", "p4ss", "w0rd", "NOAUTH"}, []openErrorCase{
		{"redis://" + plain, 69, []string{"the URL has no password: write redis://:PASSWORD@host, or password-file=FILE"}},
		{"redis://:p4ss@" + plain, 69, []string{"the Redis server refuses the credentials: WRONGPASS"}},
	})
	w.runProgram("run", "--store", "redis://:p4ssw0rd@"+plain, "a", "true").check(t, 0)
}

// writeCertificate writes a self-signed certificate to cert.pem, and its key to key.pem.
func (w *workspace) writeCertificate(name string) {
	w.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		w.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		w.Fatal(err)
	}
	w.writeFile("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})))
	w.writeFile("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})))
}
