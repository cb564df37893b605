package driverutil

import "testing"

// TestShared: equal values share a copy, as long as no more than four others come in between.
func TestShared(t *testing.T) {
	var s Shared[string]
	copies := map[string]*string{}
	for _, v := range []string{"a", "b", "a", "c", "d", "b", "a"} {
		c := s.Get(&v)
		if *c != v || copies[v] != nil && copies[v] != c {
			t.Errorf("a copy %q of %q, at %p and before at %p", *c, v, c, copies[v])
		}
		copies[v] = c
	}
	e, a := "e", "a"
	s.Get(&e)
	if c := s.Get(&a); *c != a || c == copies[a] {
		t.Error("more than four values are known")
	}
}
