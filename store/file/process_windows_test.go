package file

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

func init() {
	if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
		neededFlags = 0 // Wine keeps the names of removed files that are open
	}
}

func runMember(string, []string) error { return errors.ErrUnsupported }

func stopProcess(p *os.Process) { callForProcess("NtSuspendProcess", p) }

func continueProcess(p *os.Process) { callForProcess("NtResumeProcess", p) }

func callForProcess(call string, p *os.Process) {
	_ = p.WithHandle(func(handle uintptr) {
		_, _, _ = windows.NewLazySystemDLL("ntdll.dll").NewProc(call).Call(handle)
	})
}
