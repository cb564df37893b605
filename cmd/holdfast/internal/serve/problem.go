package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/failure"
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
	codeKeyReused        code = "key-reused"
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
	codeSuperseded       code = "superseded"
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

// ownCodes are the codes that no error of the library has, with the status of the response and what they mean.
var ownCodes = []struct {
	code   code
	status int
	title  string
}{
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
	{codeKeyReused, http.StatusUnprocessableEntity, "the key is in use with other options"},
	{codeNotAcquired, http.StatusConflict, "the lock is not granted yet"},
	{codeRateLimited, http.StatusTooManyRequests, "the client sends too many requests"},
	{codeTooManyStreams, http.StatusServiceUnavailable, "the server has as many streams as it may have"},
	{codeAuditFailed, http.StatusServiceUnavailable, "the audit log cannot be written"},
	{codeInternal, http.StatusInternalServerError, "the server has made a mistake"},
}

// meaningOf is the status of the response with a code, and what the code means.
func meaningOf(c code) (status int, title string) {
	for _, row := range ownCodes {
		if row.code == c {
			return row.status, row.title
		}
	}
	for _, row := range failure.Rows {
		if row.Problem == string(c) {
			return row.Status, row.Title
		}
	}
	return http.StatusInternalServerError, ""
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
	Silent     int64              `json:"silent_ms,omitempty"`
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
	p.Status, p.Title = meaningOf(c)
	return p
}

func newRateProblem() *problem {
	p := newProblem(codeRateLimited, "wait a second; --rate of the server sets the limit")
	p.RetryAfter = 1000
	return p
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
	means := failure.Of(err)
	c := code(means.Problem)
	var own *holdfast.Error
	isOwn := errors.As(err, &own)
	switch {
	case errors.Is(err, errWaitLimit):
		c, means.OfOthers = codeTimeout, isOwn && len(own.Holders) > 0
	case errors.Is(err, errShuttingDown):
		c, means.OfOthers = codeShuttingDown, false
	}
	p = newProblem(c, "%s", errorText(err))
	p.quotes = means.OfOthers
	if isOwn {
		p.Lock, p.Silent = own.Lock, shown.Millis(own.Silent)
		if c == codeTimeout && len(own.Holders) > 0 {
			p.Holders = shown.NewClaims(own.Holders, shown.HiddenRef)
		}
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

// problemFor is the problem of an error for the caller of a request: without what others have done, if it may not see
// that.
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

// errorText is an error of the library for the clients of the server. Options are checked by explaining them, which
// is not what the client asked for.
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

// writeBody writes an answer that no proxy or browser keeps, or takes for another type.
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
