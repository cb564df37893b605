// Command holdfast runs commands under a lock, and shows and breaks the locks of a store.
package main

import "os"

func main() {
	switch os.Args[0] {
	case guardName:
		os.Exit(runGuard(os.Args[1:]))
	case listenerName:
		os.Exit(runListener())
	}
	code, signal := executeCommand(os.Args[1:])
	if signal != 0 {
		dieBySignal(signal)
	}
	os.Exit(code)
}
