package sequence

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// parseQueue makes nodes from a short form: "m" is a mutex, "r" a reader, "w" a writer, "3/5" has weight 3 of a
// semaphore's 5. Foreign are "f", a reader "fr", a writer "fw" that ignores mutexes, and "fx" that ignores all others.
func parseQueue(form string) (nodes []Node) {
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
		case "fr":
			n.Foreign, n.Payload = true, Payload{Kind: driver.KindRW, Limit: driver.RWLimit, Weight: 1}
		case "fw":
			n.Foreign, n.Payload = true, Payload{Kind: driver.KindRW, Limit: driver.RWLimit, Weight: driver.RWLimit}
			n.KindConflictHint = "use another layout"
		case "fx":
			n.Foreign, n.Payload, n.KindConflictHint = true, Payload{}, "use another layout"
		default:
			n.Kind = driver.KindSemaphore
			fmt.Sscanf(s, "%d/%d", &n.Weight, &n.Limit)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// TestRule: which nodes are granted, which node each waiter watches (its index, or * for the removal of any node), and
// which waiters must notify the one behind them.
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
		"m 1/3 1/3":           {"0", "- * 1", "1"}, // a node of another kind excludes the others
		"1/3 m":               {"0", "- 0", ""},
		"1/3 1/5":             {"0", "- *", ""},
	} {
		nodes := parseQueue(form)
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
			t.Errorf("%s: they watch %s, want %s", form, got, want.blockers)
		}
		if got := strings.Join(wakes, " "); got != want.wakes {
			t.Errorf("%s: %s notify the next, want %s", form, got, want.wakes)
		}
	}
}

// TestRuleExhaustive: in all queues of up to six claims, the granted claims fit within the limit, are the first ones of
// the queue, and remain granted when any claim is removed. A waiter that becomes granted by a removal watches it, or is
// notified by the one before it.
func TestRuleExhaustive(t *testing.T) {
	t.Parallel()
	kinds := map[string][]string{"semaphore": {"1/3", "2/3", "3/3"}, "rw": {"r", "w"}, "mutex": {"m", "f"},
		"mixed": {"m", "1/3", "2/3", "f"}}
	queues := 0
	for _, alphabet := range kinds {
		var grow func(form []string)
		grow = func(form []string) {
			if len(form) > 0 {
				queues++
				checkQueue(t, parseQueue(strings.Join(form, " ")), strings.Join(form, " "))
			}
			if len(form) < 6 && !t.Failed() {
				for _, a := range alphabet {
					grow(append(form[:len(form):len(form)], a))
				}
			}
		}
		grow(nil)
	}
	t.Logf("%d queues", queues)
}

// TestShownKindIsAccepted: in all queues of up to four claims of ours and of foreign clients, a claim of the kind that
// Inspect shows is not refused for its kind, unless every kind is.
func TestShownKindIsAccepted(t *testing.T) {
	t.Parallel()
	claims := map[driver.Kind]*driver.Claim{driver.KindMutex: {ID: "new", Kind: driver.KindMutex, Limit: 1, Weight: 1},
		driver.KindRW: {ID: "new", Kind: driver.KindRW, Limit: driver.RWLimit, Weight: driver.RWLimit}}
	refused := 0
	var grow func(form []string)
	grow = func(form []string) {
		nodes := parseQueue(strings.Join(form, " "))
		accepted := map[driver.Kind]bool{}
		for kind, c := range claims {
			accepted[kind] = checkMismatch(nodes, c) == nil
		}
		if shown, _ := kindAndLimit(nodes); len(form) > 0 && accepted[driver.KindMutex] != accepted[driver.KindRW] {
			if refused++; !accepted[shown] {
				t.Errorf("%q is shown as %s, and refuses it", form, shown)
			}
		}
		if len(form) < 4 && !t.Failed() {
			for _, next := range []string{"m", "r", "w", "f", "fr", "fw", "fx"} {
				grow(append(form[:len(form):len(form)], next))
			}
		}
	}
	grow(nil)
	if refused == 0 {
		t.Error("no queue refuses one of two kinds")
	}
	for form, want := range map[string]driver.Kind{"f": driver.KindMutex, "fr": driver.KindRW, "f fr": driver.KindRW,
		"fr fr": driver.KindRW, "fx": driver.KindMutex, "fr m": driver.KindMutex} {
		if kind, _ := kindAndLimit(parseQueue(form)); kind != want {
			t.Errorf("%s: a %s, want %s", form, kind, want)
		}
	}
	if n := countGranted(parseQueue("fr fr fw")); n != 2 {
		t.Errorf("%d of two foreign readers hold the lock", n)
	}
}

func checkQueue(t *testing.T, nodes []Node, form string) {
	var in []bool
	last := -1
	for i := range nodes {
		ok := !nodes[i].Foreign && isGranted(nodes, i)
		in = append(in, ok)
		if ok {
			last = i
		}
	}
	if last >= 0 { // by the limit of the last granted claim, all up to it hold the lock together
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
				t.Errorf("%s without %d: %d was granted, and is not any more", form, gone, was)
			}
			if now && !in[was] {
				checkWaiterWakes(t, nodes, left, gone, was, i, form)
			}
		}
	}
}

// checkWaiterWakes checks a waiter, at was before and at i now, that is granted because another claim was removed. It
// must be notified by its own watch, or by the waiter before it that was granted by the same removal.
func checkWaiterWakes(t *testing.T, nodes, left []Node, gone, was, i int, form string) {
	b := findBlocker(nodes, was)
	watches := b == WatchRemovals || b == nodes[gone].Key
	isNotified := i > 0 && was-1 != gone && b == nodes[was-1].Key && isGranted(left, i-1) && mustMarkAdmitted(left, i-1)
	if !watches && !isNotified {
		t.Errorf("%s without %d: %d is granted, but not notified; it watches %q", form, gone, was, b)
	}
}

// TestOwnNode: a node with the claim's id under another session is not the claim's own.
func TestOwnNode(t *testing.T) {
	t.Parallel()
	nodes := parseQueue("m m")
	nodes[1].Session = "old"
	if findOwn(nodes, "id0", "s") != 0 || findOwn(nodes, "id1", "s") != -1 || findOwn(nodes, "id1", "old") != 1 ||
		findOwn(nodes, "id2", "s") != -1 {
		t.Error("findOwn returned another node")
	}
}

// TestRef: a ref names a node and its token, and an invalid ref is refused.
func TestRef(t *testing.T) {
	t.Parallel()
	if key, token, err := parseRef(FormatRef("694d.7", 255)); key != "694d.7" || token != 255 ||
		err != nil {
		t.Error(key, token, err)
	}
	for _, bad := range []string{"", "@", "a@", "@1", "a@0", "a@-1", "a@x", "a"} {
		if _, _, err := parseRef(bad); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestSupersededByRule: of the claims that are newest-only, those give up that have a waiting one behind them. The
// last one never does, nor do foreign claims, and one without the mark takes no part.
func TestSupersededByRule(t *testing.T) {
	for _, c := range []struct {
		queue string
		marks string // '+': the node is newest-only
		want  string // '+': it gives up, if it has waited
	}{
		{"m m", "-+", "--"},
		{"m m m", "-++", "-+-"},
		{"m m m m", "-+-+", "-+--"},
		{"m m m m", "-+++", "-++-"},
		{"m m", "++", "+-"}, // its turn has come after a wait
		{"1/2 1/2", "++", "--"},
		{"1/2 1/2 1/2", "+++", "++-"},
		{"m m f", "-++", "---"},
	} {
		nodes := parseQueue(c.queue)
		for i := range nodes {
			if c.marks[i] == '+' {
				nodes[i].ID = driver.MarkNewestOnly(nodes[i].ID + "0123456789")
			}
		}
		got := ""
		for i := range nodes {
			got += map[bool]string{true: "+", false: "-"}[isSuperseded(nodes, i)]
		}
		if got != c.want {
			t.Errorf("%s, marked %s: %s, want %s", c.queue, c.marks, got, c.want)
		}
	}
}
