package record

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestExhaustive walks every order of steps that a few claims can make on one lock, to a fixed point, and checks the
// rules in every state: never granted beyond the limit, never out of order, never a token twice or going down, and
// always a way on.
func TestExhaustive(t *testing.T) {
	for _, test := range []struct {
		name    string
		limit   int64
		weights []int64
	}{
		{"mutex", 1, []int64{1, 1, 1, 1}},
		{"semaphore", 3, []int64{1, 2, 3, 1}},
		{"read-write", 4, []int64{1, 1, 4, 4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			states, steps := explore(t, test.limit, test.weights)
			t.Logf("%d states, %d steps", states, steps)
			if states < 100 {
				t.Errorf("only %d states: the walk does not reach far", states)
			}
		})
	}
}

func explore(t *testing.T, limit int64, weights []int64) (states, steps int) {
	seen := map[string]bool{}
	todo := []*Record{{}}
	for len(todo) > 0 {
		r := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for who := range weights {
			for act := range 8 {
				next := r.clone()
				if !step(t, r, next, who, act, limit, weights[who]) {
					continue
				}
				steps++
				if key := shape(next); !seen[key] {
					seen[key] = true
					todo = append(todo, next)
				}
			}
		}
	}
	return len(seen), steps
}

// step makes one act of one claim, and checks what it did. It reports whether the act was possible.
func step(t *testing.T, before, r *Record, who, act int, limit, weight int64) bool {
	id := string(rune('a' + who))
	over := ""
	m := StepInput{Now: before.Token, ConfirmWindow: time.Second, LivenessOf: func(c *Claim) Liveness {
		if c.ID == over {
			return StoppedRenewing
		}
		return Alive
	}}
	mine := before.findClaim(id)
	c := Claim{ID: id, Weight: weight, TTL: 10 * time.Second}
	switch act {
	case 0, 1: // waits, or tries
		got, err := r.Acquire(c, driver.KindSemaphore, limit, act == 0, info, m)
		if act == 1 && mine == nil && err == nil && got.State != Granted {
			t.Fatalf("%s tried and waits: %s", id, shape(r))
		}
		if errors.Is(err, driver.ErrHeld) && shape(before) != shape(r) {
			t.Fatalf("%s was refused and left a trace: %s -> %s", id, shape(before), shape(r))
		}
	case 2:
		if there, _ := r.Release(id, m); !there {
			return false
		}
	case 3: // found silent by somebody
		if mine == nil {
			return false
		}
		over = id
		r.expireAndPromote(m, "")
	case 4:
		if mine == nil || mine.State != Granted {
			return false
		}
		if _, err := r.Renew(id, mine.Token, m); err != nil {
			t.Fatalf("%s holds and was not renewed: %v", id, err)
		}
	case 5:
		if mine == nil || mine.State == Granted {
			return false
		}
		if _, err := r.Renew(id, mine.Token, m); err == nil {
			t.Fatalf("%s does not hold and was renewed", id)
		}
	case 6, 7: // as little or as much as there is
		if mine == nil || mine.State != Granted {
			return false
		}
		weight := []int64{1, limit}[act-6]
		err := r.SetWeight(id, mine.Token, weight, m)
		if err != nil && (!errors.Is(err, driver.ErrHeld) || weight <= mine.Weight) {
			t.Fatalf("%s weighs %d and may not weigh %d: %v", id, mine.Weight, weight, err)
		}
		if err != nil && shape(before) != shape(r) {
			t.Fatalf("%s was refused and left a trace: %s -> %s", id, shape(before), shape(r))
		}
		if alone := before.countHolders() == 1 && before.Claims[0].ID == id; alone && err != nil {
			t.Fatalf("%s is the only holder and may not weigh %d: %v", id, weight, err)
		}
	}
	if err := r.Check(); err != nil {
		t.Fatalf("%s: %v", shape(r), err)
	}
	if r.Token < before.Token {
		t.Fatalf("the token fell: %d -> %d", before.Token, r.Token)
	}
	ordered(t, before, r)
	next := r.clone()
	if len(next.Claims) > 0 && next.Claims[0].State == Waiting {
		t.Fatalf("the first in line was not called: %s", shape(r))
	}
	return true
}

// ordered checks that whoever became a holder had nobody waiting ahead of it who did not fit beside it.
func ordered(t *testing.T, before, after *Record) {
	var sum int64
	for i := range after.Claims {
		c := &after.Claims[i]
		sum += c.Weight
		if was := before.findClaim(c.ID); c.State == Granted && (was == nil || was.State != Granted) &&
			sum > after.Limit {
			t.Fatalf("%s passed the line: %s -> %s", c.ID, shape(before), shape(after))
		}
	}
}

// shape is all of a record that decides what can happen next.
func shape(r *Record) string {
	s := fmt.Sprint(r.Limit)
	for _, c := range r.Claims {
		s += fmt.Sprintf(" %s:%d:%s", c.ID, c.Weight, c.State)
	}
	return s
}
