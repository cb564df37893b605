package serve

import (
	"net/http"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/appendfile"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

// AuditLog is the file of --audit-log. Nothing is broken that could not be written into it first.
type AuditLog struct {
	*appendfile.File
	encode func(fields map[string]any) ([]byte, error)
}

// OpenAuditLog opens the file, or creates it for its owner and group. encode makes a line of the fields of a record.
func OpenAuditLog(where string, encode func(fields map[string]any) ([]byte, error)) (*AuditLog, error) {
	file, err := appendfile.Open(where, 0o640)
	if err != nil {
		return nil, err
	}
	return &AuditLog{file, encode}, nil
}

// write appends a line, and waits until it is on the disk.
func (a *AuditLog) write(fields map[string]any) error {
	line, err := a.encode(fields)
	if err != nil {
		return err
	}
	return a.Append(line, true)
}

// auditFields returns the fields of an entry's record. outcome is "started", "done", "failed" or "refused".
func auditFields(r *http.Request, e operator.Entry, outcome string) map[string]any {
	f := map[string]any{"action": e.Action, "by": CallerName(r), "from": clientAddress(r), "outcome": outcome}
	for name, text := range map[string]string{
		"lock": e.Lock, "ref": e.Ref, "owner": e.Owner, "ledger": e.Ledger, "key": e.Key, "reason": e.Reason,
	} {
		if text != "" {
			f[name] = text
		}
	}
	if e.Token != 0 {
		f["token"] = e.Token
	}
	return f
}

// BeginAudit writes what the caller of a request is about to do. After an error it must not be done. Otherwise the
// caller does it, and calls finish with its error, which writes the outcome.
func (s *Server) BeginAudit(r *http.Request, e operator.Entry) (finish func(error), err error) {
	if s.config.Audit == nil {
		return func(error) {}, nil
	}
	if err := s.config.Audit.write(auditFields(r, e, "started")); err != nil {
		s.counts.auditFailed.Add(1)
		s.config.Report("the audit log cannot be written, so %s was refused: %v", e.Action, err)
		return nil, newProblem(codeAuditFailed, "the audit log cannot be written, so nothing was done")
	}
	return func(err error) {
		f := auditFields(r, e, "done")
		if err != nil {
			f["outcome"], f["code"] = "failed", problemOf(err).Code
		}
		if logErr := s.config.Audit.write(f); logErr != nil {
			s.counts.auditFailed.Add(1)
			s.config.Report("the audit log lacks the outcome of %s (%s): %v", e.Action, f["outcome"], logErr)
		}
	}, nil
}

// refusalsPerSecond is how many attempts of one caller are written per second: nobody without rights fills the disk.
const refusalsPerSecond = 1

// AuditRefused writes that the caller of a request wanted to do what it has no right for.
func (s *Server) AuditRefused(r *http.Request, e operator.Entry) {
	if s.config.Audit == nil || !s.refusals.allow(callerOf(r).limitKey(r)) {
		return
	}
	f := auditFields(r, e, "refused")
	f["code"] = codeForbidden
	if !s.config.AllowBreak && e.Action != operator.RequestRelease {
		f["code"] = codeBreakNotAllowed
	}
	if err := s.config.Audit.write(f); err != nil {
		s.counts.auditFailed.Add(1)
		s.config.Report("the audit log lacks that %s was refused: %v", e.Action, err)
	}
}

// audited writes what is about to be done, does it, and writes the outcome.
func (s *Server) audited(r *http.Request, e operator.Entry, act func() error) error {
	finish, err := s.BeginAudit(r, e)
	if err != nil {
		return err
	}
	err = act()
	finish(err)
	return err
}
