package dynamodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// The attributes of a heartbeat, besides tokenAttribute and markAttribute. A mark is one of the words of markBroken, a
// colon, and the token of the run that it is for.
const (
	beatAttribute      = "holdfast_beat"
	expiresAttribute   = "holdfast_expires"
	lastEndedAttribute = "holdfast_ended" // the token of the last run that was ended by somebody else
	causeAttribute     = "holdfast_cause" // why
	retryAttribute     = "holdfast_retry" // the sequence of the row after which an operator lets one more run begin
	lateAttribute      = "holdfast_late"  // in an item of its own: what was reported too late about the run
)

// heartbeatSequence is the sequence of the heartbeat. Late reports have that of the start of their run.
const heartbeatSequence = 0

var heartbeatNames = map[string]string{"#token": tokenAttribute, "#beat": beatAttribute, "#expires": expiresAttribute,
	"#ended": lastEndedAttribute, "#cause": causeAttribute, "#mark": markAttribute, "#retry": retryAttribute,
	"#late": lateAttribute}

// heartbeat is the item in which the newest run of a key is renewed.
type heartbeat struct {
	token, beat, expiresAt int64
	ended                  int64
	cause                  driver.LossCause
	mark                   string
	retry                  int64
}

func decodeHeartbeat(it item) heartbeat {
	number := func(attribute string) int64 {
		n, _ := strconv.ParseInt(numberOf(it[attribute]), 10, 64)
		return n
	}
	return heartbeat{token: number(tokenAttribute), beat: number(beatAttribute), expiresAt: number(expiresAttribute),
		ended: number(lastEndedAttribute), cause: driver.LossCause(stringOf(it[causeAttribute])),
		mark: stringOf(it[markAttribute]), retry: number(retryAttribute)}
}

// isMarked reports whether an operator has left that mark for a run.
func (h *heartbeat) isMarked(word string, token int64) bool { return h.mark == markFor(word, token) }

func markFor(word string, token int64) string { return word + ":" + strconv.FormatInt(token, 10) }

func (l *ledger) readHeartbeat(ctx context.Context, key string) (heartbeat, error) {
	it, err := l.readItem(ctx, controlPrefix+key, heartbeatSequence)
	return decodeHeartbeat(it), err
}

// endCause says why the run of a started row has ended without an end of its own; empty if it has not.
func (l *ledger) endCause(r *rowRun, h heartbeat) driver.LossCause {
	expires := r.ExpiresAt
	if h.token == r.Token {
		expires = h.expiresAt
	}
	early, _, _ := l.clock.Bounds()
	switch {
	case h.ended >= r.Token:
		return cmp.Or(h.cause, driver.LossGone)
	case early <= expires:
		return ""
	case h.isMarked(markBroken, r.Token):
		return driver.LossBroken
	default:
		return driver.LossExpired
	}
}

// Renew sends one read and one conditional update per grant.
func (l *ledger) Renew(ctx context.Context, grants []driver.Grant, done func(int, driver.Renewal)) {
	renewEach(grants, func(i int, g driver.Grant) { done(i, l.renewRun(ctx, g)) })
}

// renewRun renews one run. The read looks for the end of the run: a plain worker, or another process with this grant,
// can write one without touching the heartbeat. It also tells the service's time.
func (l *ledger) renewRun(ctx context.Context, g driver.Grant) driver.Renewal {
	key, start, err := l.locate(g)
	if err != nil {
		return driver.Renewal{Err: err}
	}
	end, err := l.readItem(ctx, key, start+1)
	if err == nil && len(end) > 0 {
		err = lossOfRow(key, end, g.ID, driver.LossGone)
	}
	if err != nil {
		return driver.Renewal{Err: err}
	}
	beat := l.clock.TokenFloor()
	for first := true; ; first = false {
		since := l.clock.Clock.Now()
		it, err := l.updateRow(ctx, controlPrefix+key, heartbeatSequence,
			"SET #token = :token, #beat = :beat, #expires = :expires",
			"(attribute_not_exists(#ended) OR #ended < :token) AND (attribute_not_exists(#mark) OR #mark <> :broken) AND "+
				"(attribute_not_exists(#token) OR #token < :token OR #token = :token AND #beat < :beat)",
			heartbeatNames, item{
				":token": numberValue(g.Token), ":beat": numberValue(beat),
				":broken":  textValue(markFor(markBroken, g.Token)),
				":expires": numberValue(l.latestEnd(g.GrantedTTL)),
			})
		switch {
		case err == nil:
			h := decodeHeartbeat(it)
			return driver.Renewal{Since: since, GrantedTTL: g.GrantedTTL,
				ReleaseRequested: h.isMarked(markReleaseRequested, g.Token)}
		case !errors.Is(err, errRefused):
			return driver.Renewal{Err: driverutil.Uncertain(err)}
		}
		h, err := l.readHeartbeat(ctx, key)
		switch {
		case err != nil:
			return driver.Renewal{Err: err}
		case h.ended >= g.Token:
			return driver.Renewal{Err: &driver.LossError{Cause: cmp.Or(h.cause, driver.LossGone)}}
		case h.isMarked(markBroken, g.Token):
			return driver.Renewal{Err: &driver.LossError{Cause: driver.LossBroken, StaysHeld: true}}
		case h.token > g.Token:
			return driver.Renewal{Err: &driver.LossError{Cause: driver.LossTaken}}
		case !first:
			return driver.Renewal{Err: fmt.Errorf("another renewal of %q is in progress; try again", g.Name)}
		}
		beat = h.beat + 1 // another client's clock was ahead of ours
	}
}

// sealRun makes every renewal of a run impossible, if nobody has renewed it since the heartbeat was read. The run is
// not ended by that alone.
func (l *ledger) sealRun(ctx context.Context, key string, r *rowRun, h heartbeat, cause driver.LossCause) error {
	if h.ended >= r.Token {
		return nil
	}
	condition, values := "(attribute_not_exists(#token) OR #token < :ended)", item{}
	if h.token == r.Token {
		condition, values[":beat"] = "#token = :ended AND #beat = :beat", numberValue(h.beat)
	}
	values[":ended"], values[":cause"] = numberValue(r.Token), textValue(string(cause))
	_, err := l.updateRow(ctx, controlPrefix+key, heartbeatSequence, "SET #ended = :ended, #cause = :cause",
		condition+" AND (attribute_not_exists(#ended) OR #ended < :ended)", heartbeatNames, values)
	return err
}

// markRun leaves an operator's mark for the worker of a run.
func (l *ledger) markRun(ctx context.Context, key string, token int64, word string) error {
	_, err := l.updateRow(ctx, controlPrefix+key, heartbeatSequence, "SET #mark = :mark",
		"attribute_not_exists(#ended) OR #ended < :token", heartbeatNames,
		item{":mark": textValue(markFor(word, token)), ":token": numberValue(token)})
	return err
}

// noteLateReport keeps what a worker reported about a run that somebody else had ended.
func (l *ledger) noteLateReport(ctx context.Context, key string, start int64, state driver.RunState) error {
	_, err := l.updateRow(ctx, controlPrefix+key, start, "SET #late = if_not_exists(#late, :late)", "", heartbeatNames,
		item{":late": textValue(string(state))})
	return err
}

// controlItems reads the heartbeat of a key, and the late reports by the sequence of the run's start.
func (l *ledger) controlItems(ctx context.Context, key string) (
	h heartbeat, late map[int64]driver.RunState, err error) {
	late = map[int64]driver.RunState{}
	for it, err := range l.query(ctx, controlPrefix+key, 0) {
		if err != nil {
			return h, nil, err
		}
		if at, _ := strconv.ParseInt(numberOf(it[sortKey]), 10, 64); at == heartbeatSequence {
			h = decodeHeartbeat(it)
		} else {
			late[at] = driver.RunState(stringOf(it[lateAttribute]))
		}
	}
	return h, late, nil
}

// A ref is the sequence of a run's start, a dot, and the id of its claim.
func refOf(start int64, id string) string { return strconv.FormatInt(start, 10) + "." + id }

func parseRef(ref string) (start int64, id string, ok bool) {
	number, id, ok := strings.Cut(ref, ".")
	start, err := strconv.ParseInt(number, 10, 64)
	return start, id, ok && err == nil && id != ""
}

// locate returns where the run of a grant begins.
func (l *ledger) locate(g driver.Grant) (key string, start int64, err error) {
	key, err = l.partitionOf(g.Name)
	if err != nil {
		return key, 0, err
	}
	start, id, ok := parseRef(g.Ref)
	if !ok || id != g.ID {
		return key, 0, fmt.Errorf("%w: the grant of %q has no ref of this store: %q", driver.ErrInvalid, g.Name, g.Ref)
	}
	return key, start, nil
}

// lossOfRow is the loss of a run that has ended with that row. own is the cause if the run's own claim has written it.
func lossOfRow(key string, it item, id string, own driver.LossCause) error {
	row, err := decodeRow(key, it)
	switch {
	case err != nil:
		return err
	case row.run == nil || row.run.ID != id:
		return &driver.LossError{Cause: driver.LossTaken}
	case row.run.State == driver.RunAbandoned:
		return &driver.LossError{Cause: cmp.Or(row.run.Cause, driver.LossExpired)}
	}
	return &driver.LossError{Cause: own}
}
