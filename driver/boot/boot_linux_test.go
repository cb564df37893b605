package boot

import (
	"testing"
	"time"
)

func TestParseShift(t *testing.T) {
	t.Parallel()
	d, err := parseShift([]byte("monotonic          1         0\nboottime      -86400 500000000\n"))
	if err != nil || d != -24*time.Hour+500*time.Millisecond {
		t.Error(d, err)
	}
	if _, err := parseShift([]byte("nothing")); err == nil {
		t.Error("nonsense was parsed")
	}
}
