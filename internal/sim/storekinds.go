package sim

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/memory"
)

// kind is a kind of store that misbehaves as some real ones do, apart from losing and delaying messages.
type kind string

// Each simulation of [RunKind] has a store of one kind.
const (
	undurable kind = "undurable" // writes can be read before they are durable, and are lost in a failover
	stepped   kind = "stepped"   // the store's clock is set forward and back
	astray    kind = "astray"    // single replies have a time that is far ahead
	stale     kind = "stale"     // some reads are old; an operator breaks claims
	crowded   kind = "crowded"   // more clients wait than are allowed; an operator removes all waiters of a lock
	silent    kind = "silent"    // the store answers nothing for a while, or denies everything; the TTLs are long
	broken    kind = "broken"    // an operator breaks claims
	lowered   kind = "lowered"   // the store keeps its sessions for a shorter time than it promised
	paired    kind = "paired"    // there are two stores, and users take locks of both at once, some with a MinHold
)

// kinds are simulated with the record engine, treeKinds with the sequence engine.
var (
	kinds     = []kind{undurable, stepped, astray, stale, crowded, silent, broken, paired}
	treeKinds = []kind{crowded, broken, lowered}
)

// prepareKind sets the simulation up for its kind.
func (sim *simulation) prepareKind() {
	sim.timeScale, sim.usersPerHost = sim.ttl, defaultUsersPerHost
	if sim.kind == "" {
		return
	}
	sim.faultless = false
	switch sim.kind {
	case undurable:
		sim.revertible, sim.notifies = &revertibleTable{Table: sim.memory.Table(), rows: map[string]record.Row{}}, false
	case crowded:
		sim.faultless = sim.chance(0.3)
		sim.usersPerHost, sim.turns, sim.maxWaiters = 6, []string{"fair", "semaphore"}, 2+int(sim.randomFloat()*17)
	case stepped:
		sim.clockOffsets = []int{0}
	case silent:
		// Nothing expires while the store is silent. A longer TTL would only cost time at the end, when claims that
		// were left behind expire one after the other while others wait: hours in which the waiters poll.
		sim.timeScale, sim.ttl = 3*time.Second, 5*time.Minute
		sim.turns = []string{"plain", "fair", "rw", "semaphore"}
	case paired:
		sim.faultless = sim.chance(0.3)
		sim.turns = []string{"plain", "fair", "rw", "semaphore", "all", "all", "all", "all"}
		clock := newHost(sim, "second store").newClock()
		sim.second = memory.New(&memory.Options{Clock: clock, Unclocked: sim.chance(0.5)})
		if sim.chance(0.2) {
			sim.second = sim.memory // two clients of one store
		}
	}
}

// pair gives a host's machine a client of the second store. Each host knows the two stores by addresses of its own, so
// there is no order of the stores that is the same on all hosts.
func (h *host) pair() {
	h.second = &host{machine: h.machine, name: h.name, sim: h.sim, inSecond: true, address: "2"}
	h.address = strconv.Itoa(1 + 2*int(2*h.sim.randomFloat()))
}

// clientOf returns the client with which a host takes a lock. In a paired simulation two of the locks are in the second
// store.
func (h *host) clientOf(name string) *holdfast.Client {
	if h.second != nil && (name == "rw" || name == "semaphore") {
		return h.second.client
	}
	return h.client
}

// clients returns the clients of a host's machine.
func (h *host) clients() []*holdfast.Client {
	if h.second != nil {
		return []*holdfast.Client{h.client, h.second.client}
	}
	return []*holdfast.Client{h.client}
}

// runAtTree carries out one request, and notes for the checker which nodes it has removed. Only a claim's own client
// and the operator may remove its node. The host shows which of them it was.
func (sim *simulation) runAtTree(h *host, what string, do func() any) any {
	if what != "remove" && what != "break" && what != "withdraw" {
		return do()
	}
	sim.storeMu.Lock()
	defer sim.storeMu.Unlock()
	var before []sequence.Node
	for _, name := range lockNames {
		before = append(before, sim.tree.Nodes(name)...)
	}
	r := do()
	after := map[string]bool{}
	for _, name := range lockNames {
		for _, n := range sim.tree.Nodes(name) {
			after[refOf(n)] = true
		}
	}
	for _, n := range before {
		if !after[refOf(n)] {
			sim.checker.noteNodeRemoval(n, h, what)
		}
	}
	return r
}

// lockNames are the names of all locks.
var lockNames = []string{"plain", "fair", "rw", "semaphore", "leader", "timed", "twice", "fresh"}

// oldRow is a row as it was from some moment on.
type oldRow struct {
	row  record.Row
	from time.Duration
}

// rememberRow keeps a row for stale reads. It is called with storeMu held, as readOldRow is.
func (sim *simulation) rememberRow(row record.Row) {
	if sim.kind == stale {
		sim.oldRows[row.Name] = append(sim.oldRows[row.Name], oldRow{row, sim.elapsed()})
	}
}

// readOldRow returns the row as it is, or sometimes as it was some time ago.
func (sim *simulation) readOldRow(row record.Row) record.Row {
	if !sim.faultsActive() || !sim.chance(0.2) {
		return row
	}
	at := sim.elapsed() - sim.upTo(sim.ttl)
	for _, s := range slices.Backward(sim.oldRows[row.Name]) {
		if row = s.row; s.from <= at {
			return row
		}
	}
	return record.Row{Name: row.Name}
}

// isExpectedError reports whether stores of this kind may cause an error.
func (sim *simulation) isExpectedError(err error) bool {
	switch sim.kind {
	case crowded:
		return errors.Is(err, holdfast.ErrQueueFull) || errors.Is(err, holdfast.ErrLost)
	case silent:
		return errors.Is(err, holdfast.ErrDenied)
	case stale, broken:
		return errors.Is(err, holdfast.ErrLost)
	case undurable:
		return errors.Is(err, errConnectionBroke)
	}
	return false
}
