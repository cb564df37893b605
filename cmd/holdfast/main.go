package main

import "os"

func main() {
	switch os.Args[0] { // the helper processes are this binary, started under another name: see doc.go
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
