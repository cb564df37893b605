package zookeeper

import "testing"

// TestMalformedReplies: an answer with fewer or more results than a multi has steps, or of a node that was not asked for, is an error.
func TestMalformedReplies(t *testing.T) {
	t.Parallel()
	create := func() *call { return createCall(opCreate, "/lock/a-", nil, Anyone, modeSequential) }
	answer := func(results ...string) reader {
		var w writer
		for _, path := range results {
			w.int(opCreate)
			w.bool(false)
			w.int(-1)
			w.text(path)
		}
		w.int(-1)
		w.bool(true)
		w.int(-1)
		return reader{b: w}
	}
	for _, k := range []struct {
		results []string
		sound   bool
	}{
		{[]string{"/lock/a-1", "/lock/a-2"}, true},
		{nil, false},
		{[]string{"/lock/a-1"}, false},
		{[]string{"/lock/a-1", "/lock/a-2", "/lock/a-3"}, false},
		{[]string{"/lock/a-1", "/other"}, false},
		{[]string{"/lock/a-1", ""}, false},
	} {
		c := multiCall(create(), create())
		c.rest = answer(k.results...)
		if all, err := made(c, "/lock"); (err == nil) != k.sound {
			t.Errorf("%q: %+v, %v", k.results, all, err)
		}
	}
	c := create()
	c.rest.b = []byte{0, 0, 0, 1, '/'}
	if all, err := made(c, "/lock"); err == nil {
		t.Errorf("a create has made %+v", all)
	}
}
