package zookeeper

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// pathOf is where a lock stands: its name, element by element, below the namespace. What ZooKeeper does not take in a path is
// written as %XX, so that no two names share a path; a name of ordinary characters is its path.
func (t *tree) pathOf(name string) string {
	var b strings.Builder
	b.WriteString(t.root)
	for i, element := range strings.Split(name, "/") {
		b.WriteByte('/')
		b.WriteString(escape(element, i == 0 && t.root == ""))
	}
	return b.String()
}

// escape writes one element of a path. first: it stands at the root, where one name is ZooKeeper's own.
func escape(element string, first bool) string {
	if element == "" {
		return "%00" // a name has no NUL
	}
	special := -1
	switch {
	case element == "." || element == ".." || element == "zookeeper" && first:
		special = 0
	case isClaim(element): // to be told from a claim
		digits := len(strings.TrimRight(element, "0123456789"))
		special = max(digits, len(element)-10) - 1
	}
	var b strings.Builder
	for i, r := range element {
		if i == special || r == '%' || !allowed(r) {
			for k := range utf8.RuneLen(r) {
				fmt.Fprintf(&b, "%%%02X", element[i+k])
			}
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// flat writes a whole name as one element of a path.
func flat(name string, first bool) string {
	return strings.ReplaceAll(escape(name, first), "/", "%2F")
}

// allowed reports whether every version of ZooKeeper takes r in a path, and every client counts it as one character.
func allowed(r rune) bool {
	return !unicode.IsControl(r) && r < 0xD800 && r != utf8.RuneError
}

// unescape undoes escape; false for what escape does not write.
func unescape(element string) (string, bool) {
	if element == "%00" {
		return "", true
	}
	var b strings.Builder
	for i := 0; i < len(element); i++ {
		if element[i] != '%' {
			b.WriteByte(element[i])
			continue
		}
		if i+3 > len(element) {
			return "", false
		}
		c, err := hex.DecodeString(element[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.WriteByte(c[0])
		i += 2
	}
	return b.String(), utf8.ValidString(b.String())
}

// The ends of claims' names before their number: Curator's and go-zookeeper's mutex, Curator's read-write lock, kazoo's locks.
const (
	endLock      = "lock-"
	endRead      = "__READ__"
	endWrite     = "__WRIT__"
	endKazoo     = "__lock__"
	endKazooRead = "__rlock__"
	endLease     = "lease-" // a permit of Curator's semaphore
)

// A layout is how claims are named, and so which clients see them.
type layout struct {
	end  func(driver.Claim) string // of a claim's name
	twin func(driver.Claim) string // of a second node beside it; nil: there is none
}

// The layouts.
const (
	LayoutCurator = "curator" // Curator's mutex and read-write lock, go-zookeeper's lock
	LayoutKazoo   = "kazoo"   // kazoo's Lock, ReadLock and WriteLock
	LayoutBoth    = "both"    // two nodes for each claim
	// LayoutCuratorReadWrite is for what Curator's InterProcessReadWriteLock guards: a mutex is a write lock there.
	LayoutCuratorReadWrite = "curator-readwrite"

	layoutLeases = "leases" // the permits of Curator's semaphore
)

func curatorEnd(c driver.Claim) string {
	switch {
	case c.Kind != driver.KindRW:
		return endLock
	case c.Exclusive():
		return endWrite
	}
	return endRead
}

// readWriteEnd is Curator's for read-write locks, of which a mutex is a writer.
func readWriteEnd(c driver.Claim) string {
	c.Kind = driver.KindRW
	return curatorEnd(c)
}

func kazooEnd(c driver.Claim) string {
	if c.Kind == driver.KindRW && !c.Exclusive() {
		return endKazooRead
	}
	return endKazoo
}

var layouts = map[string]layout{
	LayoutCurator: {end: curatorEnd},
	LayoutKazoo:   {end: kazooEnd},
	LayoutBoth:    {end: curatorEnd, twin: kazooEnd},

	LayoutCuratorReadWrite: {end: readWriteEnd},
	layoutLeases:           {end: func(driver.Claim) string { return endLease }},
}

// ours takes the name of a claim of ours apart, as far as it stands before the end: id, session, kind, limit and weight. It begins
// like Curator's.
func ours(stem string) (session string, n sequence.Payload, ok bool) {
	const id, sess = len("_c_"), len("_c_") + 26 + 1
	stem = strings.TrimSuffix(stem, "-")
	if len(stem) < sess+16+1 || stem[:id] != "_c_" || stem[sess-1] != '-' || stem[sess+16] != '-' {
		return "", n, false
	}
	n.ID, session = stem[id:sess-1], stem[sess:sess+16]
	kind, numbers, _ := strings.Cut(stem[sess+17:], ".")
	limit, weight, _ := strings.Cut(numbers, ".")
	n.Kind = driver.Kind(kind)
	var err1, err2 error
	n.Limit, err1 = strconv.ParseInt(limit, 10, 64)
	n.Weight, err2 = strconv.ParseInt(weight, 10, 64)
	known := n.Kind == driver.KindMutex || n.Kind == driver.KindRW || n.Kind == driver.KindSemaphore
	return session, n, known && err1 == nil && err2 == nil && n.Weight >= 1 && n.Weight <= n.Limit &&
		isID(n.ID) && strings.Trim(session, "0123456789abcdef") == ""
}

// isID reports whether id is what the ids of claims are.
func isID(id string) bool {
	return len(id) == 26 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// stem is a claim's name but for its end and number.
func stem(session string, n sequence.Payload) string {
	return fmt.Sprintf("_c_%s-%s-%s.%d.%d", n.ID, session, n.Kind, n.Limit, n.Weight)
}

// claimPrefix is what the names of all nodes of a claim begin with.
func claimPrefix(session, id string) string { return "_c_" + id + "-" + session + "-" }

// named joins a stem and an end.
func named(stem, end string) string {
	if strings.HasPrefix(end, "_") && end != endRead && end != endWrite {
		return stem + end
	}
	return stem + "-" + end
}

// child is what the name of a claim's node says.
type child struct {
	sequence.Node        // with the Key, and the rest as far as the name says it
	number        int64  // the sequence number
	end           string //
	stem          string // of ours
	twin          string // the key of the node beside it
}

// isClaim reports whether a node's name is that of a claim, of whatever client.
func isClaim(name string) bool {
	_, ok := parse(name)
	return ok
}

// parse takes a claim's name apart.
func parse(name string) (child, bool) {
	digits := strings.TrimRight(name, "0123456789")
	number := name[len(digits):]
	if len(number) != 10 { // an end has no digits of its own
		return child{}, false
	}
	if strings.HasSuffix(digits, "--") || strings.HasSuffix(digits, "__-") {
		digits, number = digits[:len(digits)-1], "-"+number
	}
	c := child{Node: sequence.Node{Key: name, Foreign: true}}
	for _, end := range []string{endLock, endRead, endWrite, endKazoo, endKazooRead, endLease} {
		if stem, ok := strings.CutSuffix(digits, end); ok {
			c.end, c.stem = end, stem
		}
	}
	if c.end == "" {
		return child{}, false
	}
	c.number, _ = strconv.ParseInt(number, 10, 64)
	if session, note, ok := ours(c.stem); ok {
		c.Foreign, c.Session, c.Payload = false, session, note
		c.stem = strings.TrimSuffix(c.stem, "-")
		return c, true
	}
	switch c.end { // foreign read-write locks share as ours do
	case endRead, endKazooRead:
		c.Payload = sequence.Payload{Kind: driver.KindRW, Limit: driver.RWLimit, Weight: 1}
	case endLease: // of whatever limit
		c.Payload = sequence.Payload{Kind: driver.KindSemaphore, Weight: 1}
	case endWrite:
		c.Payload = sequence.Payload{Kind: driver.KindRW, Limit: driver.RWLimit, Weight: driver.RWLimit}
	}
	if readWrite[c.end] {
		c.KindConflictHint = blind
	}
	return c, true
}

// blind is what to do where Curator's read-write lock is found: it sees no other nodes than its own.
const blind = "Curator's InterProcessReadWriteLock; open the store with layout=" + LayoutCuratorReadWrite + ", or claim a read-write lock"

// claims picks the claims among a lock's children. Twins count once, in the place of the first.
func claims(children []string) []child {
	all := make([]child, 0, len(children))
	for _, name := range children {
		if c, ok := parse(name); ok {
			all = append(all, c)
		}
	}
	return all
}

// arrange puts claims in the order in which they came: by their numbers, or by the transactions that made them.
func arrange(all []child, byNumber bool) {
	slices.SortFunc(all, func(a, b child) int {
		if !byNumber {
			return cmp.Compare(a.Token, b.Token)
		}
		// A writer of Curator's that turns into a reader makes a second node with the number of the first.
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(b.end, a.end))
	})
}

// sound reports whether the order of the numbers is that in which the nodes came. The servers' counter sticks at its end: from
// there on numbers come twice, or fall below zero.
func sound(all []child) bool {
	seen := make(map[int64]*child, len(all))
	for i := range all {
		c := &all[i]
		if c.number < 0 {
			return false
		}
		o := seen[c.number]
		if o != nil && !(c.Foreign && o.Foreign && c.end != o.end && readWrite[c.end] && readWrite[o.end]) {
			return false
		}
		seen[c.number] = c
	}
	return true
}

var readWrite = map[string]bool{endRead: true, endWrite: true}

// pair merges the two nodes of a claim of ours that has a twin. Under a layout with twins, one that stands without the other
// keeps only some of the clients out: it counts as a foreign one, until it is gone.
func pair(all []child, twins bool) []child {
	first := map[string]int{}
	out := all[:0]
	for _, c := range all {
		if !c.Foreign {
			if i, twice := first[c.stem]; twice {
				out[i].twin = c.Key
				continue
			}
			first[c.stem] = len(out)
		}
		out = append(out, c)
	}
	for i := range out {
		if c := &out[i]; twins && !c.Foreign && c.twin == "" {
			c.Foreign, c.Payload = true, sequence.Payload{}
		}
	}
	return out
}
