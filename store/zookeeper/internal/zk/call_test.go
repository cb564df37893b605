package zk

import (
	"errors"
	"testing"
)

// TestBarrierError: only an answer with the outcome of a transaction passes a barrier. A refusal by one server alone
// does not, and an end of the session is told as such.
func TestBarrierError(t *testing.T) {
	t.Parallel()
	errorStep := func(code Code) []byte {
		var e encoder
		for _, last := range []bool{false, true} {
			e.putInt(-1)
			e.putBool(last)
			e.putInt(int32(code))
			if !last {
				e.putInt(int32(code))
			}
		}
		return e
	}
	var done encoder
	done.putInt(OpCheck)
	done.putBool(false)
	done.putInt(0)
	done.putInt(-1)
	done.putBool(true)
	done.putInt(-1)
	for _, k := range []struct {
		head Code
		zxid int64
		body []byte
		want error
	}{
		{CodeOK, 7, errorStep(CodeNoNode), nil},
		{CodeNoNode, 7, errorStep(CodeNoNode), nil},
		{CodeOK, 7, done, nil}, // somebody has created the node
		{CodeNoNode, 7, nil, CodeNoNode},
		{CodeNoAuth, 0, nil, CodeNoAuth},
		{CodeNoAuth, 7, nil, CodeNoAuth},
		{CodeOK, 0, errorStep(CodeNoNode), ErrMalformed},
		{CodeOK, 7, nil, ErrMalformed},
		{CodeOK, 7, errorStep(CodeNoAuth), CodeNoAuth},
		{-127, 7, nil, Code(-127)}, // the server has too much to do
	} {
		c := Barrier()
		if k.head != CodeOK {
			c.Err = k.head
		}
		c.Zxid, c.reply = k.zxid, decoder{b: k.body}
		if err := c.BarrierError(); !errors.Is(err, k.want) {
			t.Errorf("%v, transaction %d, %x: %v, want %v", k.head, k.zxid, k.body, err, k.want)
		}
		if c.hasRefusedStep(CodeSessionExpired) {
			t.Errorf("%v, transaction %d, %x: the session has ended", k.head, k.zxid, k.body)
		}
	}
	c := Barrier()
	c.reply.b = errorStep(CodeSessionExpired)
	if !c.hasRefusedStep(CodeSessionExpired) {
		t.Error("the end of the session is not seen")
	}
}

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
