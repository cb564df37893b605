// Package lockall has processes contend for a few locks, of which each process takes several at a time in any order.
// It checks that there is no deadlock, that every process makes progress, and that no lock has two holders.
package lockall
