package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The server's answers that mean something here. Appendix A of PostgreSQL's manual lists them.
const (
	notPermitted     = "42501"
	noTable          = "42P01"
	noColumn         = "42703"
	noDatabase       = "3D000"
	noSchema         = "3F000"
	readOnly         = "25006"
	locked           = "55P03"
	diskFull         = "53100"
	serialization    = "40001"
	deadlock         = "40P01"
	planChanged      = "0A000"
	unknownStatement = "26000"
)

// explain puts an error in the driver's terms. What is not final may pass, and after it the outcome of a write is taken
// to be unknown, also where PostgreSQL is sure that it was refused: looking once more costs little.
func (p *place) explain(err error) error {
	var refused *pgconn.PgError
	var denied *pgconn.ConnectError
	switch {
	case err == nil || driver.IsFinal(err):
		return err
	case errors.As(err, &refused):
		return p.refusal(refused)
	case errors.As(err, &denied):
		return fmt.Errorf("PostgreSQL cannot be reached: %w", foreign{denied})
	}
	return foreign{err}
}

func (p *place) refusal(e *pgconn.PgError) error {
	switch e.Code {
	case serialization, deadlock:
		return fmt.Errorf("%w (%s)", record.ErrConflict, e.Message)
	case notPermitted:
		return fmt.Errorf("%w: %s: GRANT %s ON %s, and USAGE on its schema, to the user", driver.ErrDenied, e.Message, strings.Join(p.privileges(), ", "), p.locks)
	case noTable, noSchema:
		return p.missing()
	case noColumn:
		return fmt.Errorf("%w: the table %s is not as it should be: %s", driver.ErrInvalid, p.locks, e.Message)
	case noDatabase:
		return fmt.Errorf("%w: %s", driver.ErrInvalid, e.Message)
	case diskFull:
		return fmt.Errorf("%w: the server's disk is full; make room and try again: %s", driver.ErrDenied, e.Message)
	case locked:
		return fmt.Errorf("PostgreSQL says: %s (%s): somebody has locked the table %s, or a row of it, for long: see pg_locks", e.Message, e.Code, p.locks)
	case readOnly:
		if p.justLooks() {
			return fmt.Errorf("%w: this PostgreSQL server takes no writes: it is a standby, or default_transaction_read_only is on; open the primary, "+
				"or name all servers and target_session_attrs=read-write in the URL", driver.ErrDenied)
		}
		hint := "with target_session_attrs=read-write in the URL another one is taken"
		if !p.several {
			hint = "it took writes before"
		}
		return fmt.Errorf("PostgreSQL says: %s (%s): this server is a standby, or default_transaction_read_only is on; %s", e.Message, e.Code, hint)
	}
	if strings.HasPrefix(e.Code, "28") { // invalid authorization
		return fmt.Errorf("%w: %s: check the user and the password", driver.ErrDenied, e.Message)
	}
	return fmt.Errorf("PostgreSQL says: %s (%s)", e.Message, e.Code)
}

// committedAlone says that a commit has ended its wait for the synchronous standbys: somebody has cancelled it. What was
// written stands here, and it is not known whether it stands there. A write that is answered after it is on a standby has what
// came before it there as well.
type committedAlone struct{ message string }

func (e *committedAlone) Error() string {
	return "PostgreSQL says: " + e.message + ": what was written may not be on the standbys"
}

// errStandby is what a look at a standby comes to where the primary is meant.
var errStandby = &pgconn.PgError{Severity: "ERROR", Code: readOnly, Message: "what a standby shows may be old"}

// isWarning reports whether the server warns. To a statement that is done it does so when its commit did not go as it should.
func isWarning(n *pgconn.Notice) bool {
	return n.SeverityUnlocalized == "WARNING" || n.SeverityUnlocalized == "" && strings.HasPrefix(n.Code, "01")
}

// refused reports whether the server itself has answered with the error.
func refused(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e)
}

// spoils reports whether a connection is of no use any more after this error, though it is not broken: its statements have
// to be prepared again, or its server has become a standby, and another connection may find the new primary.
func spoils(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == planChanged || e.Code == unknownStatement || e.Code == readOnly)
}

// unsent marks the error of a statement that the server has surely not got.
type unsent struct{ error }

func (u unsent) Unwrap() []error { return []error{u.error, record.ErrUnsent} }

// foreign hides from errors.Is that a time-out inside this package was some context's: only the caller's may look so.
type foreign struct{ error }

func (f foreign) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(f.error, target)
}

func exhausted(size int32) error {
	return fmt.Errorf("no free connection in the pool of %d: all are in use by the program itself; make the pool larger, or give the locks one of their own", size)
}
