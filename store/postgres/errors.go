package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The error codes of the server that the store handles. Appendix A of PostgreSQL's manual lists all.
const (
	notPermitted     = "42501"
	noTable          = "42P01"
	noColumn         = "42703"
	noDatabase       = "3D000"
	noSchema         = "3F000"
	readOnly         = "25006"
	lockNotAvailable = "55P03"
	diskFull         = "53100"
	tooManyConns     = "53300"
	serialization    = "40001"
	deadlock         = "40P01"
	planChanged      = "0A000"
	unknownStatement = "26000"
)

// explainError translates an error into the driver's terms. What is not final may pass. After such an error
// the outcome of a write counts as unknown, even where PostgreSQL is sure that it refused the write: one
// more read costs little.
func (p *location) explainError(err error) error {
	var refused *pgconn.PgError
	var denied *pgconn.ConnectError
	switch {
	case err == nil || driverutil.IsFinal(err):
		return err
	case errors.As(err, &refused):
		return p.explainRefusal(refused)
	case errors.As(err, &denied):
		return hiddenContextError{&unreachableError{denied}}
	}
	return hiddenContextError{err}
}

// explainRefusal translates an error that the server returned. Serialization failures and deadlocks count
// as conflicts, because the transaction was rolled back: the engine reads and tries again. An administrator can end the
// final ones, so their messages say how.
//
// An error that ends the session says nothing about the statement. When a disk is full while a commit is written to the
// log, the server panics with the code of a full disk, and the commit may be there after its recovery.
//
// A server that refuses writes is an error that may pass, unless it is the only one and never took any: after a
// failover the old primary comes back as a standby, under the name that the client knows, and the new one may
// take over that name at any moment.
func (p *location) explainRefusal(e *pgconn.PgError) error {
	switch e.Code {
	case serialization, deadlock:
		if !endsSession(e) {
			return fmt.Errorf("%w (%s)", record.ErrConflict, e.Message)
		}
	case notPermitted:
		return fmt.Errorf("%w: %s: GRANT %s ON %s, and USAGE on its schema, to the user",
			driver.ErrDenied, e.Message, strings.Join(p.requiredPrivileges(), ", "), p.locksTable)
	case noTable, noSchema:
		return p.missingTableError()
	case noColumn:
		return fmt.Errorf("%w: the table %s is not as it should be: %s", driver.ErrInvalid, p.locksTable, e.Message)
	case noDatabase:
		return fmt.Errorf("%w: %s", driver.ErrInvalid, e.Message)
	case diskFull:
		if !endsSession(e) {
			return driverutil.RefuseStore(fmt.Errorf("the server's disk is full; make room and try again: %s", e.Message))
		}
	case lockNotAvailable:
		return fmt.Errorf("PostgreSQL says: %s (%s): another session has locked the table %s, or a row of it, for long: see pg_locks",
			e.Message, e.Code, p.locksTable)
	case readOnly:
		if p.mayReadStandby() {
			return driverutil.RefuseStore(errors.New("this PostgreSQL server takes no writes: it is a standby, " +
				"or default_transaction_read_only is on; open the primary, " +
				"or name all servers and target_session_attrs=read-write in the URL"))
		}
		hint := "with target_session_attrs=read-write in the URL another one is taken"
		if !p.severalServers {
			hint = "it took writes before"
		}
		return fmt.Errorf("PostgreSQL says: %s (%s): this server is a standby, or default_transaction_read_only is on; %s",
			e.Message, e.Code, hint)
	}
	if strings.HasPrefix(e.Code, "28") && strings.Contains(e.Message, "no encryption") {
		return fmt.Errorf("%w: %s: if the server wants TLS, set sslmode=require", driver.ErrDenied, e.Message)
	}
	if strings.HasPrefix(e.Code, "28") { // invalid authorization
		return p.admission.CredentialsRefused(fmt.Errorf("%s: check the user and the password", e.Message))
	}
	return fmt.Errorf("PostgreSQL says: %s (%s)", e.Message, e.Code)
}

// endsSession reports whether the server ended the session with this error. Old servers translate the severity.
func endsSession(e *pgconn.PgError) bool {
	severity := cmp.Or(e.SeverityUnlocalized, e.Severity)
	return severity == "FATAL" || severity == "PANIC"
}

// unreachableError is a connection that could not be made. The text of pgx has a line for each try, and tries an
// address with TLS and without, so that a refused connection would be reported twice.
type unreachableError struct{ err *pgconn.ConnectError }

func (u *unreachableError) Unwrap() error { return u.err }

// Error lists each cause once, without the user and the database, with a hint if TLS is missing.
func (u *unreachableError) Error() string {
	text := u.err.Error()
	if _, after, ok := strings.Cut(text, "`: "); ok { // the user and the database
		text = after
	} else if _, after, ok := strings.Cut(text, "`:\n"); ok {
		text = after
	}
	var causes []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if _, after, ok := strings.Cut(line, ": dial error: "); ok { // which names the address, too
			line = after
		}
		if !slices.Contains(causes, line) {
			causes = append(causes, line)
		}
	}
	text = strings.Join(causes, "; ")
	if strings.Contains(text, "server refused TLS connection") {
		text += "; if the server does not use TLS, set sslmode=disable"
	}
	return "PostgreSQL cannot be reached: " + text
}

// unreplicatedCommitError means that a commit stopped waiting for the synchronous standbys, because its wait
// was canceled. The write is on this server, and it is not known whether it is on the standbys. A later
// write that is confirmed by a standby proves that the earlier ones are there too.
type unreplicatedCommitError struct{ message string }

func (e *unreplicatedCommitError) Error() string {
	return "PostgreSQL says: " + e.message + ": what was written may not be on the standbys"
}

// errStandbyReply replaces the data that a standby has returned where the primary is meant.
var errStandbyReply = &pgconn.PgError{Severity: "ERROR", Code: readOnly, Message: "what a standby shows may be old"}

// isWarning reports whether a notice is a warning. After a statement is complete, a warning means that its
// commit did not end as it should.
func isWarning(n *pgconn.Notice) bool {
	return n.SeverityUnlocalized == "WARNING" || n.SeverityUnlocalized == "" && strings.HasPrefix(n.Code, "01")
}

// isServerError reports whether the server itself returned the error, so the connection works.
func isServerError(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e)
}

// isConnRefused reports whether a new connection was refused by the server, or ended because one side does not trust
// the certificate of the other, as while certificates are replaced. The connections that exist go on.
func isConnRefused(err error) bool {
	var distrust *tls.CertificateVerificationError
	var alert *net.OpError
	return isServerError(err) || errors.As(err, &distrust) || errors.As(err, &alert) && alert.Op == "remote error"
}

// hasNoConnLeft reports whether the server refused a connection because it has, or the role has, as many as allowed.
func hasNoConnLeft(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == tooManyConns
}

// isConnUnusable reports whether a connection must be closed after this error, though it is not broken: its
// statements must be prepared again, or its server has become a standby and a new connection may reach the
// new primary.
func isConnUnusable(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == planChanged || e.Code == unknownStatement || e.Code == readOnly)
}

// unsentError wraps the error of a statement that the server certainly did not receive.
type unsentError struct{ error }

func (u unsentError) Unwrap() []error { return []error{u.error, record.ErrUnsent} }

// hiddenContextError hides context errors from errors.Is: they come from timeouts inside this package, and
// callers must not mistake them for the end of their own context.
type hiddenContextError struct{ error }

func (f hiddenContextError) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(f.error, target)
}

// poolExhaustedError says that the program itself uses all connections of its pool.
func poolExhaustedError(size int32) error {
	return fmt.Errorf("no free connection in the pool of %d: the program itself uses all of them; "+
		"make the pool larger, or give the locks one of their own", size)
}
