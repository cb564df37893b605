//go:build unix && !linux

package main

import "os"

func ownProgram() (string, error) { return os.Executable() }

// nameProcess does nothing: there is no call for it that all these systems have.
func nameProcess(string) {}
