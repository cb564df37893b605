package file

import "testing"

// TestVersionRun: of the versions that may be recycled, those up to the first gap are kept, and are taken one by one,
// the lowest first.
func TestVersionRun(t *testing.T) {
	for _, c := range []struct {
		versions []version
		want     int
	}{
		{nil, 0},
		{[]version{{"a", 0}}, 1},
		{[]version{{"a", 2}, {"a", 3}, {"a", 4}}, 3},
		{[]version{{"a", 2}, {"a", 4}}, 1},
		{[]version{{"a", 2}, {"b", 3}}, 1},
	} {
		var taken []version
		for r := runOf(c.versions); !r.isEmpty(); r = r.afterLowest() {
			taken = append(taken, r.lowest())
		}
		if len(taken) != c.want {
			t.Errorf("of %v, %v are taken", c.versions, taken)
		}
		for i, v := range taken {
			if v != c.versions[i] {
				t.Errorf("of %v, %v are taken", c.versions, taken)
			}
		}
	}
}
