package zk

import (
	"encoding/binary"
	"errors"
	"io"
)

// A request is a frame: its length, the request's id, the operation and its record. An answer has the id, the last
// transaction that the server has seen, and an error code. Answers come in the order of the requests.
//
// The records follow zookeeper.jute in ZooKeeper's source; there is no other specification of the protocol.
// Numbers are big-endian. Texts, bytes and lists begin with their length, and a length of -1 is nil.

// ErrMalformed is returned for an answer that cannot be decoded.
var ErrMalformed = errors.New("the server's answer is malformed")

// Stat is what a server says about a node besides its data. Fields that are not needed are left out.
type Stat struct {
	Czxid, Mzxid int64 // the transactions that created the node and that changed it last
	Pzxid        int64 // the transaction that added or removed a child last
	Mtime        int64 // milliseconds since 1970, by the leader's clock
	Version      int32 // of the data
	Children     int32 // their number
	Owner        int64 // the session of an ephemeral node, 0 for others
}

// ACL says who may do what with a node.
type ACL struct {
	Perms  int32  // a sum of 1 read, 2 write, 4 create, 8 delete, 16 administer
	Scheme string // world, auth, digest, ip, x509
	ID     string
}

// encoder builds a record.
type encoder []byte

func (e *encoder) putInt(v int32)  { *e = binary.BigEndian.AppendUint32(*e, uint32(v)) }
func (e *encoder) putLong(v int64) { *e = binary.BigEndian.AppendUint64(*e, uint64(v)) }

func (e *encoder) putString(s string) {
	e.putInt(int32(len(s)))
	*e = append(*e, s...)
}

func (e *encoder) putBytes(b []byte) {
	e.putInt(int32(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) putBool(b bool) {
	if b {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

func (e *encoder) putStrings(all []string) {
	e.putInt(int32(len(all)))
	for _, s := range all {
		e.putString(s)
	}
}

func (e *encoder) putACL(all []ACL) {
	e.putInt(int32(len(all)))
	for _, a := range all {
		e.putInt(a.Perms)
		e.putString(a.Scheme)
		e.putString(a.ID)
	}
}

// appendRequest appends the frame of one request.
func appendRequest(out []byte, xid, op int32, body []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(8+len(body)))
	out = binary.BigEndian.AppendUint32(out, uint32(xid))
	out = binary.BigEndian.AppendUint32(out, uint32(op))
	return append(out, body...)
}

// decoder takes a record apart. After the first error all that it returns is zero, and err is set.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.err = ErrMalformed
		return nil
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) readInt() int32 {
	if b := d.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (d *decoder) readLong() int64 {
	if b := d.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (d *decoder) readBool() bool {
	b := d.take(1)
	return b != nil && b[0] != 0
}

func (d *decoder) readBytes() []byte {
	n := d.readInt()
	if n < 0 { // the protocol's nil
		return nil
	}
	return d.take(int(n))
}

func (d *decoder) readString() string { return string(d.readBytes()) }

// readStrings reads a list. A length that the rest cannot hold is malformed, and no memory is taken for it.
func (d *decoder) readStrings() []string {
	n := d.readInt()
	if n < 0 || int(n) > len(d.b)/4 { // a string takes four bytes at least
		if n > 0 {
			d.err = ErrMalformed
		}
		return nil
	}
	all := make([]string, n)
	for i := range all {
		all[i] = d.readString()
	}
	return all
}

func (d *decoder) readACL() (all []ACL) {
	for n := d.readInt(); n > 0 && d.err == nil; n-- {
		all = append(all, ACL{Perms: d.readInt(), Scheme: d.readString(), ID: d.readString()})
	}
	return all
}

// readStat reads a Stat of the protocol, and keeps what we need.
func (d *decoder) readStat() (s Stat) {
	s.Czxid, s.Mzxid = d.readLong(), d.readLong()
	d.readLong() // ctime
	s.Mtime = d.readLong()
	s.Version = d.readInt()
	d.readInt() // cversion
	d.readInt() // aversion
	s.Owner = d.readLong()
	d.readInt() // the length of the data
	s.Children = d.readInt()
	s.Pzxid = d.readLong()
	return s
}

// maxFrame is the largest answer that is accepted: more than any server is configured to send.
const maxFrame = 64 << 20

// readFrame reads a length and as many bytes.
func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > maxFrame {
		return nil, ErrMalformed
	}
	frame := make([]byte, n)
	_, err := io.ReadFull(r, frame)
	return frame, err
}
