package main

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseStartPages takes from this process the pages of its code, most of which only its start has used: the packages
// of all stores and their libraries are initialized then. What is used again is mapped again, without a read as long as
// the kernel has the file in its cache. Without this, a program that waits for hours would hold twice as much memory.
//
// Only code is released, because it is the same in the file and in memory, however the program was built. (That is not
// true of a debugger's breakpoints, which must be set after this.) The guard does not do this: it must not have to read
// its file when the time has come to end the command.
func releaseStartPages() {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if from, size, ok := codeMapping(lines.Text(), program); ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, size, unix.MADV_DONTNEED)
		}
	}
}

// codeMapping parses a line of /proc/self/maps: FROM-TO PERMISSIONS OFFSET DEVICE INODE PATH. It returns the mapping if
// it is one of the program's code, which cannot be written.
func codeMapping(line, program string) (from, size uintptr, ok bool) {
	fields := strings.SplitN(line, " ", 3)
	if len(fields) != 3 || fields[1] != "r-xp" || !strings.HasSuffix(fields[2], " "+program) {
		return 0, 0, false
	}
	first, last, _ := strings.Cut(fields[0], "-")
	begin, err1 := strconv.ParseUint(first, 16, strconv.IntSize)
	end, err2 := strconv.ParseUint(last, 16, strconv.IntSize)
	if err1 != nil || err2 != nil || end <= begin {
		return 0, 0, false
	}
	return uintptr(begin), uintptr(end - begin), true
}
