package consul

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// reservedFolder is, behind the prefix, the folder of the keys that are not claims. No name is written like that.
const reservedFolder = ".holdfast/"

// claimFolder is, behind the name of a lock, the folder of its claims. So the keys of the lock a are not those of the
// lock a/b.
const claimFolder = "/.claims/"

// plainBytes are written as they are.
const plainBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~:@$+!,;=()/"

// encodeName writes a name as a part of a key. A key is the path of a request, in which dots, empty segments and bytes
// that are no printable ASCII do not arrive as they were sent. So all but plain bytes are %XX; a dot at the beginning
// of a segment is so, too; and an empty segment is a single %. Whatever a name begins with, its key begins with the key
// of that, except for the last segment if it is empty: see encodePrefix.
func encodeName(name string) string {
	segments := strings.Split(name, "/")
	for i, s := range segments {
		segments[i] = cmp.Or(encodePrefix(s), "%")
	}
	return strings.Join(segments, "/")
}

// encodePrefix writes the beginning of a name as the beginning of a key.
func encodePrefix(prefix string) string {
	var b strings.Builder
	for i, segment := range strings.Split(prefix, "/") {
		if i > 0 {
			b.WriteByte('/')
		}
		if segment == "" && i < strings.Count(prefix, "/") {
			b.WriteByte('%')
		}
		for k := range len(segment) {
			if c := segment[k]; strings.IndexByte(plainBytes, c) < 0 || c == '.' && k == 0 {
				fmt.Fprintf(&b, "%%%02X", c)
			} else {
				b.WriteByte(c)
			}
		}
	}
	return b.String()
}

// decodeName is the reverse of encodeName. It returns false for what encodeName does not write.
func decodeName(text string) (string, bool) {
	segments := strings.Split(text, "/")
	for i, s := range segments {
		if s == "%" {
			segments[i] = ""
			continue
		}
		plain, err := url.PathUnescape(s)
		if err != nil {
			return "", false
		}
		segments[i] = plain
	}
	name := strings.Join(segments, "/")
	return name, name != "" && encodeName(name) == text
}

// lockDir starts the keys of a lock's claims.
func (t *nodeStore) lockDir(name string) string {
	return t.opts.Prefix + encodeName(name) + claimFolder
}

// gateKey is the key of a session's gate. Every add checks the gate's last known index, and Withdraw changes it. So an
// add that is delayed until after a Withdraw fails. One key per session is enough: an add of another claim that fails
// as well is repeated with the new index. The gate belongs to the session and goes with it, as do the adds that it
// bars.
func (t *nodeStore) gateKey(session string) string {
	return t.opts.Prefix + reservedFolder + "gates/" + session
}

// breakNoteKey is the key of the note that a claim was broken.
func (t *nodeStore) breakNoteKey(id string) string {
	return t.opts.Prefix + reservedFolder + "broken/" + encodeName(id)
}

// claimKey is a claim's key within its lock.
func claimKey(session string, number int64) string {
	return session + "." + strconv.FormatInt(number, 10)
}

// parseNode reads a key of a lock, whose directory is dir bytes long. It returns false for keys that are not claims. A
// claim always has a session: without one, its key would stay when its client has died.
func parseNode(kv *api.KVPair, dir int) (sequence.Node, bool) {
	key := kv.Key[min(dir, len(kv.Key)):]
	if kv.Session == "" || key == "" || strings.Contains(key, "/") {
		return sequence.Node{}, false
	}
	n := sequence.Node{Key: key, Token: int64(kv.CreateIndex), Version: int64(kv.ModifyIndex), Session: kv.Session}
	// A value that somebody else has written still counts, as an exclusive claim.
	n.Payload, n.Foreign = parsePayload(kv.Value)
	return n, true
}

// parsePayload reads what a claim says of itself.
func parsePayload(value []byte) (p sequence.Payload, foreign bool) {
	if json.Unmarshal(value, &p) != nil || p.ID == "" || p.Limit < 1 || p.Weight < 1 || p.Weight > p.Limit {
		return sequence.Payload{}, true
	}
	return p, false
}

func formatPayload(p sequence.Payload) ([]byte, error) {
	value, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return value, nil
}

// newSnapshot makes a snapshot of one lock's keys, in the order in which they were made. Consul's replies say nothing
// of the index of the whole store. The largest index in them serves as well: what comes later has a larger one.
func newSnapshot(name string, pairs api.KVPairs, dir int) sequence.Snapshot {
	l := sequence.Snapshot{Name: name, Revision: 1, Full: true}
	for _, kv := range pairs {
		if n, ok := parseNode(kv, dir); ok {
			l.Nodes = append(l.Nodes, n)
			l.Revision = max(l.Revision, n.Version)
		}
	}
	slices.SortFunc(l.Nodes, func(a, b sequence.Node) int { return cmp.Compare(a.Token, b.Token) })
	return l
}
