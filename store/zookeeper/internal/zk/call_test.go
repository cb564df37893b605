package zk

import "testing"

// TestMalformedReplies: an answer with fewer or more results than a multi has steps, or of a node that was not
// asked for, is an error.
func TestMalformedReplies(t *testing.T) {
	t.Parallel()
	create := func() *Call { return createCall(OpCreate, "/lock/a-", nil, nil, modeSequential) }
	encodeResults := func(paths ...string) decoder {
		var e encoder
		for _, path := range paths {
			e.putInt(OpCreate)
			e.putBool(false)
			e.putInt(-1)
			e.putString(path)
		}
		e.putInt(-1)
		e.putBool(true)
		e.putInt(-1)
		return decoder{b: e}
	}
	for _, k := range []struct {
		paths []string
		valid bool
	}{
		{[]string{"/lock/a-1", "/lock/a-2"}, true},
		{nil, false},
		{[]string{"/lock/a-1"}, false},
		{[]string{"/lock/a-1", "/lock/a-2", "/lock/a-3"}, false},
		{[]string{"/lock/a-1", "/other"}, false},
		{[]string{"/lock/a-1", ""}, false},
	} {
		c := Multi(create(), create())
		c.reply = encodeResults(k.paths...)
		if all, err := c.CreatedBelow("/lock"); (err == nil) != k.valid {
			t.Errorf("%q: %+v, %v", k.paths, all, err)
		}
	}
	c := create()
	c.reply.b = []byte{0, 0, 0, 1, '/'}
	if all, err := c.CreatedBelow("/lock"); err == nil {
		t.Errorf("a create has made %+v", all)
	}
}
