// Package lockall sets processes upon a few locks that each of them takes several at a time, in any order, and looks for
// dead-locks, for those who get nowhere, and for two who hold one lock.
package lockall
