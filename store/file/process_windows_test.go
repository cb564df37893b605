package file

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/holdfast-go/holdfast/driver"
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

// TestWindowsUntrustedDirectory: files, and directories that others can write in, are refused with ErrDenied.
func TestWindowsUntrustedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	everybody, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := everybody.DACL()
	if err != nil {
		t.Fatal(err)
	}
	err = windows.SetNamedSecurityInfo(open, windows.SE_FILE_OBJECT,
		windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, list, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"open", "file"} {
		if _, err := openTable(t.Context(), filepath.Join(dir, bad), nil); !errors.Is(err, driver.ErrDenied) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	openTest(t, filepath.Join(dir, "new")) // is made for this user alone
}
