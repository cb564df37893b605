package main

import "testing"

// TestCodeMapping: of the lines of /proc/self/maps, only those of the program's code count.
func TestCodeMapping(t *testing.T) {
	t.Parallel()
	const program = "/usr/bin/hold fast"
	for _, c := range []struct {
		line       string
		from, size uintptr
	}{
		{"00400000-010ed000 r-xp 00000000 fd:00 1837   /usr/bin/hold fast", 0x400000, 0xced000},
		{"010ed000-01ff5000 r--p 00ced000 fd:00 1837   /usr/bin/hold fast", 0, 0},
		{"01ff5000-020a3000 rw-p 01bf5000 fd:00 1837   /usr/bin/hold fast", 0, 0},
		{"00400000-00401000 r-xp 00000000 fd:00 1838   /usr/lib/libc.so.6", 0, 0},
		{"7ffd-7ffc r-xp 00000000 fd:00 1837   /usr/bin/hold fast", 0, 0},
		{"x-y r-xp 00000000 fd:00 1837   /usr/bin/hold fast", 0, 0},
		{"7ffd1000-7ffd2000 r-xp 00000000 00:00 0      [vdso]", 0, 0},
		{"", 0, 0},
	} {
		from, size, ok := codeMapping(c.line, program)
		if from != c.from || size != c.size || ok != (c.size > 0) {
			t.Errorf("%q: %x, %x, %v", c.line, from, size, ok)
		}
	}
}
