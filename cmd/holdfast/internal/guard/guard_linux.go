package guard

import "os"

// OwnProgram is the path of the running binary, even if its file has been replaced by an upgrade meanwhile: the helper
// processes must understand the same messages.
func OwnProgram() (string, error) {
	const path = "/proc/self/exe"
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return os.Executable()
}

// NameProcess sets the name that ps and top show for this process. Otherwise it would be "exe", the last part of
// OwnProgram's path.
func NameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }
