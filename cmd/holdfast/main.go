package main

import "os"

func main() {
	code, signal := executeCommand(os.Args[1:])
	if signal != 0 {
		dieBySignal(signal)
	}
	os.Exit(code)
}
