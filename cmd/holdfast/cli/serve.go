package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/serve"
	"github.com/holdfast-go/holdfast/metrics"
)

// defaultListen is where serve listens if nothing else is said.
const defaultListen = "127.0.0.1:7420"

// serveRun is one call of serve.
type serveRun struct {
	store      *string
	listen     string
	tlsCert    string
	tlsKey     string
	clientCA   string
	tokens     string
	hosts      []string
	allowBreak bool
	auditLog   string
	maxStreams int
	rate       float64
	grace      time.Duration
	withStdin  bool
	parent     *parentProgram // with --exit-with-stdin
	asJSON     bool
}

func newServe(storeURL *string) *cobra.Command {
	s := serveRun{store: storeURL}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve locks, elections and runs over HTTP, and show them in a browser",
		Long:  serveHelp,
		Args:  exactArgs(),
		RunE:  func(c *cobra.Command, _ []string) error { return s.run(c) },
	}
	flags := c.Flags()
	flags.StringVar(&s.listen, "listen", defaultListen, "`ADDRESS` to listen on: unix:PATH or HOST:PORT")
	flags.StringVar(&s.tlsCert, "tls-cert", "", "`FILE` with the server's certificate and its chain, in PEM")
	flags.StringVar(&s.tlsKey, "tls-key", "", "`FILE` with the key of --tls-cert, in PEM")
	flags.StringVar(&s.clientCA, "client-ca", "", "`FILE` with the authorities of client certificates, in PEM")
	flags.StringVar(&s.tokens, "tokens", "", "`FILE` that says who may do what: lines of CREDENTIAL NAME RIGHTS PREFIX")
	flags.StringSliceVar(&s.hosts, "host", nil, "`NAME` by which clients call the server, besides localhost and addresses")
	flags.BoolVar(&s.allowBreak, "allow-break", false,
		"let callers that have the right break locks, and retry and forget runs")
	flags.StringVar(&s.auditLog, "audit-log", "", "append who breaks what to `FILE`, or fd:N, before it is done")
	flags.IntVar(&s.maxStreams, "max-streams", 10_000, "how many streams and waiting requests there may be")
	flags.Float64Var(&s.rate, "rate", 2000, "how many requests per second each client may send; 0: any number")
	flags.DurationVar(&s.grace, "grace", 5*time.Second, "how long clients have to stop when the server shuts down")
	flags.BoolVar(&s.withStdin, "exit-with-stdin", false,
		"for a program that starts serve for itself: read a token from stdin, and end when stdin ends")
	addJSONFlag(c, &s.asJSON)
	return c
}

const serveHelp = `serve lets programs in every language use the locks, elections and runs of the store over HTTP. A client holds a lock
for as long as its connection is open: if it closes it, or dies, the lock is released. If the lock is lost, the client
is told before anyone else can hold it. docs/serve.md explains the API, docs/openapi.yaml describes it, and
docs/languages.md names the packages for other languages.

    holdfast serve --listen unix:/run/holdfast/holdfast.sock &
    curl -sN --unix-socket /run/holdfast/holdfast.sock -X POST http://localhost/v1/locks/deploy/hold

It listens on 127.0.0.1:7420, where all users of this machine can use it. A unix socket is for its owner and group.
With --tokens, each caller needs a token there, too. Other addresses require --tls-cert, --tls-key, and --tokens or
--client-ca.

A line of the file of --tokens has four fields: the credential, a name, the rights, and what the names of the locks
begin with (* for all). printf %s TOKEN | sha256sum prints the hash of TOKEN, which is below. The rights are see, hold and break.

    sha256:f98103e9217f099208569d295c1b276f1821348636c268c854bb2a086e0037cd billing see,hold billing/
    cert:ops.example.org ops see,hold,break *

Started by systemd with a socket unit, it uses that socket instead of --listen. On SIGHUP it reads the files of
--tokens, --tls-cert, --tls-key and --client-ca again, and closes an audit log that was rotated. On SIGTERM or SIGINT it
begins nothing more, tells the holders, waits for them for --grace, and releases their locks, or detaches those whose
clients have asked for that. A second signal ends it at once.

With --exit-with-stdin a program starts serve for itself alone. The first line of stdin is a token, which every caller
needs. Unless --listen says otherwise, serve listens on a unix socket in a new directory that is for its user alone. It
ends when stdin ends, however the program ended, and releases what is held and fails the runs at once. SIGINT, SIGTERM
and SIGHUP, which terminals and service managers send to both, do nothing.

Exit codes:
  0   it was ended by a signal, or by the end of stdin, and nothing is held any more, besides what was detached
  64  wrong usage
  69  the store cannot be reached, the address cannot be used, or something was still held or in progress at the end:
      it ends with its TTL`

// checkFlags checks what does not depend on the files.
func (s *serveRun) checkFlags() error {
	switch {
	case (s.tlsCert == "") != (s.tlsKey == ""):
		return usageError("--tls-cert and --tls-key belong together")
	case s.clientCA != "" && s.tlsCert == "":
		return usageError("--client-ca needs --tls-cert and --tls-key")
	case s.maxStreams < 1 || s.maxStreams > 1_000_000:
		return usageError("--max-streams must be 1 to 1000000")
	case !(s.rate >= 0 && s.rate <= 1_000_000):
		return usageError("--rate must be 0 to 1000000")
	case s.grace < 0 || s.grace > time.Minute:
		return usageError("--grace must be 0s to 1m, not %v", s.grace)
	case s.withStdin && (s.tokens != "" || s.clientCA != ""):
		return usageError("with --exit-with-stdin the token comes from stdin; leave --tokens and --client-ca out")
	}
	return nil
}

// listeners are those that systemd has passed, or that of --listen, or one for the parent alone. Only local ones may
// be used by everybody.
func (s *serveRun) listeners(c *cobra.Command) ([]net.Listener, error) {
	if s.parent != nil && !c.Flags().Changed("listen") {
		l, err := s.parent.listen()
		if err != nil {
			return nil, exitWith(exitUnavailable, "cannot listen in a directory for temporary files: %s", rootCause(err))
		}
		return []net.Listener{l}, nil
	}
	all, err := serve.PassedListeners()
	if err != nil {
		return nil, usageError("%w", err)
	}
	if len(all) > 0 && c.Flags().Changed("listen") {
		return nil, usageError("systemd has passed a socket; leave --listen out")
	}
	if len(all) == 0 {
		address, err := serve.ParseAddress(s.listen)
		if err != nil {
			return nil, usageError("--listen: %w", err)
		}
		if !address.IsLocal() {
			if err := s.checkRemote(s.listen); err != nil {
				return nil, err
			}
		}
		l, err := address.Listen()
		if err != nil {
			return nil, exitWith(exitUnavailable, "cannot listen on %s: %s", s.listen, rootCause(err))
		}
		return []net.Listener{l}, nil
	}
	for _, l := range all {
		if !serve.IsLocalListener(l) {
			if err := s.checkRemote(l.Addr().String()); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// checkRemote reports what is missing to listen where other machines can call.
func (s *serveRun) checkRemote(where string) error {
	switch {
	case s.tlsCert == "":
		return usageError("other machines can call %s, so --tls-cert and --tls-key are needed", where)
	case s.tokens == "" && s.clientCA == "":
		return usageError("other machines can call %s, so --tokens or --client-ca is needed", where)
	}
	return nil
}

// access says who may do what.
func (s *serveRun) access(certificate *serve.Certificate) (*serve.Access, error) {
	switch {
	case s.parent != nil:
		return s.parent.access, nil
	case s.tokens != "":
		a, err := serve.ReadAccess(s.tokens, certificate)
		if err != nil {
			return nil, usageError("--tokens: %s", errorText(err))
		}
		if a.HasCertificates() && s.clientCA == "" {
			return nil, usageError("--tokens: %s names certificates, so --client-ca is needed", s.tokens)
		}
		return a, nil
	case s.clientCA != "":
		return serve.NewCertificateAccess(certificate), nil
	}
	return nil, nil
}

// secure is the configuration of TLS, or nil. names are the names in the server's certificate.
func (s *serveRun) secure(certificate *serve.Certificate) (*tls.Config, error) {
	if s.tlsCert == "" {
		return nil, nil
	}
	if err := certificate.Load(s.tlsCert, s.tlsKey, s.clientCA); err != nil {
		return nil, usageError("%s", errorText(err))
	}
	auth := tls.RequireAndVerifyClientCert
	if s.tokens != "" { // a token is enough
		auth = tls.VerifyClientCertIfGiven
	}
	return certificate.Config(auth), nil
}

// run serves until a signal, or with --exit-with-stdin until the program that has started it ends.
func (s *serveRun) run(c *cobra.Command) error {
	showStacksOnQuit()
	dropWriteSignals()
	if err := s.checkFlags(); err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	if s.withStdin {
		parent, err := readParent(c.InOrStdin(), signals)
		if err != nil {
			return err
		}
		s.parent = parent
		defer parent.cleanUp()
	} else {
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer signal.Stop(signals)
	}
	certificate := &serve.Certificate{}
	access, err := s.access(certificate)
	if err != nil {
		return err
	}
	secure, err := s.secure(certificate)
	if err != nil {
		return err
	}
	var audit *serve.AuditLog
	if s.auditLog != "" {
		if audit, err = serve.OpenAuditLog(s.auditLog, encodeAudit); err != nil {
			return usageError("--audit-log: %s cannot be written: %s", quoteName(s.auditLog), rootCause(err))
		}
		defer audit.Close()
	}
	recorder := metrics.NewRecorder(nil, nil)
	client, err := s.openWithSignals(signals, &holdfast.Options{ForOthers: true,
		OnEvent: func(e holdfast.Event) { recorder.Record(&e) }})
	if err != nil {
		return err
	}
	all, err := s.listeners(c)
	if err != nil {
		closeClient(client)
		return err
	}
	var server *serve.Server
	page := newServePage(client, s.allowBreak, func() *serve.Server { return server })
	defer page.Close()
	server = serve.New(serve.Config{
		Client: client, Store: client.Info().Store, Page: page, AllowBreak: s.allowBreak, Access: access, Audit: audit,
		Hosts: s.hostNames(certificate), MaxStreams: s.maxStreams, Rate: s.rate, Grace: s.grace,
		Metrics: recorder.Collect,
		Report:  func(format string, args ...any) { printMessage(format, args...) },
	})
	failed := make(chan error, len(all))
	for _, l := range all {
		if err := s.announce(c, client, l, secure != nil); err != nil {
			closeClient(client)
			return err
		}
		go func() { failed <- server.Serve(l, secure) }()
	}
	s.notify("READY=1")
	return s.serveUntilSignal(signals, failed, server, client, certificate, audit, page.Close)
}

// notify tells systemd what this service does. A parent does that itself.
func (s *serveRun) notify(state string) {
	if s.parent == nil {
		serve.Notify(state)
	}
}

// openWithSignals opens the store. A signal ends the program meanwhile: nothing is held yet.
func (s *serveRun) openWithSignals(signals chan os.Signal, o *holdfast.Options) (*holdfast.Client, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	opened := make(chan struct{})
	defer close(opened)
	go func() {
		for {
			select {
			case sig := <-signals:
				if sig != syscall.SIGHUP {
					cancel(&signalError{sig.(syscall.Signal)})
					return
				}
			case <-opened:
				return
			}
		}
	}()
	client, err := openClient(ctx, *s.store, o)
	if err != nil && ctx.Err() != nil {
		return nil, storeError(context.Cause(ctx))
	}
	return client, err
}

// announce says where the server listens.
func (s *serveRun) announce(c *cobra.Command, client *holdfast.Client, l net.Listener, secure bool) error {
	where := serve.URL(l, secure)
	if s.asJSON {
		return writeRecord(c.OutOrStdout(), recordServe, fields{"store": client.Info().Store, "listen": where})
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "listening on %s, for the store %s\n", where,
		printableText(client.Info().Store))
	return err
}

// serveUntilSignal waits for the end, and ends the server in order.
func (s *serveRun) serveUntilSignal(signals chan os.Signal, failed chan error, server *serve.Server,
	client *holdfast.Client, certificate *serve.Certificate, audit *serve.AuditLog, closePage func()) error {
	var err error
	for ended := false; !ended; {
		select {
		case sig := <-signals:
			if ended = sig != syscall.SIGHUP; !ended {
				s.reload(server, certificate, audit)
			}
		case e := <-failed:
			if !errors.Is(e, http.ErrServerClosed) {
				err = exitWith(exitUnavailable, "the server cannot go on: %s", rootCause(e))
			}
			ended = true
		}
	}
	s.notify("STOPPING=1")
	if s.parent != nil && s.parent.hasEnded() {
		server.Abandon()
	}
	go func() { // a second signal ends the program at once
		for sig := range signals {
			if sig != syscall.SIGHUP {
				os.Exit(exitSignal + int(sig.(syscall.Signal)))
			}
		}
	}()
	closePage() // its streams would delay the end
	if clean := server.Shutdown(); clean {
		closeClient(client)
		return err
	}
	if err == nil {
		err = exitWith(exitUnavailable, "the server has ended although something was still held or in progress; "+
			"it ends with its TTL")
	}
	return err
}

// reload reads the files again that may have changed. If one is wrong, what was read before stays in use. It also
// lets go of an audit log that was rotated: a removed file takes space on its disk for as long as it is open.
func (s *serveRun) reload(server *serve.Server, certificate *serve.Certificate, audit *serve.AuditLog) {
	if audit != nil {
		if err := audit.Reopen(); err != nil {
			printMessage("the audit log cannot be opened again: %s", rootCause(err))
		}
	}
	access, err := s.access(certificate)
	if err == nil && s.tlsCert != "" {
		err = certificate.Load(s.tlsCert, s.tlsKey, s.clientCA)
	}
	if err != nil {
		printMessage("SIGHUP changes nothing: %s", errorText(err))
		return
	}
	server.SetAccess(access)
	server.SetHosts(s.hostNames(certificate))
	printMessage("the files were read again")
}

// hostNames are the names by which clients may call the server.
func (s *serveRun) hostNames(certificate *serve.Certificate) (names []string) {
	for _, name := range append(certificate.Names(), s.hosts...) {
		names = append(names, strings.ToLower(name))
	}
	return names
}

// encodeAudit makes a line of the audit log.
func encodeAudit(f map[string]any) ([]byte, error) {
	var line bytes.Buffer
	err := writeRecord(&line, recordAudit, f)
	return line.Bytes(), err
}
