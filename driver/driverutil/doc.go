// Package driverutil has tools for those who build a store: package driver is the contract, this is what helps to keep
// it.
//
//   - [ParseOptions] and [RedactURL] read the store's URL and show it without its secrets.
//   - [Secret] and [TLSOptions] are the passwords, tokens and certificates of the URL, which are read from their files
//     again for each connection, and [Admission] knows for how long a refusal of them may pass.
//   - [CallWithTimeout] gives up one request that hangs, and [Outage] measures for how long a store has not answered.
//   - [IsFinal] and [Uncertain] tell errors apart: those that say what is so, and those after which nothing is known.
//     [RefuseStore] makes one of the first kind.
//   - [RetryLoop] repeats a request until its outcome is known or the store has been unreachable for too long.
//   - [Batcher] sends requests that are made at the same time together.
//   - [WithDialer] makes a store connect in another way, and [DialerOf] is what the store asks.
//   - Package httpclient, below this one, is for services that speak HTTP.
//   - [Shared] keeps once what is equal in many locks.
//   - [Lifetime] ends a store's calls when it is closed, and waits for its goroutines.
//
// No store has to use any of it.
package driverutil
