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

// pathOf returns the path of a lock's node: the lock's name, element by element, below the namespace. What
// ZooKeeper does not take in a path is written as %XX, so that no two names share a path. A name of ordinary
// characters is its own path: that is what foreign clients and people look for.
func (t *nodeStore) pathOf(name string) string {
	var b strings.Builder
	b.WriteString(t.root)
	for i, element := range strings.Split(name, "/") {
		b.WriteByte('/')
		b.WriteString(escapeElement(element, i == 0 && t.root == ""))
	}
	return b.String()
}

// escapeElement encodes one element of a path. first: it is at the root, where one name is ZooKeeper's own. Four
// things need it: characters that ZooKeeper refuses, the names that it uses itself, empty elements, and elements
// that look like the key of a claim. Of the latter one character is escaped, so that a lock a below a lock b is no
// claim on b.
func escapeElement(element string, first bool) string {
	if element == "" {
		return "%00" // a name has no NUL
	}
	special := -1
	switch {
	case element == "." || element == ".." || element == "zookeeper" && first:
		special = 0
	case isClaimKey(element): // else it would be taken for a claim
		digits := len(strings.TrimRight(element, "0123456789"))
		special = max(digits, len(element)-10) - 1
	}
	var b strings.Builder
	for i, r := range element {
		if i == special || r == '%' || !isAllowedRune(r) {
			for k := range utf8.RuneLen(r) {
				fmt.Fprintf(&b, "%%%02X", element[i+k])
			}
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// flattenName encodes a whole name as one element of a path.
func flattenName(name string, first bool) string {
	return strings.ReplaceAll(escapeElement(name, first), "/", "%2F")
}

// isAllowedRune reports whether every version of ZooKeeper takes r in a path, and every client counts it as one
// character. ZooKeeper refuses control characters and some ranges (Programmer's Guide, "The ZooKeeper Data Model"). It
// is written in Java, where a character beyond 16 bits is two, the first of them from 0xD800 on.
func isAllowedRune(r rune) bool {
	return !unicode.IsControl(r) && r < 0xD800 && r != utf8.RuneError
}

// unescapeElement undoes escapeElement. It returns false for what escapeElement never returns.
func unescapeElement(element string) (string, bool) {
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

// A claim's key ends in one of these and a number, which the servers add (Programmer's Guide, "Sequence Nodes"). The
// endings are what foreign clients sort and choose by, so they must be exactly theirs.
const (
	endLock      = "lock-"     // Curator's and go-zookeeper's mutex
	endRead      = "__READ__"  // a reader of Curator's read-write lock
	endWrite     = "__WRIT__"  // a writer of it
	endKazoo     = "__lock__"  // kazoo's Lock and WriteLock
	endKazooRead = "__rlock__" // kazoo's ReadLock
	endLease     = "lease-"    // a permit of Curator's semaphore
)

// claimEndings say how claims are named in a layout, and so which clients see them. A client's recipe looks for the
// children with its own endings and ignores all others, so a lock excludes just the clients whose endings its nodes
// have.
type claimEndings struct {
	ending       func(driver.Claim) string // of a claim's key
	secondEnding func(driver.Claim) string // of the key of a second node next to it; nil: there is none
}

// Layout is how a lock is stored in the ensemble, and so which other clients see it.
type Layout string

// These layouts have all kinds of locks, or all but the semaphore. [LayoutPlain] and [LayoutCuratorSemaphore] have one
// kind each.
const (
	LayoutCurator Layout = "curator" // Curator's mutex and read-write lock, go-zookeeper's lock
	LayoutKazoo   Layout = "kazoo"   // kazoo's Lock, ReadLock and WriteLock
	LayoutBoth    Layout = "both"    // two nodes for each claim
	// LayoutCuratorReadWrite is for what Curator's InterProcessReadWriteLock guards: a mutex is a write lock there.
	LayoutCuratorReadWrite Layout = "curator-readwrite"

	layoutLeases Layout = "leases" // the permits of Curator's semaphore
)

// publicLayouts are those that Options.Layout may name.
var publicLayouts = []Layout{LayoutCurator, LayoutCuratorReadWrite, LayoutKazoo, LayoutBoth, LayoutPlain,
	LayoutCuratorSemaphore}

// curatorEnding is the part of a node's name that tells Curator what the claim is.
func curatorEnding(c driver.Claim) string {
	switch {
	case c.Kind != driver.KindRW:
		return endLock
	case c.Exclusive():
		return endWrite
	}
	return endRead
}

// readWriteEnding is Curator's for read-write locks, where a mutex is a writer.
func readWriteEnding(c driver.Claim) string {
	c.Kind = driver.KindRW
	return curatorEnding(c)
}

func kazooEnding(c driver.Claim) string {
	if c.Kind == driver.KindRW && !c.Exclusive() {
		return endKazooRead
	}
	return endKazoo
}

var layouts = map[Layout]claimEndings{
	LayoutCurator: {ending: curatorEnding},
	LayoutKazoo:   {ending: kazooEnding},
	LayoutBoth:    {ending: curatorEnding, secondEnding: kazooEnding},

	LayoutCuratorReadWrite: {ending: readWriteEnding},
	layoutLeases:           {ending: func(driver.Claim) string { return endLease }},
}

// parseStem decodes what precedes the ending in the key of a claim of ours: id, session, kind, limit and weight.
// It begins like the keys of Curator in its protected mode, "_c_" and an id.
//
// All that the rule of grants needs is in the name, because a list of children brings names and nothing else. The
// session is there too, so that a client recognizes its own nodes, and which of them have gone with a session.
func parseStem(stem string) (session string, p sequence.Payload, ok bool) {
	const idStart, sessionStart = len("_c_"), len("_c_") + 26 + 1
	stem = strings.TrimSuffix(stem, "-")
	if len(stem) < sessionStart+16+1 || stem[:idStart] != "_c_" ||
		stem[sessionStart-1] != '-' || stem[sessionStart+16] != '-' {
		return "", p, false
	}
	p.ID, session = stem[idStart:sessionStart-1], stem[sessionStart:sessionStart+16]
	kind, numbers, _ := strings.Cut(stem[sessionStart+17:], ".")
	limit, weight, _ := strings.Cut(numbers, ".")
	p.Kind = driver.Kind(kind)
	var err1, err2 error
	p.Limit, err1 = strconv.ParseInt(limit, 10, 64)
	p.Weight, err2 = strconv.ParseInt(weight, 10, 64)
	known := p.Kind == driver.KindMutex || p.Kind == driver.KindRW || p.Kind == driver.KindSemaphore
	return session, p, known && err1 == nil && err2 == nil && p.Weight >= 1 && p.Weight <= p.Limit &&
		isClaimID(p.ID) && strings.Trim(session, "0123456789abcdef") == ""
}

// isClaimID reports whether an id has the form of our claims' ids.
func isClaimID(id string) bool {
	return len(id) == 26 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// formatStem is the reverse of parseStem.
func formatStem(session string, p sequence.Payload) string {
	return fmt.Sprintf("%s%s.%d.%d", claimPrefix(claimKey{session, p.ID}), p.Kind, p.Limit, p.Weight)
}

// claimPrefix returns what the keys of all nodes of a claim begin with.
func claimPrefix(k claimKey) string { return "_c_" + k.id + "-" + k.session + "-" }

// joinEnding joins a stem and an ending, as the recipe of the ending does: Curator puts a dash between its id and the
// name of the recipe, whatever that begins with, and kazoo puts nothing between them.
func joinEnding(stem, ending string) string {
	if strings.HasPrefix(ending, "_") && ending != endRead && ending != endWrite {
		return stem + ending
	}
	return stem + "-" + ending
}

// claimNode is what the key of a claim's node says.
type claimNode struct {
	sequence.Node        // with its Key, and as much of the rest as the key says
	number        int64  // that the servers have added
	ending        string // one of the end constants
	stem          string // of a claim of ours
	second        string // the key of the claim's second node
}

// isClaimKey reports whether a node's name is the key of a claim, of any client.
func isClaimKey(name string) bool {
	_, ok := parseKey(name)
	return ok
}

// parseKey decodes the key of a claim, of any client. The number has ten digits, and a minus sign before them when the
// 32 bits of the servers' counter have overflowed (Programmer's Guide, "Sequence Nodes").
func parseKey(key string) (claimNode, bool) {
	head := strings.TrimRight(key, "0123456789")
	number := key[len(head):]
	if len(number) != 10 { // an ending has no digits of its own
		return claimNode{}, false
	}
	// The servers write the sign of a negative number behind the ending, which itself ends in a dash or in underscores.
	if strings.HasSuffix(head, "--") || strings.HasSuffix(head, "__-") {
		head, number = head[:len(head)-1], "-"+number
	}
	c := claimNode{Node: sequence.Node{Key: key, Foreign: true}}
	for _, ending := range []string{endLock, endRead, endWrite, endKazoo, endKazooRead, endLease} {
		if stem, ok := strings.CutSuffix(head, ending); ok {
			c.ending, c.stem = ending, stem
		}
	}
	if c.ending == "" {
		return claimNode{}, false
	}
	c.number, _ = strconv.ParseInt(number, 10, 64)
	if session, payload, ok := parseStem(c.stem); ok {
		c.Foreign, c.Session, c.Payload = false, session, payload
		c.stem = strings.TrimSuffix(c.stem, "-")
		return c, true
	}
	// A foreign name says no kind and no weight, but its ending says which recipe made it. All that is not known to
	// share counts as exclusive, which keeps a lock too long at worst. The readers of foreign read-write locks share
	// with ours.
	switch c.ending {
	case endRead, endKazooRead:
		c.Payload = sequence.Payload{Kind: driver.KindRW, Limit: driver.RWLimit, Weight: 1}
	case endLease: // of any limit
		c.Payload = sequence.Payload{Kind: driver.KindSemaphore, Weight: 1}
	case endWrite:
		c.Payload = sequence.Payload{Kind: driver.KindRW, Limit: driver.RWLimit, Weight: driver.RWLimit}
	}
	if isCuratorReadWrite[c.ending] {
		c.KindConflictHint = blindReason
	}
	return c, true
}

// blindReason is the KindConflictHint of the nodes of Curator's read-write lock, which sees no nodes but its own.
const (
	kazooBlindReason = "Curator's InterProcessReadWriteLock; open the store with layout=" + string(LayoutCuratorReadWrite)
	blindReason      = kazooBlindReason + ", or claim a read-write lock"
)

// parseKeys returns the claims among a lock's children.
func parseKeys(children []string) []claimNode {
	all := make([]claimNode, 0, len(children))
	for _, name := range children {
		if c, ok := parseKey(name); ok {
			all = append(all, c)
		}
	}
	return all
}

// sortByArrival sorts claims by their numbers, or by the transactions that created them.
func sortByArrival(all []claimNode, byNumber bool) {
	slices.SortFunc(all, func(a, b claimNode) int {
		if !byNumber {
			return cmp.Compare(a.Token, b.Token)
		}
		// A writer of Curator's that becomes a reader creates a second node with the number of the first.
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(b.ending, a.ending))
	})
}

// areNumbersOrdered reports whether the nodes came in the order of their numbers. The servers' counter stops at
// its maximum: from there on numbers repeat, or are negative.
func areNumbersOrdered(all []claimNode) bool {
	// The counter belongs to the parent and never goes back while that exists, and all nodes in one list have one
	// parent.
	seen := make(map[int64]*claimNode, len(all))
	for i := range all {
		c := &all[i]
		if c.number < 0 {
			return false
		}
		o := seen[c.number]
		if o != nil && !isDowngrade(c, o) {
			return false
		}
		seen[c.number] = c
	}
	return true
}

// isDowngrade reports whether two nodes with one number are a writer of Curator's and the reader that it becomes.
func isDowngrade(a, b *claimNode) bool {
	return a.Foreign && b.Foreign && a.ending != b.ending &&
		isCuratorReadWrite[a.ending] && isCuratorReadWrite[b.ending]
}

var isCuratorReadWrite = map[string]bool{endRead: true, endWrite: true}

// mergeSecondNodes merges the two nodes of a claim of ours into one, in the place of the first. If the layout
// demands two nodes, one without the other keeps only some of the clients out: it counts as a foreign one until it
// is gone. Its own client then does not find its claim in the list, and so learns that the claim is lost.
func mergeSecondNodes(all []claimNode, twoNodes bool) []claimNode {
	first := map[string]int{}
	merged := all[:0]
	for _, c := range all {
		if !c.Foreign {
			if i, exists := first[c.stem]; exists {
				merged[i].second = c.Key
				continue
			}
			first[c.stem] = len(merged)
		}
		merged = append(merged, c)
	}
	for i := range merged {
		if c := &merged[i]; twoNodes && !c.Foreign && c.second == "" {
			c.Foreign, c.Payload = true, sequence.Payload{}
		}
	}
	return merged
}
