package holdfastotel

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
)

// maxOpen bounds the spans that are open at the same time. Further holds have none.
const maxOpen = 100_000

// spans makes the spans "holdfast acquire", "holdfast hold" and "holdfast run" of events, after the fact. So no
// exporter is called while a lock is acquired or released.
type spans struct {
	tracer trace.Tracer
	open   map[string]trace.Span // of holds and runs, by the claim's id
}

// addEvent adds, opens or closes the span that belongs to the event.
func (s *spans) addEvent(e *holdfast.Event) {
	if e.Dropped > 0 {
		s.endOpen(e.Time)
	}
	switch phase := e.Kind.Phase(); {
	case phase == holdfast.PhaseGrant:
		acquire, sampled := s.addAcquire(e)
		s.openHold(e, acquire, sampled)
	case phase == holdfast.PhaseFailure:
		s.addAcquire(e)
	case phase == holdfast.PhaseNotice, phase == holdfast.PhaseRenewal && e.Err != nil:
		if span, ok := s.open[e.ID]; ok {
			span.AddEvent(string(e.Kind), trace.WithTimestamp(e.Time), trace.WithAttributes(errorOf(e)...))
		}
	case phase == holdfast.PhaseLoss, phase == holdfast.PhaseEnd:
		s.closeHold(e)
	}
}

// addAcquire adds the span of an attempt that has ended.
func (s *spans) addAcquire(e *holdfast.Event) (acquire trace.SpanContext, sampled bool) {
	_, span := s.tracer.Start(contextOf(e), "holdfast acquire", trace.WithTimestamp(e.Time.Add(-e.Waited)),
		lockOf(e))
	if !span.IsRecording() {
		return span.SpanContext(), false
	}
	span.SetAttributes(claimOf(e)...)
	span.SetAttributes(errorOf(e)...)
	reason := holdfast.FailureReason(e.Reason)
	if e.Err != nil && (reason.IsStoreFailure() || reason == holdfast.FailureTimeout) {
		span.SetStatus(codes.Error, e.Reason)
	}
	span.End(trace.WithTimestamp(e.Time))
	return span.SpanContext(), true
}

// openHold opens the span of a hold or a run. It is linked to the span of its acquire. Both have the parent that the
// caller has given; without one the acquire is the parent, so that both are in one trace, or in none.
func (s *spans) openHold(e *holdfast.Event, acquire trace.SpanContext, sampled bool) {
	if len(s.open) >= maxOpen {
		return
	}
	parent := contextOf(e)
	if !trace.SpanContextFromContext(parent).IsValid() {
		if !sampled {
			return
		}
		parent = trace.ContextWithSpanContext(parent, acquire)
	}
	name := "holdfast hold"
	if e.Kind.OfRuns() {
		name = "holdfast run"
	}
	_, span := s.tracer.Start(parent, name, trace.WithTimestamp(e.Time), lockOf(e),
		trace.WithLinks(trace.Link{SpanContext: acquire}))
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(claimOf(e)...)
	s.open[e.ID] = span
}

// closeHold ends the span of a hold. A loss makes it an error.
func (s *spans) closeHold(e *holdfast.Event) {
	span, ok := s.open[e.ID]
	if !ok {
		return
	}
	delete(s.open, e.ID)
	span.SetAttributes(attribute.String("holdfast.end", string(e.Kind)))
	span.SetAttributes(errorOf(e)...)
	if e.Level() >= slog.LevelWarn {
		span.SetStatus(codes.Error, e.Kind.Description())
	}
	span.End(trace.WithTimestamp(e.Time))
}

// endOpen ends all spans after events were dropped: their ends may be among these, and such a span would stay open
// forever.
func (s *spans) endOpen(now time.Time) {
	for _, span := range s.open {
		span.SetAttributes(attribute.String("holdfast.end", "unknown"))
		span.End(trace.WithTimestamp(now))
	}
	clear(s.open)
}

func contextOf(e *holdfast.Event) context.Context {
	if e.Context == nil {
		return context.Background()
	}
	return e.Context
}

// lockOf is what a sampler can decide by. The other attributes are added when it has: most spans are not sampled.
func lockOf(e *holdfast.Event) trace.SpanStartEventOption {
	return trace.WithAttributes(attribute.String("holdfast.lock", e.Lock))
}

// claimOf is what is known of the claim, besides its lock.
func claimOf(e *holdfast.Event) []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.String("holdfast.kind", string(e.LockKind)), attribute.String("holdfast.id", e.ID),
		attribute.String("holdfast.owner", e.Owner), attribute.Float64("holdfast.ttl", e.TTL.Seconds())}
	if e.Token > 0 {
		list = append(list, attribute.Int64("holdfast.token", e.Token), attribute.String("holdfast.ref", e.Ref))
	}
	if e.Attempt > 0 {
		list = append(list, attribute.Int64("holdfast.attempt", e.Attempt))
	}
	return list
}

// errorOf returns the reason and the error as attributes.
func errorOf(e *holdfast.Event) []attribute.KeyValue {
	var list []attribute.KeyValue
	if e.Reason != "" {
		list = append(list, attribute.String("holdfast.reason", e.Reason))
	}
	if e.Err != nil {
		list = append(list, attribute.String("error.message", e.Err.Error()))
	}
	return list
}
