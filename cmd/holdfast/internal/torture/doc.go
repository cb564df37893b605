// Package torture puts a store under faults and judges what its locks did: the subcommand torture of the command.
//
// [Run] starts worker processes. Each reaches the store through a link of its own, which Run can cut, delay and reset.
// Workers contend for a few locks of each kind; Run stops them, kills and restarts them, and shifts their clocks. Each
// worker tells what it does in lines of JSON, with times of one clock that all processes of a machine share.
//
// What is judged is for how long each holder believed that the lock was its own. A holder reads the clock, then calls
// Valid, and if that reports true, it believed so at the time that was read. It keeps the latest such time in shared
// memory, so that the time is known even if the process is killed. A process that is stopped between two of these steps
// believes nothing on which it could have acted.
//
// The judge needs no search, because tokens order the grants: see judge.go. For exclusive locks, windows of the history
// are also checked for linearizability, by a library that knows nothing of tokens.
package torture
