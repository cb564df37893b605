// Package zk is the part of ZooKeeper's client protocol that locks need: sessions, requests, transactions and
// watches. It knows nothing of locks.
//
// An [Ensemble] describes the servers. A [Conn] is one session with them, over one link at a time. A request is a
// [Call]: it is made by a function such as [GetData] or [Multi], sent by [Conn.Do], [Conn.Retry] or [Conn.Write],
// and then holds its answer. A [Watcher] is notified of changes for as long as the session of its Conn exists.
//
// Unlike the usual Go client, it takes contexts, never sends a request again in another session, and returns the
// transaction that created a node, which is a lock's fencing token.
package zk
