// Package driverutil has tools for those who build a store: package driver is the contract, this is what helps to keep
// it.
//
//   - Package storeurl, below this one, declares the store's URLs and reads them, and [RedactURL] shows one without its
//     secrets.
//   - [Secret] and [TLSOptions] are the passwords, tokens and certificates of the URL, which are read from their files
//     again for each connection, and [Admission] knows for how long a refusal of them may pass.
//   - [CallWithTimeout] gives up one request that hangs, and [Outage] measures for how long a store has not answered.
//   - [IsFinal] and [Uncertain] tell errors apart: those that say what is so, and those after which nothing is known.
//     [RefuseStore] makes one of the first kind.
//   - [CheckLayout], [OnlyUnfairMutexes], [LackPermission] and [RefuseWithoutTLS] say the same thing in the same words for
//     all stores, and [FindSimilar] finds what was probably meant by a mistyped word.
//   - [RetryLoop] repeats a request until its outcome is known or the store has been unreachable for too long.
//   - [Batcher] sends requests that are made at the same time together.
//   - [WithDialer] makes a store connect in another way, and [DialerOf] is what the store asks.
//   - Package httpclient, below this one, is for services that speak HTTP.
//   - [Shared] keeps once what is equal in many locks.
//   - [Lifetime] ends a store's calls when it is closed, and waits for its goroutines.
//
// No store has to use any of it.
//
// # Decisions
//
// etcd and ZooKeeper: writes are batched (driverutil.Batcher). A few writes are in flight at a time. Those that come
// meanwhile are sent as one transaction, on which the members agree once. All nodes that one etcd transaction makes
// have the same revision, so it contains at most one claim per lock. A transaction is applied as a whole or not at all,
// so writes that were refused together are repeated one by one, and the refusal says nothing of each: a session of one
// of them may have ended. One refusal of etcd's does not even say that nothing was done. A member that finds the quota
// used up as it applies a transaction applies it, and then answers that there is no space. So after that answer the
// keys are read, as after a lost reply. A claim behind others of its client waits a millisecond for another write to be
// sent with; on a busy lock that is the next release, which halves the requests. Rejected: a release that makes the
// next claim of the same lock in its own step; each client would have to wait for the other.
package driverutil
