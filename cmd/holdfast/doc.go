// Command holdfast runs commands under a lock, or once per key, and shows and breaks the locks of a store.
//
// All of it is in package cli, which other programs can import, to add stores of their own. Package stores has the
// stores of this one.
package main
