// Package servertest runs servers for the tests of stores, and breaks the network between them and their clients. It is
// what the test kits next to the stores (etcdtest, zktest, redistest, pgtest, dynamodbtest) are made of, and it is for
// stores in other repositories as well.
//
//   - [FreePort] reserves a port of the loopback interface for a server, and [Listen] listens on one.
//   - [StartProcess] starts a process that does not outlive the test run, even if that is killed.
//   - A [Server] is the process of one server. Tests stop, continue, kill and restart it. A [Cluster] is several of
//     them, with the links between them.
//   - [BuildTool] builds a server from source, with the versions that a module pins.
//   - A [Link] is a TCP proxy in front of a server. Tests cut it, delay data, lose replies, and take a request out to
//     deliver it late. A [Net] is all links of one client.
//
// The package does not need package testing, so that it can be used in trials outside of go test as well. It makes no
// promise of compatibility between versions.
package servertest
