package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// code says what is wrong. Codes never change.
type code string

const (
	codeInvalid          code = "invalid"
	codeTokenInURL       code = "token-in-url"
	codeUnauthorized     code = "unauthorized"
	codeForbidden        code = "forbidden"
	codeBreakNotAllowed  code = "break-not-allowed"
	codeHostRefused      code = "host-refused"
	codeOriginRefused    code = "origin-refused"
	codeNotFound         code = "not-found"
	codeMethodNotAllowed code = "method-not-allowed"
	codeTooLarge         code = "too-large"
	codeMediaType        code = "media-type"
	codeHeld             code = "held"
	codeTimeout          code = "timeout"
	codeMismatch         code = "mismatch"
	codeNotAcquired      code = "not-acquired"
	codeSucceeded        code = "succeeded"
	codeInProgress       code = "in-progress"
	codeTooSoon          code = "too-soon"
	codeAttemptsUsed     code = "attempts-used"
	codeLost             code = "lost"
	codeReleased         code = "released"
	codeRateLimited      code = "rate-limited"
	codeUnsupported      code = "unsupported"
	codeDenied           code = "denied"
	codeCorrupt          code = "corrupt"
	codeQueueFull        code = "queue-full"
	codeUncertain        code = "uncertain"
	codeStoreError       code = "store-error"
	codeTooManyStreams   code = "too-many-streams"
	codeShuttingDown     code = "shutting-down"
	codeAuditFailed      code = "audit-failed"
	codeInternal         code = "internal"
)

// Why a lock is lost, besides the causes of the library.
const (
	causeShutdown holdfast.LossCause = "shutdown" // the server ends
	causeRevoked  holdfast.LossCause = "revoked"  // the caller may not hold it any more
)

// codes are all codes, with the status of the response and what they mean.
var codes = []struct {
	code   code
	status int
	title  string
}{
	{codeInvalid, http.StatusBadRequest, "the request is wrong"},
	{codeTokenInURL, http.StatusBadRequest, "there is a secret in the URL"},
	{codeUnauthorized, http.StatusUnauthorized, "a token is missing or not known"},
	{codeForbidden, http.StatusForbidden, "the caller has not the right"},
	{codeBreakNotAllowed, http.StatusForbidden, "this server breaks nothing"},
	{codeHostRefused, http.StatusForbidden, "the request was sent to another name"},
	{codeOriginRefused, http.StatusForbidden, "the request is from another web page"},
	{codeNotFound, http.StatusNotFound, "there is no such thing"},
	{codeMethodNotAllowed, http.StatusMethodNotAllowed, "the path does not have this method"},
	{codeTooLarge, http.StatusRequestEntityTooLarge, "the request is too large"},
	{codeMediaType, http.StatusUnsupportedMediaType, "the body is not application/json"},
	{codeHeld, http.StatusConflict, "the lock is held"},
	{codeTimeout, http.StatusConflict, "the lock was not granted in time"},
	{codeMismatch, http.StatusConflict, "the name is in use in another way"},
	{codeNotAcquired, http.StatusConflict, "the lock is not granted yet"},
	{codeSucceeded, http.StatusConflict, "the key has succeeded before"},
	{codeInProgress, http.StatusConflict, "a run of the key is in progress"},
	{codeTooSoon, http.StatusConflict, "the pause since the last run has not passed"},
	{codeAttemptsUsed, http.StatusConflict, "the key has had as many runs as it may have"},
	{codeLost, http.StatusGone, "the lock or the run was lost"},
	{codeReleased, http.StatusGone, "the lock was released before"},
	{codeRateLimited, http.StatusTooManyRequests, "the client sends too many requests"},
	{codeUnsupported, http.StatusNotImplemented, "the store cannot do this"},
	{codeDenied, http.StatusBadGateway, "the store refuses the server"},
	{codeCorrupt, http.StatusBadGateway, "the data in the store cannot be understood"},
	{codeQueueFull, http.StatusServiceUnavailable, "the lock has as many claims as its store allows"},
	{codeUncertain, http.StatusServiceUnavailable, "the store gave no answer, so the outcome is not known"},
	{codeStoreError, http.StatusServiceUnavailable, "the store cannot be used"},
	{codeTooManyStreams, http.StatusServiceUnavailable, "the server has as many streams as it may have"},
	{codeShuttingDown, http.StatusServiceUnavailable, "the server shuts down"},
	{codeAuditFailed, http.StatusServiceUnavailable, "the audit log cannot be written"},
	{codeInternal, http.StatusInternalServerError, "the server has made a mistake"},
}

// problem is an error as a client gets it: RFC 9457, with a code.
type problem struct {
	Type       string             `json:"type"`
	Title      string             `json:"title"`
	Status     int                `json:"status"`
	Code       code               `json:"code"`
	Detail     string             `json:"detail,omitempty"`
	Lock       string             `json:"lock,omitempty"`
	Holders    []shown.Claim      `json:"holders,omitempty"`
	Waiting    int                `json:"waiting,omitempty"`
	Cause      holdfast.LossCause `json:"cause,omitempty"`
	Run        *shown.Run         `json:"run,omitempty"`
	RetryAfter int64              `json:"retry_after_ms,omitempty"`
	challenge  string             // for the header WWW-Authenticate
	quotes     bool               // the detail may say what others have done
	reconnect  bool               // the client must make a new connection
}

func (p *problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

// newProblem makes the problem of a code. The text says what is wrong this time.
func newProblem(c code, format string, args ...any) *problem {
	p := &problem{Type: "urn:holdfast:problem:" + string(c), Code: c, Detail: fmt.Sprintf(format, args...)}
	for _, row := range codes {
		if row.code == c {
			p.Status, p.Title = row.status, row.title
		}
	}
	return p
}

func newRateProblem() *problem {
	p := newProblem(codeRateLimited, "wait a second; --rate of the server sets the limit")
	p.RetryAfter = 1000
	return p
}

// reasons are the errors of the library and their codes, in the order in which they are looked for: an error may match
// several.
func reasons() []struct {
	err  error
	code code
} {
	return []struct {
		err  error
		code code
	}{
		{errWaitLimit, codeTimeout},
		{errShuttingDown, codeShuttingDown},
		{holdfast.ErrClosed, codeShuttingDown},
		{holdfast.ErrSucceeded, codeSucceeded},
		{holdfast.ErrInProgress, codeInProgress},
		{holdfast.ErrTooSoon, codeTooSoon},
		{holdfast.ErrAttemptsUsed, codeAttemptsUsed},
		{holdfast.ErrQueueFull, codeQueueFull},
		{holdfast.ErrMismatch, codeMismatch},
		{holdfast.ErrInvalid, codeInvalid},
		{holdfast.ErrUnsupported, codeUnsupported},
		{holdfast.ErrDenied, codeDenied},
		{holdfast.ErrCorrupt, codeCorrupt},
		{holdfast.ErrUncertain, codeUncertain},
		{holdfast.ErrLost, codeLost},
		{holdfast.ErrReleased, codeReleased},
		{holdfast.ErrHeld, codeHeld},
		{context.DeadlineExceeded, codeTimeout},
	}
}

// problemOf is the problem of any error.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	if errors.As(err, new(*http.MaxBytesError)) {
		return newProblem(codeTooLarge, "a request has at most %d bytes", maxBody)
	}
	c := codeStoreError
	for _, r := range reasons() {
		if errors.Is(err, r.err) {
			c = r.code
			break
		}
	}
	p = newProblem(c, "%s", errorText(err))
	switch c {
	case codeInvalid, codeUnsupported, codeLost, codeReleased, codeShuttingDown, codeTimeout: // about this caller alone
	default:
		p.quotes = true
	}
	var own *holdfast.Error
	if errors.As(err, &own) {
		p.Lock = own.Lock
	}
	var held *holdfast.HeldError
	if errors.As(err, &held) {
		p.Holders, p.Waiting = shown.NewClaims(held.Holders, shown.HiddenRef), held.Waiting
	}
	var loss *holdfast.LossError
	if errors.As(err, &loss) {
		p.Cause = loss.Cause
	}
	var run *holdfast.RunError
	if errors.As(err, &run) {
		view := shown.NewRun(run.Run, len(run.Run.Result))
		p.Run, p.RetryAfter = &view, shown.Millis(run.RetryAfter)
	}
	return p
}

// problemFor is the problem of an error for the caller of a request: without what others have done, if it may not see that.
func problemFor(r *http.Request, err error) *problem {
	p := problemOf(err)
	if p.Holders == nil && p.Run == nil && !p.quotes || maySee(r) {
		return p
	}
	hidden := *p
	hidden.Holders, hidden.Run = nil, nil
	hidden.Detail = "the right \"see\" on this name is missing, so no more is told"
	return &hidden
}

// lossProblem says why a lock was lost.
func lossProblem(name string, cause holdfast.LossCause, message string) *problem {
	p := newProblem(codeLost, "%s", message)
	p.Lock, p.Cause = name, cause
	return p
}

// errorText is an error of the library for the clients of the server. Options are checked by explaining them, which is not
// what the client asked for.
func errorText(err error) string {
	if own := (*holdfast.Error)(nil); errors.As(err, &own) && own.Op == "explain" {
		err = own.Err
	}
	return strings.TrimPrefix(err.Error(), "holdfast: ")
}

// writeError answers with a problem.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemFor(r, err)
	s.counts.addProblem(p.Code)
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte(`{"type":"urn:holdfast:problem:internal","title":"the server has made a mistake","status":500,` +
			`"code":"internal"}`)
	}
	h := w.Header()
	if p.challenge != "" {
		h.Set("WWW-Authenticate", p.challenge)
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfter+999)/1000, 10))
	}
	if p.reconnect || p.Code == codeTooLarge {
		h.Set("Connection", "close")
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
	writeBody(w, p.Status, "application/problem+json", append(body, '\n'))
}

// writeJSON answers with a value. An error says that the client may not have got it.
func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(responseTimeout))
	if err := writeBody(w, http.StatusOK, "application/json", append(body, '\n')); err != nil {
		return err
	}
	return control.Flush()
}

func writeBody(w http.ResponseWriter, status int, mediaType string, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, err := w.Write(body)
	return err
}
