package holdfast

import (
	"context"
	"log/slog"
	"time"
)

// logEvent writes one line about an event. The names of the attributes never change; docs/metrics.md lists them.
func logEvent(l *slog.Logger, e *Event) {
	ctx := e.Context
	if ctx == nil {
		ctx = context.Background()
	}
	level := e.Level()
	if !l.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	addText := func(name, text string) {
		if text != "" {
			attrs = append(attrs, slog.String(name, text))
		}
	}
	addTime := func(name string, d time.Duration, always bool) {
		if d != 0 || always {
			attrs = append(attrs, slog.Duration(name, d))
		}
	}
	addText("event", string(e.Kind))
	addText("lock", e.Lock)
	addText("kind", string(e.LockKind))
	addText("owner", e.Owner)
	addText("id", e.ID)
	addText("ref", e.Ref)
	if e.Token > 0 {
		attrs = append(attrs, slog.Int64("token", e.Token))
	}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.Int64("attempt", e.Attempt))
	}
	addTime("ttl", e.TTL, true)
	addTime("expected", e.Expected, false)
	switch phase := e.Kind.Phase(); phase {
	case PhaseAttempt:
		attrs = append(attrs, slog.Bool("wait", e.Wait))
	case PhaseGrant, PhaseFailure:
		addTime("waited", e.Waited, true)
	default:
		addTime("held", e.Held, true)
		if phase == PhaseRenewal {
			addTime("round_trip", e.RoundTrip, true)
			addTime("remaining", e.Remaining, true)
		}
	}
	addText("reason", e.Reason)
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	if e.Dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", e.Dropped))
	}
	l.LogAttrs(ctx, level, "holdfast: "+e.Kind.Description(), attrs...)
}
