package zk

import "strings"

// AnyVersion makes a Delete, SetData or Check take the node at whatever version it has.
const AnyVersion int32 = -1

// Call is one request and its answer. It is sent once, by one of the methods of a [Conn], and read when that has
// returned.
type Call struct {
	op    int32
	xid   int32 // of requests with a fixed id
	body  encoder
	steps int    // of how many steps a multi consists
	sent  bool   // or about to be
	done  func() // called by the goroutine that reads, when the answer has come or will not come

	// Err is nil, the Code with which the server has refused the request, or the reason why there is no answer.
	Err error
	// Zxid is the last transaction that the server had seen when it answered. In the answer to a write it is that
	// of the write itself.
	Zxid int64

	reply decoder
}

func createCall(op int32, path string, data []byte, acl []ACL, mode int32) *Call {
	c := &Call{op: op}
	c.body.putString(path)
	c.body.putBytes(data)
	c.body.putACL(acl)
	c.body.putInt(mode)
	return c
}

// CreateSequential creates an ephemeral node, to whose path the server adds a number. See [Call.CreatedBelow].
func CreateSequential(path string, data []byte, acl []ACL) *Call {
	return createCall(OpCreate2, path, data, acl, modeSequential)
}

// CreateEphemeral creates a node that ends with the session.
func CreateEphemeral(path string, data []byte, acl []ACL) *Call {
	return createCall(OpCreate, path, data, acl, modeEphemeral)
}

// CreatePersistent creates a node that remains until it is deleted.
func CreatePersistent(path string, data []byte, acl []ACL) *Call {
	return createCall(OpCreate, path, data, acl, modePersistent)
}

// CreateContainer creates a node that the servers delete some time after its last child. Servers before 3.5 do not
// know it: CodeUnimplemented.
func CreateContainer(path string, data []byte, acl []ACL) *Call {
	return createCall(OpCreateContainer, path, data, acl, modeContainer)
}

// Delete deletes a node at a version, or at [AnyVersion].
func Delete(path string, version int32) *Call {
	c := &Call{op: OpDelete}
	c.body.putString(path)
	c.body.putInt(version)
	return c
}

// SetData replaces a node's data at a version. See [Call.Stat].
func SetData(path string, data []byte, version int32) *Call {
	c := &Call{op: OpSetData}
	c.body.putString(path)
	c.body.putBytes(data)
	c.body.putInt(version)
	return c
}

// SetACL replaces a node's ACL, whatever version it has.
func SetACL(path string, acl []ACL) *Call {
	c := &Call{op: OpSetACL}
	c.body.putString(path)
	c.body.putACL(acl)
	c.body.putInt(AnyVersion)
	return c
}

// GetACL asks for a node's [Call.ACL].
func GetACL(path string) *Call {
	c := &Call{op: OpGetACL}
	c.body.putString(path)
	return c
}

// Exists asks for a node's [Call.Stat].
func Exists(path string) *Call { return readCall(OpExists, path, false) }

// GetData asks for a node's [Call.Data].
func GetData(path string) *Call { return readCall(OpGetData, path, false) }

// GetChildren asks for a node's [Call.Children].
func GetChildren(path string) *Call { return readCall(OpGetChildren, path, false) }

func readCall(op int32, path string, watch bool) *Call {
	c := &Call{op: op}
	c.body.putString(path)
	c.body.putBool(watch)
	return c
}

// Barrier is a transaction that the servers always refuse: a check of a node that does not exist. Requests that follow
// it in the same session see all that was committed before it was sent. See [Call.BarrierError].
//
// A refused transaction changes nothing and needs no node, but it is one like any other: the leader puts it to the
// quorum, and the server answers it after it has applied all transactions before. ZooKeeper's own sync promises less.
// A leader answers it when it has no proposal open, also before it has applied the last of them, which a follower may
// have confirmed to its client by then. A leader that was deposed, and has not learned of it, answers it as well.
//
// It is a Multi because a server may refuse a single write by itself: see BarrierError.
func Barrier() *Call { return Multi(Check("/holdfast-beat", AnyVersion)) }

// BarrierError returns nil if a [Barrier] has done its work: the answer has the outcome of its step, and the number
// of a transaction.
//
// A refusal without these proves nothing, because the server may not have asked anybody. With enableEagerACLCheck
// (Administrator's Guide; off by default) each server compares single writes with the permissions that it knows of, and
// refuses them at once, even if it is cut off from all others. A server that has too much to do refuses whatever comes
// (throttledOpWaitTime).
func (c *Call) BarrierError() error {
	results, err := c.Results()
	if err != nil {
		return err
	}
	// Somebody may have created the node: then the transaction was carried out, which is as good.
	if _, why := FailedStep(results); why != CodeNoNode && why != CodeOK {
		return why
	}
	if c.Zxid <= 0 {
		return ErrMalformed
	}
	return nil
}

// Check, as a step of a [Multi], demands that a node exists at a version.
func Check(path string, version int32) *Call {
	c := &Call{op: OpCheck}
	c.body.putString(path)
	c.body.putInt(version)
	return c
}

// Multi is one transaction: its steps, which are writes and Checks, take effect together or not at all. See
// [Call.Results]. All nodes that it creates have the same czxid.
func Multi(steps ...*Call) *Call {
	c := &Call{op: OpMulti, steps: len(steps)}
	for _, s := range steps {
		c.body.putInt(s.op)
		c.body.putBool(false)
		c.body.putInt(-1)
		c.body = append(c.body, s.body...)
	}
	c.body.putInt(-1)
	c.body.putBool(true)
	c.body.putInt(-1)
	return c
}

// WasSent reports whether the request was sent, or was about to be. If it is false, the request has certainly had no
// effect, and may be repeated in any session.
func (c *Call) WasSent() bool { return c.sent }

// Stat returns the answer to [Exists] and [SetData], or Err.
func (c *Call) Stat() (Stat, error) {
	if c.Err != nil {
		return Stat{}, c.Err
	}
	d := c.reply
	s := d.readStat()
	return s, d.err
}

// Data returns the answer to [GetData], or Err.
func (c *Call) Data() ([]byte, Stat, error) {
	if c.Err != nil {
		return nil, Stat{}, c.Err
	}
	d := c.reply
	data := d.readBytes()
	s := d.readStat()
	return data, s, d.err
}

// ACL returns the answer to [GetACL], or Err.
func (c *Call) ACL() ([]ACL, error) {
	if c.Err != nil {
		return nil, c.Err
	}
	d := c.reply
	acl := d.readACL()
	return acl, d.err
}

// Children returns the answer to [GetChildren], or Err: the children's names, and the Stat of the node itself.
func (c *Call) Children() ([]string, Stat, error) {
	if c.Err != nil {
		return nil, Stat{}, c.Err
	}
	d := c.reply
	names := d.readStrings()
	s := d.readStat()
	return names, s, d.err
}

// Result is the outcome of one step of a [Multi]. If the transaction was refused, the step that failed has its
// Code, and the others have CodeRuntime or CodeOK.
type Result struct {
	Path string // of a node that was created
	Stat Stat   // of a node that was created, as far as the server sends it, or changed
	Code Code
	raw  []byte // the whole answer
}

// Results returns the outcomes of the steps of a [Multi], one per step. An error means that none is known.
func (c *Call) Results() ([]Result, error) {
	// A transaction that was refused has an error in its head and the outcome of each step in its body. Without a
	// body the server has refused the request as a whole, before it looked at the steps.
	if _, refused := c.Err.(Code); c.Err != nil && (!refused || len(c.reply.b) == 0) {
		return nil, c.Err
	}
	var all []Result
	d := c.reply
	for {
		op, last := d.readInt(), d.readBool()
		d.readInt()
		switch {
		case d.err != nil:
			return nil, d.err
		case last && len(all) == c.steps:
			return all, nil
		case last || len(all) == c.steps:
			return nil, ErrMalformed
		}
		all = append(all, d.readResult(op))
	}
}

// hasRefusedStep reports whether a [Multi] was refused because of one of its steps, with this code. Some servers say so
// in the answer's body alone. All steps of a transaction that was refused are errors.
func (c *Call) hasRefusedStep(with Code) bool {
	if first := (&decoder{b: c.reply.b}).readInt(); c.op != OpMulti || first != -1 {
		return false
	}
	results, err := c.Results()
	_, why := FailedStep(results)
	return err == nil && why == with
}

// readResult reads the result of one operation of a transaction. Their lengths differ, and only the type tells
// them.
func (d *decoder) readResult(op int32) Result {
	r := Result{raw: d.b}
	switch op {
	case OpCreate:
		r.Path = d.readString()
	case OpCreate2, OpCreateContainer:
		r.Path = d.readString()
		r.Stat = d.readStat()
	case OpSetData:
		r.Stat = d.readStat()
	case -1:
		r.Code = Code(d.readInt())
	}
	r.raw = r.raw[:len(r.raw)-len(d.b)]
	return r
}

// FailedStep returns the step for which a transaction was refused, and why; CodeOK if it was carried out.
func FailedStep(results []Result) (step int, why Code) {
	for i, r := range results {
		if r.Code != CodeOK && r.Code != CodeRuntime {
			return i, r.Code
		}
		why = r.Code
	}
	return 0, why
}

// CreatedBelow returns the nodes that a create, or a [Multi] of creates, has made, and checks that they are
// children of parent. Their Stat is zero where the server sends none: the answers to the steps of a Multi have
// paths alone.
func (c *Call) CreatedBelow(parent string) ([]Result, error) {
	all, err := c.createdNodes()
	if err != nil {
		return nil, err
	}
	if _, why := FailedStep(all); why != CodeOK {
		return nil, why
	}
	for _, r := range all {
		if !strings.HasPrefix(r.Path, parent+"/") {
			return nil, ErrMalformed
		}
	}
	return all, nil
}

// createdNodes returns the nodes that the call has created, by one operation or by a transaction.
func (c *Call) createdNodes() ([]Result, error) {
	if c.op == OpMulti {
		return c.Results()
	}
	if c.Err != nil {
		return nil, c.Err
	}
	d := c.reply
	r := Result{Path: d.readString()}
	if len(d.b) > 0 {
		r.Stat = d.readStat()
	}
	return []Result{r}, d.err
}
