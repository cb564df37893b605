// Command holdfast runs commands under a lock, and shows and breaks the locks of a store.
package main

import "os"

func main() {
	if os.Args[0] == guardName {
		os.Exit(runGuard(os.Args[1:]))
	}
	os.Exit(execute(os.Args[1:]))
}
