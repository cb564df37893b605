package main

import "os"

// ownProgram is this program, whatever has become of its file meanwhile: an upgrade may have replaced it.
func ownProgram() (string, error) {
	const path = "/proc/self/exe"
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return os.Executable()
}

// nameProcess gives a process of ours its name in ps and top, which show that of the file otherwise, "exe".
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }
