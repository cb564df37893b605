package servepage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

func claim(ref string) holdfast.ClaimInfo { return holdfast.ClaimInfo{Ref: ref, Owner: ref, Token: 1} }

// words are the events of a lock, in the order in which they were added.
func words(l lockHistory) (all []string) {
	for _, e := range l.events {
		all = append(all, strings.TrimSpace(e.claim.Owner+" "+e.what))
	}
	return all
}

// TestHistory: the history of a lock has who waited, who acquired it after that, who was broken, and who is gone.
func TestHistory(t *testing.T) {
	t.Parallel()
	h, at := newHistory(), time.Unix(1000, 0)
	observe := func(lock holdfast.Lock) {
		lock.Name = "a"
		h.observeWatched(lock, at)
		at = at.Add(time.Second)
	}
	alice, bob := claim("alice"), claim("bob")
	observe(holdfast.Lock{Holders: []holdfast.ClaimInfo{alice}})
	observe(holdfast.Lock{Holders: []holdfast.ClaimInfo{alice}, Waiters: []holdfast.ClaimInfo{bob, claim("carol")}})
	alice.ReleaseRequested = true
	observe(holdfast.Lock{Holders: []holdfast.ClaimInfo{alice}, Waiters: []holdfast.ClaimInfo{bob}})
	alice.Broken = true
	observe(holdfast.Lock{Holders: []holdfast.ClaimInfo{alice}, Waiters: []holdfast.ClaimInfo{bob}})
	observe(holdfast.Lock{Holders: []holdfast.ClaimInfo{bob}})
	observe(holdfast.Lock{})
	want := []string{"alice acquired", "bob waits", "carol waits", "alice was asked to release",
		"carol stopped waiting",
		"alice was broken", "bob acquired", "alice ended after the break", "bob ended: released, or lost"}
	l := h.read("a")
	if got := words(l); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if e := l.events[6]; e.waited != 3*time.Second {
		t.Errorf("bob waited %v", e.waited)
	}
	if s := l.spans[1]; s.waitedFrom != time.Unix(1001, 0) || s.heldFrom != time.Unix(1004, 0) ||
		s.endedAt != time.Unix(1005, 0) {
		t.Errorf("%+v", s)
	}
}

// TestHistoryGap: a time in which nobody observed a lock is noted, and what a listing read before the last observation
// counts for nothing.
func TestHistoryGap(t *testing.T) {
	t.Parallel()
	h, at := newHistory(), time.Unix(1000, 0)
	list := func(at time.Time, holders ...holdfast.ClaimInfo) {
		l := listing{at: at}
		if len(holders) > 0 {
			l.locks = []lockState{{Lock: holdfast.Lock{Name: "a", Holders: holders}, at: at}}
		}
		h.observeListing(l)
	}
	list(at, claim("alice"))
	list(at.Add(-time.Second))
	list(at.Add(listInterval), claim("alice"))
	if got := words(h.read("a")); !slices.Equal(got, []string{"alice acquired"}) {
		t.Errorf("%q", got)
	}
	h.setWatched("a", true)
	list(at.Add(2*listInterval), claim("bob"))
	if got := words(h.read("a")); strings.Contains(fmt.Sprint(got), "bob") {
		t.Errorf("a listing speaks about a lock that is watched: %q", got)
	}
	h.locks["a"].watched = false
	h.locks["a"].events, h.locks["a"].seenAt = nil, at
	list(at.Add(time.Hour))
	if got := words(h.read("a")); len(got) != 2 || !strings.HasPrefix(got[0], "was not observed since") {
		t.Errorf("%q", got)
	}
}

// TestHistoryIsBounded: however many locks, claims and events there are, the history keeps a bounded number.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	h, at := newHistory(), time.Unix(1000, 0)
	var crowd []holdfast.ClaimInfo
	for i := range 3 * maxSpans {
		crowd = append(crowd, claim(fmt.Sprint(i)))
	}
	for i := range 2 * maxEvents {
		h.observeWatched(holdfast.Lock{Name: "a", Holders: crowd[i : i+1], Waiters: crowd[len(crowd)-maxSpans:]}, at)
	}
	for range 2 { // claims for which there is no room make no events again and again
		h.observeWatched(holdfast.Lock{Name: "crowd", Waiters: crowd}, at)
	}
	for i := range maxHistories + 10 {
		h.observeListing(listing{at: at, locks: []lockState{{Lock: holdfast.Lock{Name: fmt.Sprint("lock", i)}}},
			capped: true})
	}
	if a := h.read("a"); len(a.events) > maxEvents || len(a.spans) > maxSpans {
		t.Errorf("%d events, %d spans", len(a.events), len(a.spans))
	}
	if c := h.read("crowd"); len(c.events) != maxEvents || len(c.spans) != maxSpans {
		t.Errorf("%d events, %d spans", len(c.events), len(c.spans))
	}
	if len(h.locks) > maxHistories {
		t.Errorf("%d histories", len(h.locks))
	}
}

// TestTimeline: a bar begins and ends where its time is, and a claim that began before the others is cut off.
func TestTimeline(t *testing.T) {
	t.Parallel()
	now := time.Unix(100_000, 0)
	drawn := string(timeline("x", []bar{
		{label: "<old>", workFrom: now.Add(-time.Hour), end: now.Add(-100 * time.Second), class: "held",
			beganBefore: true},
		{label: "new", waitedFrom: now.Add(-200 * time.Second), workFrom: now.Add(-100 * time.Second), class: "held"},
	}, now))
	half := decimal(timelineLabel + (timelineWidth-timelineLabel-8)/2.)
	for _, want := range []string{"&lt;old&gt;", `class="waited" x="200.0"`, `class="held" x="` + half + `"`,
		`class="held" x="200.0"`} {
		if !strings.Contains(drawn, want) {
			t.Errorf("%q is missing in %s", want, drawn)
		}
	}
	if timeline("x", nil, now) != "" {
		t.Error("a timeline of nothing")
	}
}
