package record

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// permitsOf describes the permits of all holders as "id 0,3; id 1".
func permitsOf(r *Record) string {
	var s []string
	for _, c := range r.Claims {
		if c.State == Granted {
			s = append(s, strings.TrimSpace(c.ID+" "+c.Permits))
		}
	}
	return strings.Join(s, "; ")
}

// TestPermits: a holder of a semaphore has the smallest permits that no other holder has, as many as its weight, and
// keeps them until it ends. A claim that waits has none yet, nor have heavy claims, and other locks.
func TestPermits(t *testing.T) {
	for _, test := range []struct {
		kind  driver.Kind
		limit int64
		steps string
		want  string
	}{
		{driver.KindSemaphore, 3, "+a +b +c", "a 0; b 1; c 2"},
		{driver.KindSemaphore, 3, "+a +b -a +c", "b 1; c 0"},
		{driver.KindSemaphore, 5, "+a:2 +b +c:2 -b -a +d:3", "c 3,4; d 0,1,2"},
		{driver.KindSemaphore, 5, "+a +b +c +d -a -c +e:3", "b 1; d 3; e 0,2,4"},
		{driver.KindSemaphore, 2, "+a +b +c -b +c", "a 0; c 1"},
		{driver.KindSemaphore, 2, "+a +b ~a +c", "b 1; c 0"},
		{driver.KindSemaphore, 2, "+a +b +a", "a 0; b 1"},
		{driver.KindSemaphore, driver.MaxLimit, "+a:65 +b +c:500000000000 +d:2", "a; b 0; c; d 1,2"},
		{driver.KindRW, driver.RWLimit, "+a +b", "a; b"},
		{driver.KindMutex, 1, "+a", "a"},
	} {
		r, w := &Record{}, &stepWorld{now: 1e6, liveness: map[string]Liveness{}}
		runSteps(t, r, w, test.kind, test.limit, test.steps)
		if got := permitsOf(r); got != test.want {
			t.Errorf("%s: want %q, got %q", test.steps, test.want, got)
		}
	}
	r, w := &Record{}, &stepWorld{now: 1e6, liveness: map[string]Liveness{}}
	runSteps(t, r, w, driver.KindSemaphore, driver.MaxLimit, fmt.Sprintf("+a:%d", driver.MaxPermits))
	if got := permitsOf(r); !strings.HasSuffix(got, ",62,63") {
		t.Errorf("the largest numbered claim has %q", got)
	}
}

// TestPermitsForgotten: a program of the version before writes the record without the numbers that it does not know.
// While a holder is there that may believe in such a number, nobody gets numbers.
func TestPermitsForgotten(t *testing.T) {
	r, w := &Record{}, &stepWorld{now: 1e6, liveness: map[string]Liveness{}}
	steps := func(s, want string) {
		t.Helper()
		runSteps(t, r, w, driver.KindSemaphore, 4, s)
		if got := permitsOf(r); got != want {
			t.Errorf("%s: want %q, got %q", s, want, got)
		}
	}
	steps("+a +b", "a 0; b 1")
	for i := range r.Claims {
		r.Claims[i].Permits = ""
	}
	steps("+c", "a; b; c")
	steps("-a +d", "b; c; d")
	steps("-b -c", "d")
	steps("+e -d", "e")
	steps("-e +f +g", "f 0; g 1")
}

// TestPermitsAreStored: permits are stored with the claim. A record in which two holders have the same one, or one
// that the lock does not have, is neither written nor read.
func TestPermitsAreStored(t *testing.T) {
	r, w := &Record{}, &stepWorld{now: 1e6, liveness: map[string]Liveness{}}
	runSteps(t, r, w, driver.KindSemaphore, 4, "+a:2 +b")
	data, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	read, err := Decode("s", data)
	if err != nil || permitsOf(read) != "a 0,1; b 2" {
		t.Errorf("%s is read as %q, %v", data, permitsOf(read), err)
	}
	for _, wrong := range []string{"1", "4", "x"} {
		damaged := strings.Replace(string(data), `"permits":"2"`, `"permits":"`+wrong+`"`, 1)
		if _, err := Decode("s", []byte(damaged)); err == nil {
			t.Errorf("%s is read", damaged)
		}
	}
	r.Claims[1].Permits = "0"
	if data, err := Encode(r); err == nil {
		t.Errorf("it is written: %s", data)
	}
}

// TestPermitReserve: the claims of a record have room for the numbers that they get when they are granted.
func TestPermitReserve(t *testing.T) {
	r := &Record{Kind: driver.KindSemaphore, Limit: driver.MaxLimit}
	for i := range 3 {
		r.Claims = append(r.Claims, Claim{ID: fmt.Sprint(i), Weight: driver.MaxPermits, State: Waiting, TTL: 1e9, SilenceLimit: 1e9})
	}
	before, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	room := len(before) + r.permitReserve()
	var numbers []string
	for n := range driver.MaxPermits {
		numbers = append(numbers, fmt.Sprint((driver.MaxHolders-1)*driver.MaxPermits+n))
	}
	for i := range r.Claims {
		r.Claims[i].Permits = strings.Join(numbers, ",")
	}
	if after, err := Encode(r); err != nil || len(after) > room || r.permitReserve() == 0 {
		t.Errorf("%d bytes became %d, with room up to %d, %v", len(before), len(after), room, err)
	}
	for i := range r.Claims {
		r.Claims[i].State = Granted
	}
	if n := r.permitReserve(); n != 0 {
		t.Errorf("holders have room for %d bytes", n)
	}
}
