package zookeeper

import (
	"strings"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// The cache saves a request per node when a lock is listed. The names of the children say whose claims they are, but
// not which transactions created them, and these are the tokens. A node's name never comes again with another token,
// unless a foreign client chooses it, so what was read once stays true as long as the node exists; its owner's data
// may be older than the node's, which Read and a full List repair.

// nodeCache has nodes as they were read last.
type nodeCache struct {
	byPath map[string]*cachedNode
	terms  driverutil.Shared[nodeTerms]
	limit  int // at how many nodes those of other clients are removed
}

// cachedNode is a node as it was read last. There is one for each claim that is held, and it has 64 bytes, which is one
// of the sizes in which Go allocates.
type cachedNode struct {
	*nodeTerms
	pathRef   string // sequence.FormatRef of the path and the token: the path, the key and the ref are parts of it
	id        string
	token     int64
	version   int64
	createdAt int64
}

// nodeTerms is what a node has in common with others: all but what each cachedNode has of its own.
type nodeTerms sequence.Node

// node returns the node that was cached.
func (c *cachedNode) node() sequence.Node {
	n, path := sequence.Node(*c.nodeTerms), c.path()
	keyStart := strings.LastIndexByte(path, '/') + 1
	n.Key, n.Ref, n.ID = path[keyStart:], c.pathRef[keyStart:], c.id
	n.Token, n.Version, n.CreatedAt = c.token, c.version, c.createdAt
	return n
}

// path is the same string as the key in the cache.
func (c *cachedNode) path() string { return c.pathRef[:strings.LastIndexByte(c.pathRef, '@')] }

// put caches a node.
func (c *nodeCache) put(path string, n sequence.Node) {
	known := c.byPath[path]
	if known == nil || known.token != n.Token {
		known = &cachedNode{pathRef: sequence.FormatRef(path, n.Token)}
		delete(c.byPath, path) // else the map would keep the string that it had
		c.byPath[known.path()] = known
	}
	known.id, known.token, known.version, known.createdAt = n.ID, n.Token, n.Version, n.CreatedAt
	n.Key, n.Ref, n.ID, n.Token, n.Version, n.CreatedAt = "", "", "", 0, 0, 0
	known.nodeTerms = c.terms.Get((*nodeTerms)(&n))
}

// fillFromCache fills in what is cached of nodes.
func (t *nodeStore) fillFromCache(path string, all []claimNode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range all {
		if n := t.cache.byPath[path+"/"+all[i].Key]; n != nil {
			all[i].Node = n.node()
		}
	}
}

// minCacheLimit is how many nodes are cached before other clients' nodes are removed. Those of this client's own
// claims remain cached as long as they exist.
const minCacheLimit = 4096

// cacheNode caches a node as it was read. If it is one of this client's own and not cached, it was removed meanwhile:
// what was read before a removal must not bring it back.
func (t *nodeStore) cacheNode(path string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[n.Session] == nil || t.cache.byPath[path] != nil {
		t.cacheNodeLocked(path, n)
	}
}

// cacheOwnNode caches a node that this client has just created, or found to be its own.
func (t *nodeStore) cacheOwnNode(path string, n sequence.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cacheNodeLocked(path, n)
}

// cacheNodeLocked remembers a node, and removes nodes of ended sessions when there are too many.
func (t *nodeStore) cacheNodeLocked(path string, n sequence.Node) {
	// The limit is twice what could not be removed the last time. So the next removal, which looks at the whole cache,
	// comes only when the cache has doubled, and its cost per added node does not grow with the cache.
	if len(t.cache.byPath) >= max(t.cache.limit, minCacheLimit) {
		for p, o := range t.cache.byPath {
			if t.sessions[o.Session] == nil {
				delete(t.cache.byPath, p)
			}
		}
		t.cache.limit = 2 * len(t.cache.byPath)
	}
	t.cache.put(path, n)
}

// nodePath is the path of a node. For each claim that is held there is a watch, which shares the string with the cache
// and with the holder's ref.
func (t *nodeStore) nodePath(name, key string) string {
	path := t.pathOf(name) + "/" + key
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.cache.byPath[path]; n != nil {
		return n.path()
	}
	return path
}

func (t *nodeStore) uncacheNode(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.cache.byPath, path)
	delete(t.secondNodes, path)
}

// noteSecondNode remembers the second node of a claim of this client's own.
func (t *nodeStore) noteSecondNode(path, second string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.secondNodes[path] = second
}

// secondNodesOf returns the paths of the second nodes, empty for paths that have none.
func (t *nodeStore) secondNodesOf(paths []string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	seconds := make([]string, len(paths))
	for i, path := range paths {
		seconds[i] = t.secondNodes[path]
	}
	return seconds
}

// forgetNodes removes what is kept of nodes that do not exist any more.
func (t *nodeStore) forgetNodes(path string, keys ...string) {
	for _, key := range keys {
		t.uncacheNode(path + "/" + key)
		if c, ok := parseKey(key); ok {
			t.forgetReAdded(claimKey{c.Session, c.ID})
		}
	}
}
