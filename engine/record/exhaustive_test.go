package record

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestExhaustive tries every order of steps that a few claims can make on one lock, until no new state appears. It
// checks the rules in every state: the granted weight never exceeds the limit, no claim is granted out of order, tokens
// never go back or repeat, no permit is given to two holders, and the first claim never waits for nothing.
func TestExhaustive(t *testing.T) {
	for _, test := range []struct {
		name    string
		kind    driver.Kind
		limit   int64
		weights []int64
	}{
		{"mutex", driver.KindMutex, 1, []int64{1, 1, 1, 1}},
		{"semaphore", driver.KindSemaphore, 3, []int64{1, 2, 3, 1}},
		{"weights that change", driver.KindRW, 3, []int64{1, 2, 3, 1}},
		{"read-write", driver.KindRW, 4, []int64{1, 1, 4, 4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			states, steps := exploreStates(t, test.kind, test.limit, test.weights)
			t.Logf("%d states, %d steps", states, steps)
			if states < 100 {
				t.Errorf("only %d states were reached", states)
			}
		})
	}
}

func exploreStates(t *testing.T, kind driver.Kind, limit int64, weights []int64) (states, steps int) {
	seen := map[string]bool{}
	todo := []*Record{{}}
	for len(todo) > 0 {
		r := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for who := range weights {
			for act := range 8 {
				next := r.clone()
				if !checkStep(t, r, next, who, act, kind, limit, weights[who]) {
					continue
				}
				steps++
				if key := recordShape(next); !seen[key] {
					seen[key] = true
					todo = append(todo, next)
				}
			}
		}
	}
	return len(seen), steps
}

// checkStep makes one step of one claim, and checks its effect. It reports whether the step was possible.
func checkStep(t *testing.T, before, r *Record, who, act int, kind driver.Kind, limit, weight int64) bool {
	id := string(rune('a' + who))
	stopped := ""
	m := StepInput{Now: before.Token, ConfirmWindow: time.Second, LivenessOf: func(c *Claim) Liveness {
		if c.ID == stopped {
			return StoppedRenewing
		}
		return Alive
	}}
	mine := before.findClaim(id)
	c := Claim{ID: id, Weight: weight, TTL: 10 * time.Second}
	switch act {
	case 0, 1: // waits, or tries
		got, err := r.Acquire(c, kind, limit, act == 0, info, m)
		if act == 1 && mine == nil && err == nil && got.State != Granted {
			t.Fatalf("%s tried, but waits: %s", id, recordShape(r))
		}
		if errors.Is(err, driver.ErrHeld) && recordShape(before) != recordShape(r) {
			t.Fatalf("%s was refused, but left a trace: %s -> %s", id, recordShape(before), recordShape(r))
		}
	case 2:
		if there, _ := r.Release(id, m); !there {
			return false
		}
	case 3: // another client sees that it has stopped renewing
		if mine == nil {
			return false
		}
		stopped = id
		r.expireAndPromote(m, "")
	case 4:
		if mine == nil || mine.State != Granted {
			return false
		}
		if _, err := r.Renew(id, mine.Token, m); err != nil {
			t.Fatalf("%s holds the lock, but was not renewed: %v", id, err)
		}
	case 5:
		if mine == nil || mine.State == Granted {
			return false
		}
		if _, err := r.Renew(id, mine.Token, m); err == nil {
			t.Fatalf("%s does not hold the lock, but was renewed", id)
		}
	case 6, 7: // change to weight 1, or to the whole limit
		if mine == nil || mine.State != Granted {
			return false
		}
		weight := []int64{1, limit}[act-6]
		err := r.SetWeight(id, mine.Token, weight, m)
		if kind == driver.KindSemaphore {
			if !errors.Is(err, driver.ErrUnsupported) {
				t.Fatalf("%s changes its weight on a semaphore: %v", id, err)
			}
			return false
		}
		if err != nil && (!errors.Is(err, driver.ErrHeld) || weight <= mine.Weight) {
			t.Fatalf("%s has weight %d, and may not change to %d: %v", id, mine.Weight, weight, err)
		}
		if err != nil && recordShape(before) != recordShape(r) {
			t.Fatalf("%s was refused, but left a trace: %s -> %s", id, recordShape(before), recordShape(r))
		}
		if alone := before.countHolders() == 1 && before.Claims[0].ID == id; alone && err != nil {
			t.Fatalf("%s is the only holder, but may not change to weight %d: %v", id, weight, err)
		}
	}
	if err := r.Check(); err != nil {
		t.Fatalf("%s: %v", recordShape(r), err)
	}
	if r.Token < before.Token {
		t.Fatalf("the token went back: %d -> %d", before.Token, r.Token)
	}
	checkOrder(t, before, r)
	next := r.clone()
	if len(next.Claims) > 0 && next.Claims[0].State == Waiting {
		t.Fatalf("the first waiter was not promoted: %s", recordShape(r))
	}
	return true
}

// checkOrder checks that each new holder fits within the limit together with all claims ahead of it.
func checkOrder(t *testing.T, before, after *Record) {
	var sum int64
	for i := range after.Claims {
		c := &after.Claims[i]
		sum += c.Weight
		if was := before.findClaim(c.ID); c.State == Granted && (was == nil || was.State != Granted) &&
			sum > after.Limit {
			t.Fatalf("%s overtook the queue: %s -> %s", c.ID, recordShape(before), recordShape(after))
		}
	}
}

// recordShape returns the part of a record that decides what can happen next.
func recordShape(r *Record) string {
	s := fmt.Sprint(r.Limit)
	for _, c := range r.Claims {
		s += fmt.Sprintf(" %s:%d:%s:%s", c.ID, c.Weight, c.State, c.Permits)
	}
	return s
}
