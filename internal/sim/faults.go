package sim

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func (sim *simulation) faultsActive() bool { return !sim.faultless && !sim.faultsStopped.Load() }

// causeFaults pauses, suspends, disconnects and crashes hosts, and sets their clocks, with quiet times in between.
func (sim *simulation) causeFaults() {
	names := []string{"host0", "host1", "host2", "host3"}
	for sim.faultsActive() {
		time.Sleep(sim.upTo(3 * time.Second))
		if sim.kind != "" && sim.faultsActive() && sim.chance(0.4) {
			sim.causeKindFault()
			continue
		}
		h := sim.hosts[names[int(sim.randomFloat()*hostCount)]]
		switch p := sim.randomFloat(); {
		case !sim.faultsActive():
		case p < 0.3:
			h.stopFor(sim.upTo(3*sim.timeScale), false)
		case p < 0.5:
			h.stopFor(sim.upTo(3*sim.timeScale), true)
		case p < 0.75:
			h.setDisconnected(true)
			time.Sleep(sim.upTo(2 * sim.timeScale))
			h.setDisconnected(false)
		case p < 0.9 && sim.kind != stepped:
			h.setClock(sim.upTo(2*time.Minute) - time.Minute)
		case h.name != "host0" && sim.kind != silent: // host0 survives, and must get every lock at the end
			if sim.chance(0.3) {
				h.crash()
			}
		}
	}
}

func (sim *simulation) healNetwork() {
	for _, h := range sim.hosts {
		h.setDisconnected(false)
	}
}

// causeKindFault causes the fault of the kind of store. It sometimes replaces the usual faults.
func (sim *simulation) causeKindFault() {
	switch sim.kind {
	case broken:
		if sim.runs != nil {
			sim.breakRuns()
			return
		}
		sim.breakClaims()
	case undurable:
		sim.loseStandby()
	case stepped:
		sim.setStoreClock()
	case silent:
		sim.silenceStore()
	case stale, crowded:
		sim.breakClaims()
	case lowered:
		sim.lowerSessionTimeout()
	case paired: // the usual faults cut hosts off from the first store only
		h := sim.hosts["host"+strconv.Itoa(int(sim.randomFloat()*hostCount))]
		h.setDisconnected(sim.chance(0.5))
		h.second.setDisconnected(true)
		time.Sleep(sim.upTo(2 * sim.timeScale))
		h.setDisconnected(false)
		h.second.setDisconnected(false)
	}
}

// loseStandby makes the store confirm no write for a while, because its standby is away. Reads return these writes
// nevertheless. Then the standby returns, or becomes the store, without those writes.
func (sim *simulation) loseStandby() {
	sim.storeMu.Lock()
	rows, checked := sim.revertible.loseStandby(), sim.checker.saveState()
	var histories runHistories
	if sim.runs != nil {
		histories = sim.runs.saveHistories()
	}
	sim.storeMu.Unlock()
	time.Sleep(sim.upTo(sim.timeScale))
	sim.storeMu.Lock()
	defer sim.storeMu.Unlock()
	if sim.chance(0.7) {
		sim.revertible.revertTo(rows)
		sim.checker.revertState(checked)
		if sim.runs != nil {
			sim.runs.revertHistories(histories)
		}
	}
	sim.revertible.regainStandby()
}

// setStoreClock sets the store's clock to more than a minute away from wherever it has been, since a client that was
// suspended meanwhile cannot notice a step that is shorter than its sleep. It is not set again until all clients have
// read it: a client that never read a clock cannot know that claims have expiry times by it.
func (sim *simulation) setStoreClock() {
	if len(sim.clockOffsets) > 1 && sim.elapsed()-sim.clockSetAt < 25*time.Second {
		return
	}
	sim.clockSetAt = sim.elapsed()
	var to int
	for to = 0; slices.Contains(sim.clockOffsets, to); to = int(sim.randomFloat()*101) - 50 {
	}
	sim.clockOffsets = append(sim.clockOffsets, to)
	by := time.Duration(to)*90*time.Second + sim.upTo(30*time.Second)
	sim.storeMu.Lock()
	defer sim.storeMu.Unlock()
	sim.storeOffset = by
}

// lowerSessionTimeout makes the store keep its sessions for half as long as it promised. The clients learn of it: no
// message is lost from shortly before until then. A client that is disconnected after the store began to count the
// shorter time, and before it learned of that, cannot know it, and no rule can help.
func (sim *simulation) lowerSessionTimeout() {
	sim.gentle.Store(true)
	time.Sleep(2500 * time.Millisecond) // requests that were lost before have been sent again
	sim.tree.LowerSessionTTLs(sim.ttl / 2)
	time.Sleep(sim.ttl / 2)
	sim.gentle.Store(false)
	if h := sim.hosts["host1"]; sim.chance(0.7) {
		h.setDisconnected(true)
		time.Sleep(sim.upTo(2 * sim.timeScale))
		h.setDisconnected(false)
	}
}

// How long a wait may take to end after the store has stopped answering, or has begun to deny everything. A waiter
// loads at least every 5 s, waits 10 s for an unreachable store, and waits 2 s for a reply. Two denials in a row may
// be lost.
const (
	silenceNoticeLimit = 25 * time.Second
	denialNoticeLimit  = 22 * time.Second
)

// silenceStore makes the store answer nothing, or deny everything, for longer than a waiter may tolerate.
func (sim *simulation) silenceStore() {
	bound := silenceNoticeLimit
	denies := sim.chance(0.5)
	if denies {
		bound = denialNoticeLimit
	}
	sim.setStoreAway(!denies, denies)
	from := sim.elapsed()
	time.Sleep(bound)
	sim.checker.checkWaitersNotified(from, bound)
	sim.setStoreAway(false, false)
	time.Sleep(5 * time.Second)
}

func (sim *simulation) setStoreAway(silent, denies bool) {
	sim.storeMu.Lock()
	defer sim.storeMu.Unlock()
	sim.storeSilent, sim.storeDenies = silent, denies
}

func (sim *simulation) isStoreSilent() bool {
	sim.storeMu.Lock()
	defer sim.storeMu.Unlock()
	return sim.storeSilent
}

// breakClaims makes an operator break one claim, or all waiters of a lock.
func (sim *simulation) breakClaims() {
	name := sim.turns[int(sim.randomFloat()*float64(len(sim.turns)))]
	if name == "all" {
		name = "plain"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lock, err := sim.operator.Inspect(ctx, name)
	if err != nil {
		sim.reportViolation("the operator cannot inspect %s: %v", name, err)
		return
	}
	which := slices.Concat(lock.Holders, lock.Waiters)
	if sim.kind == crowded {
		which = lock.Waiters
	} else if len(which) > 0 {
		k := int(sim.randomFloat() * float64(len(which)))
		which = which[k : k+1]
	}
	for _, s := range which {
		mode := driver.BreakForce
		if sim.kind == broken && sim.chance(0.2) {
			mode = driver.BreakGraceful
		}
		id := sim.claimIDOf(name, s)
		sim.checker.noteBreak(id)
		err := sim.operator.Break(withActor(ctx, actor{breaks: id}), name, s.Ref, driver.Break{Mode: mode})
		if err != nil && !errors.Is(err, driver.ErrLost) && !errors.Is(err, driver.ErrUnsupported) {
			sim.reportViolation("the operator cannot break a claim on %s: %v", name, err)
		}
	}
}

// claimIDOf returns the id of a claim that Inspect has returned.
func (sim *simulation) claimIDOf(name string, s driver.ClaimInfo) string {
	if sim.tree == nil {
		return s.Ref
	}
	for _, n := range sim.tree.Nodes(name) {
		if s.Ref == refOf(n) { // another node may have the key by now
			return n.ID
		}
	}
	return ""
}
