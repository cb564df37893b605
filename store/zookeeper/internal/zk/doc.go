// Package zk is the part of ZooKeeper's client protocol that locks need: sessions, requests, transactions and
// watches. It knows nothing of locks.
//
// An [Ensemble] describes the servers. A [Conn] is one session with them, over one link at a time. A request is a
// [Call]: it is made by a function such as [GetData] or [Multi], sent by [Conn.Do], [Conn.Retry] or [Conn.Write],
// and then holds its answer. A [Watcher] is notified of changes for as long as the session of its Conn exists.
//
// Unlike the usual Go client, it takes contexts, never sends a request again in another session, and returns the
// transaction that created a node, which is a lock's fencing token.
//
// # Requests
//
// A request has one of three outcomes. It was carried out or refused: its Err says which. It was never sent: the
// method returns the end of its context, with the reason why no server could be used. Or its link broke, or its
// context ended, after it was sent: then nobody knows, and [Call.WasSent] is true. A later request of the same
// session settles that: the servers carry out the requests of a session in the order in which they were sent, so
// what its answer does not show will not happen.
//
// # Reads
//
// A server answers reads from its own copy, which may be behind. [Ensemble.LastSeen] is the last transaction that
// any connection has seen; an answer with a smaller [Call.Zxid] is older. A [Barrier] before a read makes the
// server catch up first.
//
// # Sessions
//
// A session ends when its servers have heard nothing from it for its TTL, when it is closed, or when no server
// will keep it for its TTL any more. Everybody who relies on the session's nodes has to count the TTL from the
// start of a request that the quorum has confirmed. That is the owner's part: a Conn only keeps a link to some
// server. When a session ends, Config.SessionEnded is called, then the Lost of each watcher, and all further calls
// return [ErrSessionExpired] or the reason why the servers refuse us.
//
// # Locks and goroutines
//
// [Conn.Run] is one goroutine per session. Each link has a second one, which writes. The done function of a Call
// and the methods of an Owner are called by the goroutine that reads, without any lock held: they must not block,
// and may call any method that does not wait for an answer. Conn.mu may be held while link.mu is taken, never the
// other way.
package zk
