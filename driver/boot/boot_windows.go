package boot

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// ID returns the id of the present boot of the machine: when that was, in units of 100 ns, as the kernel noted it then.
// A machine without a battery may boot at the same time again, so the number of the boot is part of it, where the
// machine counts them.
func ID() (string, error) {
	var info struct {
		bootTime, now, zoneBias int64
		zoneID, reserved        uint32
		bootBias, sleepBias     uint64
	}
	const systemTimeOfDayInformation = 3
	err := windows.NtQuerySystemInformation(systemTimeOfDayInformation, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)),
		nil)
	if err != nil {
		return "", fmt.Errorf("the id of this boot cannot be read: %w", err)
	}
	return fmt.Sprintf("%x-%x", info.bootTime, bootNumber()), nil
}

// bootNumber returns how often the machine was booted; 0 where it does not count.
func bootNumber() uint64 {
	const path = `SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters`
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE)
	if err != nil {
		return 0
	}
	defer key.Close()
	number, _, _ := key.GetIntegerValue("BootId")
	return number
}

// ClockShift returns how far this process's boot clock is ahead of the kernel's own. On this system all processes
// share one.
func ClockShift() (time.Duration, error) { return 0, nil }
