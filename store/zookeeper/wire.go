package zookeeper

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The part of ZooKeeper's protocol that locks need. A request is a frame: its length, an id, the operation and its record;
// the answer has the id, the transaction that the server has seen last, and an error code. Answers come in the order of the
// requests.

// The operations.
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opSync            = 9
	opPing            = 11
	opGetChildren     = 12 // with the parent's stat
	opCheck           = 13
	opMulti           = 14
	opCreate2         = 15 // answers with the node's stat
	opCreateContainer = 19
	opAuth            = 100
	opSetWatches      = 101
	opClose           = -11
)

// The ids that name no request.
const (
	xidEvent      = -1
	xidPing       = -2
	xidAuth       = -4
	xidSetWatches = -8
)

// How a node is made.
const (
	modePersistent = 0
	modeEphemeral  = 1
	modeSequential = 3 // and ephemeral
	modeContainer  = 4
)

// The kinds of events.
const (
	eventCreated  = 1
	eventDeleted  = 2
	eventChanged  = 3
	eventChildren = 4
)

// code is an answer's error code.
type code int32

const (
	codeOK             code = 0
	codeRuntime        code = -2 // of a step of a multi: another has failed
	codeUnimplemented  code = -6
	codeNoNode         code = -101
	codeNoAuth         code = -102
	codeBadVersion     code = -103
	codeNoChildren     code = -108
	codeNodeExists     code = -110
	codeSessionExpired code = -112
	codeInvalidACL     code = -114
	codeAuthFailed     code = -115
	codeSessionMoved   code = -118
	codeQuota          code = -125
)

var codeTexts = map[code]string{
	codeUnimplemented: "the server does not know this request", codeNoNode: "no such node", codeNoAuth: "not permitted",
	codeBadVersion: "the node has changed", codeNodeExists: "the node exists", codeSessionExpired: "the session has ended",
	codeAuthFailed: "authentication failed", codeSessionMoved: "the session has moved to another server",
	codeQuota: "a quota is used up", -1: "system error", -4: "connection loss", -5: "marshalling error", -8: "bad arguments",
	codeNoChildren: "ephemeral nodes have no children", -111: "the node has children", codeInvalidACL: "invalid ACL",
}

func (c code) Error() string {
	if text, ok := codeTexts[c]; ok {
		return fmt.Sprintf("zookeeper: %s (%d)", text, int32(c))
	}
	return fmt.Sprintf("zookeeper: error %d", int32(c))
}

// stat is what a server tells of a node beside its data. The fields that nobody needs are left out.
type stat struct {
	czxid, mzxid int64 // the transactions that made it and changed it last
	mtime        int64 // milliseconds since 1970, by the leader's clock
	version      int32 // of the data
	owner        int64 // the session of an ephemeral node, 0 for others
	pzxid        int64 // the transaction that changed its children last
}

// ACL is who may do what with a node.
type ACL struct {
	Perms  int32  // a sum of 1 read, 2 write, 4 create, 8 delete, 16 administer
	Scheme string // world, auth, digest, ip, x509
	ID     string
}

// writer makes a record.
type writer []byte

func (w *writer) int(v int32)  { *w = binary.BigEndian.AppendUint32(*w, uint32(v)) }
func (w *writer) long(v int64) { *w = binary.BigEndian.AppendUint64(*w, uint64(v)) }
func (w *writer) text(s string) {
	w.int(int32(len(s)))
	*w = append(*w, s...)
}
func (w *writer) bytes(b []byte) {
	w.int(int32(len(b)))
	*w = append(*w, b...)
}
func (w *writer) bool(b bool) {
	if b {
		*w = append(*w, 1)
	} else {
		*w = append(*w, 0)
	}
}
func (w *writer) texts(all []string) {
	w.int(int32(len(all)))
	for _, s := range all {
		w.text(s)
	}
}
func (w *writer) acl(all []ACL) {
	w.int(int32(len(all)))
	for _, a := range all {
		w.int(a.Perms)
		w.text(a.Scheme)
		w.text(a.ID)
	}
}

// errShort says that an answer ends too early.
var errShort = errors.New("the server's answer is malformed")

// reader takes a record apart. After the first fault everything it gives is zero, and err says so.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		r.err = errShort
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) int() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *reader) long() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) bool() bool {
	b := r.take(1)
	return b != nil && b[0] != 0
}

func (r *reader) bytes() []byte {
	n := r.int()
	if n < 0 { // none
		return nil
	}
	return r.take(int(n))
}

func (r *reader) text() string { return string(r.bytes()) }

func (r *reader) texts() []string {
	n := r.int()
	if n < 0 || int(n) > len(r.b)/4 {
		if n > 0 {
			r.err = errShort
		}
		return nil
	}
	all := make([]string, n)
	for i := range all {
		all[i] = r.text()
	}
	return all
}

func (r *reader) stat() (s stat) {
	s.czxid, s.mzxid = r.long(), r.long()
	r.long() // ctime
	s.mtime = r.long()
	s.version = r.int()
	r.int() // cversion
	r.int() // aversion
	s.owner = r.long()
	r.int() // length
	r.int() // children
	s.pzxid = r.long()
	return s
}

// call is one request and its answer.
type call struct {
	op   int32
	xid  int32 // of those that have a fixed one
	body writer
	made int    // of how many steps a multi was made
	sent bool   // or about to be
	done func() // called by the goroutine that reads, when there is an answer or will be none

	// The answer.
	err  error // nil, a code, or why there is none
	zxid int64 // what the server had seen by then
	rest reader
}

func createCall(op int32, path string, data []byte, acl []ACL, mode int32) *call {
	c := &call{op: op}
	c.body.text(path)
	c.body.bytes(data)
	c.body.acl(acl)
	c.body.int(mode)
	return c
}

func deleteCall(path string, version int32) *call {
	c := &call{op: opDelete}
	c.body.text(path)
	c.body.int(version)
	return c
}

func setCall(path string, data []byte, version int32) *call {
	c := &call{op: opSetData}
	c.body.text(path)
	c.body.bytes(data)
	c.body.int(version)
	return c
}

// readCall is one of opExists, opGetData, opGetChildren.
func readCall(op int32, path string, watch bool) *call {
	c := &call{op: op}
	c.body.text(path)
	c.body.bool(watch)
	return c
}

func syncCall() *call {
	c := &call{op: opSync}
	c.body.text("/")
	return c
}

func checkCall(path string, version int32) *call {
	c := &call{op: opCheck}
	c.body.text(path)
	c.body.int(version)
	return c
}

// multiCall is several writes that take effect together or not at all.
func multiCall(steps ...*call) *call {
	c := &call{op: opMulti, made: len(steps)}
	for _, s := range steps {
		c.body.int(s.op)
		c.body.bool(false)
		c.body.int(-1)
		c.body = append(c.body, s.body...)
	}
	c.body.int(-1)
	c.body.bool(true)
	c.body.int(-1)
	return c
}

// results are the answers to the steps of a multi, one to each; the first one's fault, if it was not done.
func (c *call) results() ([]stepResult, error) {
	if _, ok := c.err.(code); c.err != nil && (!ok || len(c.rest.b) == 0) {
		return nil, c.err
	}
	var all []stepResult
	for {
		op, done := c.rest.int(), c.rest.bool()
		c.rest.int()
		switch {
		case c.rest.err != nil:
			return nil, c.rest.err
		case done && len(all) == c.made:
			return all, nil
		case done || len(all) == c.made:
			return nil, errShort
		}
		s := stepResult{rest: c.rest.b}
		switch op {
		case opCreate:
			s.path = c.rest.text()
		case opCreate2, opCreateContainer:
			s.path = c.rest.text()
			s.stat = c.rest.stat()
		case opSetData:
			s.stat = c.rest.stat()
		case -1:
			s.code = code(c.rest.int())
		}
		s.rest = s.rest[:len(s.rest)-len(c.rest.b)]
		all = append(all, s)
	}
}

// stepResult is what one step of a multi has come to. A multi that was not done has the code of the step that failed, and
// others for the rest.
type stepResult struct {
	path string
	stat stat
	code code
	rest []byte // all of the answer
}

// refused is the step for which a multi was not done, and why; codeOK if it was.
func refused(steps []stepResult) (step int, why code) {
	for i, s := range steps {
		if s.code != codeOK && s.code != codeRuntime {
			return i, s.code
		}
		why = s.code
	}
	return 0, why
}
