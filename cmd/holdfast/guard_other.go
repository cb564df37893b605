//go:build unix && !linux

package main

import "os"

func ownProgram() (string, error) { return os.Executable() }

func nameProcess(string) {}
