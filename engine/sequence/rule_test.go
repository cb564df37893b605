package sequence

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// parseLine makes nodes of a short form: "m" is a mutex, "r" a reader, "w" a writer, "3/5" weighs 3 of a semaphore's 5,
// "f" is foreign.
func parseLine(form string) (nodes []Node) {
	for i, s := range strings.Fields(form) {
		n := Node{Key: fmt.Sprint(i), Token: int64(i + 1), Session: "s"}
		n.ID = fmt.Sprint("id", i)
		switch s {
		case "m":
			n.Kind, n.Limit, n.Weight = driver.KindMutex, 1, 1
		case "r":
			n.Kind, n.Limit, n.Weight = driver.KindRW, driver.RWLimit, 1
		case "w":
			n.Kind, n.Limit, n.Weight = driver.KindRW, driver.RWLimit, driver.RWLimit
		case "f":
			n.Foreign, n.Payload = true, Payload{}
		default:
			n.Kind = driver.KindSemaphore
			fmt.Sscanf(s, "%d/%d", &n.Weight, &n.Limit)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// TestRule: who is granted, whom a waiter waits for (a node's index, or * for the going of any), and who must wake
// the one behind it.
func TestRule(t *testing.T) {
	t.Parallel()
	for form, want := range map[string]struct{ in, blockers, wakes string }{
		"m":                   {"0", "-", ""},
		"m m m":               {"0", "- 0 1", ""},
		"f m":                 {"0", "- 0", ""},
		"m f m":               {"0", "- - 1", ""},
		"r r w r r":           {"0 1", "- - 1 2 2", ""},
		"w r r w r":           {"0", "- 0 0 2 3", ""},
		"w w r":               {"0", "- 0 1", ""},
		"2/2 1/2 1/2":         {"0", "- * 1", "1"},
		"1/3 1/3 3/3 1/3 1/3": {"0 1", "- - 1 2 3", "2 3"},
		"2/3 2/3 1/3":         {"0", "- * 1", "1"},
		"f 1/3 1/3":           {"0", "- * 1", "1"},
		"m 1/3 1/3":           {"0", "- * 1", "1"}, // of another kind: it excludes
		"1/3 m":               {"0", "- 0", ""},
		"1/3 1/5":             {"0", "- *", ""},
	} {
		nodes := parseLine(form)
		var in, blockers, wakes []string
		for i := range nodes {
			b := "-"
			if nodes[i].Foreign {
				if i < countGranted(nodes) {
					in = append(in, fmt.Sprint(i))
				}
			} else if isGranted(nodes, i) {
				in = append(in, fmt.Sprint(i))
			} else if b = findBlocker(nodes, i); b == WatchRemovals {
				b = "*"
			}
			blockers = append(blockers, b)
			if !nodes[i].Foreign && !isGranted(nodes, i) && mustMarkAdmitted(nodes, i) {
				wakes = append(wakes, fmt.Sprint(i))
			}
		}
		if got := strings.Join(in, " "); got != want.in {
			t.Errorf("%s: %s are granted, want %s", form, got, want.in)
		}
		if got := strings.Join(blockers, " "); got != want.blockers {
			t.Errorf("%s: they wait for %s, want %s", form, got, want.blockers)
		}
		if got := strings.Join(wakes, " "); got != want.wakes {
			t.Errorf("%s: %s wake the next, want %s", form, got, want.wakes)
		}
	}
}

// TestRuleExhaustive: over all lines of up to six claims, what is granted fits in the limit, is a beginning of the
// line, and stays granted whoever leaves; and whatever lets a waiter in is something that it waits for, or that wakes
// it.
func TestRuleExhaustive(t *testing.T) {
	t.Parallel()
	kinds := map[string][]string{"semaphore": {"1/3", "2/3", "3/3"}, "rw": {"r", "w"}, "mutex": {"m", "f"},
		"mixed": {"m", "1/3", "2/3", "f"}}
	lines := 0
	for _, alphabet := range kinds {
		var grow func(form []string)
		grow = func(form []string) {
			if len(form) > 0 {
				lines++
				checkLine(t, parseLine(strings.Join(form, " ")), strings.Join(form, " "))
			}
			if len(form) < 6 && !t.Failed() {
				for _, a := range alphabet {
					grow(append(form[:len(form):len(form)], a))
				}
			}
		}
		grow(nil)
	}
	t.Logf("%d lines", lines)
}

func checkLine(t *testing.T, nodes []Node, form string) {
	var in []bool
	last := -1
	for i := range nodes {
		ok := !nodes[i].Foreign && isGranted(nodes, i)
		in = append(in, ok)
		if ok {
			last = i
		}
	}
	if last >= 0 { // by the last one's own measure, all up to it are in together
		var sum int64
		for k := range nodes[:last+1] {
			sum += effectiveWeight(&nodes[k], nodes[last].Kind, nodes[last].Limit)
		}
		if sum > nodes[last].Limit {
			t.Errorf("%s: %d of %d are granted", form, sum, nodes[last].Limit)
		}
	}
	for gone := range nodes {
		left := append(append([]Node{}, nodes[:gone]...), nodes[gone+1:]...)
		for i := range left {
			was := i
			if i >= gone {
				was++
			}
			now := !left[i].Foreign && isGranted(left, i)
			if in[was] && !now {
				t.Errorf("%s without %d: %d was granted and is not", form, gone, was)
			}
			if now && !in[was] {
				checkWaiterWakes(t, nodes, left, gone, was, i, form)
			}
		}
	}
}

// checkWaiterWakes: was, at i now, fits since another has gone. It hears of that itself, or from the one before it,
// which was let in by the same going.
func checkWaiterWakes(t *testing.T, nodes, left []Node, gone, was, i int, form string) {
	b := findBlocker(nodes, was)
	hears := b == WatchRemovals || b == nodes[gone].Key
	told := i > 0 && was-1 != gone && b == nodes[was-1].Key && isGranted(left, i-1) && mustMarkAdmitted(left, i-1)
	if !hears && !told {
		t.Errorf("%s without %d: %d is let in and not told; it waits for %q", form, gone, was, b)
	}
}

// TestOwnNode: a node with the claim's id under another session is not the claim's own.
func TestOwnNode(t *testing.T) {
	t.Parallel()
	nodes := parseLine("m m")
	nodes[1].Session = "old"
	if findOwn(nodes, "id0", "s") != 0 || findOwn(nodes, "id1", "s") != -1 || findOwn(nodes, "id1", "old") != 1 ||
		findOwn(nodes, "id2", "s") != -1 {
		t.Error("the wrong node is taken for one's own")
	}
}

// TestRef: a ref names a node and its token, and what is none is refused.
func TestRef(t *testing.T) {
	t.Parallel()
	if key, token, err := parseRef(formatRef(Node{Key: "694d.7", Token: 255})); key != "694d.7" || token != 255 ||
		err != nil {
		t.Error(key, token, err)
	}
	for _, bad := range []string{"", "@", "a@", "@1", "a@0", "a@-1", "a@x", "a"} {
		if _, _, err := parseRef(bad); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
