package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The error numbers of the server that the store handles. "Server Error Message Reference" in MySQL's manual lists all.
const (
	tableExists      = 1050
	syntaxError      = 1064
	noTable          = 1146
	noColumn         = 1054
	noDatabase       = 1049
	duplicateKey     = 1062
	lockWaitTimeout  = 1205
	deadlock         = 1213
	readOnlyTable    = 1036 // by innodb_read_only
	readOnlyOption   = 1290
	readOnlyTx       = 1792
	superReadOnly    = 1836
	diskFull         = 1021
	tableFull        = 1114
	tooManyConns     = 1040
	tooManyUserConns = 1203
	packetTooLarge   = 1153
	changedRecord    = 1020
)

// permissionErrors are the refusals for lack of a permission.
var permissionErrors = map[uint16]bool{1044: true, 1142: true, 1143: true, 1227: true, 1370: true}

// wrongCharacters are the refusals of text that a column cannot have.
var wrongCharacters = map[uint16]bool{1366: true, 1267: true, 1270: true, 1271: true}

// loginErrors are the refusals of a user or a password.
var loginErrors = map[uint16]bool{1045: true, 1698: true, 1130: true, 1862: true, 3118: true, 3159: true, 4151: true}

// unsentError is the error of a request that was not sent, for lack of a connection.
type unsentError struct{ error }

func (u unsentError) Unwrap() []error { return []error{u.error, record.ErrUnsent} }

// brokenConnError says that a connection broke, or could not be made, or leads to a server that takes no writes.
type brokenConnError struct{ error }

func (b brokenConnError) Unwrap() error { return b.error }

func isBrokenConn(err error) bool {
	var broken brokenConnError
	return errors.As(err, &broken)
}

// explainError translates an error into the driver's terms. What is not final may pass. After such an error the outcome
// of a write counts as unknown, even where the server is sure that it refused the write: one more read costs little.
func (t *table) explainError(ctx context.Context, err error) error {
	var refused *mysql.MySQLError
	var op *net.OpError
	switch {
	case err == nil || driverutil.IsFinal(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errReadOnly):
		return errReadOnly
	case errors.As(err, &refused):
		return t.explainRefusal(refused)
	case errors.As(err, &op) && op.Op == "dial":
		return brokenConnError{unsentError{fmt.Errorf("MySQL cannot be reached: %v", op)}}
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, sqldriver.ErrBadConn), errors.Is(err, io.EOF), op != nil:
		return brokenConnError{fmt.Errorf("the connection to MySQL broke: %v", err)}
	case errors.Is(err, mysql.ErrPktTooLarge):
		return fmt.Errorf("%w: %v: raise max_allowed_packet", driver.ErrInvalid, err)
	case errors.Is(err, mysql.ErrNoTLS):
		return driverutil.RefuseWithoutTLS()
	case errors.Is(err, mysql.ErrCleartextPassword), errors.Is(err, mysql.ErrNativePassword), errors.Is(err,
		mysql.ErrOldPassword),
		errors.Is(err, mysql.ErrUnknownPlugin):
		return fmt.Errorf("%w: the server wants the password in a way that this client does not allow: %v",
			driver.ErrDenied, err)
	}
	return fmt.Errorf("MySQL: %w", err)
}

// explainRefusal translates an error that the server returned. Of the codes that count as conflicts, each says that the
// statement was rolled back before its commit: the engine reads and tries again. 3101, by which a group rolls back a
// transaction at its commit, is not among them: a member that leaves the group rolls back what waits, although the
// others may have received it, and may apply it. An administrator can end the final ones, so their messages say how.
func (t *table) explainRefusal(e *mysql.MySQLError) error {
	switch {
	case e.Number == duplicateKey, e.Number == deadlock, e.Number == changedRecord:
		return fmt.Errorf("%w (%s)", record.ErrConflict, e.Message)
	case permissionErrors[e.Number]:
		return fmt.Errorf("%w: %s: GRANT %s ON %s TO the user", driver.ErrDenied, e.Message,
			t.requiredPrivileges(), t.quotedName)
	case loginErrors[e.Number]:
		err := t.admission.CredentialsRefused(fmt.Errorf("%s: check the user, the password, and from which hosts the user may "+
			"connect", e.Message))
		if driverutil.IsFinal(err) {
			return err
		}
		return brokenConnError{unsentError{err}}
	case wrongCharacters[e.Number]:
		return fmt.Errorf("%w: the table %s has another character set, which lacks a character of this claim: %s",
			driver.ErrInvalid, t.quotedName, e.Message)
	case e.Number == noTable:
		return t.missingTableError()
	case e.Number == noColumn:
		return fmt.Errorf("%w: the table %s is not as it should be: %s", driver.ErrInvalid, t.quotedName, e.Message)
	case e.Number == noDatabase:
		return fmt.Errorf("%w: %s", driver.ErrInvalid, e.Message)
	case e.Number == diskFull, e.Number == tableFull:
		return driverutil.RefuseStore(fmt.Errorf("the server's disk is full; make room and try again: %s", e.Message))
	case e.Number == packetTooLarge:
		return fmt.Errorf("%w: %s: raise max_allowed_packet", driver.ErrInvalid, e.Message)
	case e.Number == readOnlyTable, e.Number == readOnlyOption, e.Number == readOnlyTx, e.Number == superReadOnly:
		return errReadOnly
	case e.Number == tooManyConns, e.Number == tooManyUserConns:
		return brokenConnError{unsentError{fmt.Errorf("MySQL says: %s (%d)", e.Message, e.Number)}}
	case e.Number == lockWaitTimeout:
		return fmt.Errorf("MySQL says: %s (%d): another session has locked the table %s, or a row of it, for long: see "+
			"SHOW PROCESSLIST", e.Message, e.Number, t.quotedName)
	}
	return fmt.Errorf("MySQL says: %s (%d)", e.Message, e.Number)
}

// errReadOnly is for a server that takes no writes, and took them when the store was opened. It was probably demoted,
// and a new connection may reach the server that has taken over. Nothing was written.
var errReadOnly = brokenConnError{errors.New("this MySQL server is read-only now; it took writes when the store was opened")}
