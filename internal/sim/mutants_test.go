package sim

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mutant is one safety rule switched off by a change of a few words in the code. The simulation must find a violation.
type mutant struct {
	name  string
	file  string // below the module's root
	edits []edit
	more  []mutant // edits in further files
	want  string   // a regular expression: what the checker reports
	tree  bool     // whether it changes the sequence engine
	kind  kind     // which kind of store shows it
	runs  bool     // whether it changes the run ledger
}

type edit struct{ old, new string }

// noCheck switches off the check of a record before it is written, which would hide what a mutant does.
var noCheck = edit{"func (r *Record) Check() error {\n",
	"func (r *Record) Check() error {\n\tif true {\n\t\treturn nil\n\t}\n"}

const (
	recordFile  = "engine/record/record.go"
	acquireFile = "engine/record/acquire.go"
	inspectFile = "engine/record/inspect.go"
	expiryFile  = "engine/record/expiry.go"
	writerFile  = "engine/record/writer.go"
	sequenceDir = "engine/sequence/"
	holdFile    = "hold.go"
	clockFile   = "engine/record/clock.go"
)

var mutants = []mutant{
	{name: "a lease counted from the reply instead of the request", file: acquireFile,
		edits: []edit{{"Token: mine.Token, Since: since,", "Token: mine.Token, Since: a.clock.Now(),"}},
		more: []mutant{{file: "renewer.go",
			edits: []edit{{"\t\t\th.extras.renewalErr = nil\n\t\t}\n",
				"\t\t\th.extras.renewalErr = nil\n\t\t}\n\t\ta.Since = h.client.clock.Now()\n"}}}},
		want: "overlapping holders"},
	{name: "no safety margin before the end of a lease", file: holdFile,
		edits: []edit{{"return ttl - driver.Margin(ttl) - now.Since(since)", "return ttl"}},
		want:  "overlapping holders|came after"},
	{name: "a lease that is valid without progress", file: holdFile,
		edits: []edit{{"\t\tleft = min(left, h.progressLeft(now))\n", "\t\t_ = h.progressLeft\n"}},
		want:  "without progress"},
	{name: "a promoted claim that is granted although a newer one waits", file: recordFile,
		edits: []edit{{"c.State == Granted || !driver.IsNewestOnly(c.ID) {", "c.State != Waiting || !driver.IsNewestOnly(c.ID) {"}},
		want:  "although a newer one waits"},
	{name: "a claim expired by another machine's wall clock", file: expiryFile,
		edits: []edit{{"\t\treturn 0, 0, false\n", "\t\tnow := e.table.TokenFloor()\n\t\treturn now, now, true\n"}},
		want:  "overlapping holders|though nothing went wrong"},
	{name: "observation measured by a clock that can be set", file: expiryFile,
		edits: []edit{{"e.clock.SinceAtLeast(from) > e.observeTime(c)", "e.clock.Since(from) > e.observeTime(c)"}},
		want:  "overlapping holders|though nothing went wrong"},
	{name: "permits that another holder has", file: "engine/record/permits.go",
		edits: []edit{{"\t\t\t\ttaken[n] = true\n\t\t\t}\n\t\t}\n", "\t\t\t\t_ = n\n\t\t\t}\n\t\t}\n"}},
		more:  []mutant{{file: recordFile, edits: []edit{noCheck}}},
		want:  "is held twice"},
	{name: "a promoted waiter that does not confirm its turn", file: acquireFile,
		edits: []edit{{"\tsince := a.clock.Now()\n",
			"\tif c := a.rec.findClaim(a.claim.ID); c != nil && c.State == Promoted && a.rec.fitsLimit(c.ID) {\n\t\tc.Token = a.rec.Token + 1\n\t\treturn a.newGrant(c, a.clock.Now()), true, nil\n\t}\n\tsince := a.clock.Now()\n"}},
		want: "overlapping holders|was granted twice|came after"},
	{name: "observation by id instead of token and beat", file: expiryFile,
		edits: []edit{{"observation{c.ID, c.Token, c.Beat}", "observation{c.ID, 0, 0}"}},
		want:  "overlapping holders|though nothing went wrong"},
	{name: "a release that does not compare the id", file: recordFile,
		edits: []edit{{"\t\tif c := &r.Claims[i]; c.ID == id {\n\t\t\texpired",
			"\t\tif c := &r.Claims[i]; c.State == Granted {\n\t\t\texpired"}},
		want: "overlapping holders|though nothing went wrong"},
	{name: "a renewal that creates a lost claim again", file: recordFile,
		edits: []edit{noCheck, {"\tc := r.findClaim(id)\n\tif c == nil || c.State",
			"\tc := r.findClaim(id)\n\tif c == nil && r.Kind != \"\" {\n\t\tr.Claims = append(r.Claims, Claim{ID: id, Weight: 1, TTL: 5 * time.Second, State: Granted, Token: token})\n\t\tc = r.findClaim(id)\n\t}\n\tif c == nil || c.State"}},
		want: "the store has granted|overlapping holders|granted before|came after"},
	{name: "tokens restart when a lock is released", file: recordFile,
		edits: []edit{{`r.Kind, r.Limit, r.Idle = "", 0, max(in.Now, 1)`,
			`r.Kind, r.Limit, r.Idle, r.Token = "", 0, max(in.Now, 1), 0`}},
		want: "came after|was granted twice"},
	{name: "tokens from the clock alone", file: recordFile,
		edits: []edit{noCheck, {"\tr.Token = max(r.Token+1, in.Now)\n\tc.State", "\tr.Token = in.Now\n\tc.State"}},
		want:  "came after|was granted twice"},
	{name: "cleanup under a context that was canceled", file: "client.go",
		edits: []edit{{"\tif !mayExist(err) {\n\t\treturn grant, err\n\t}\n\tc.cleanUp(claim.TTL, c.withdrawalOf(claim))\n", "\tif !mayExist(err) {\n\t\treturn grant, err\n\t}\n\tc.store.Release(bounded, claim, \"\")\n"}},
		want:  "after all waiters had left"},
	{name: "renewals continue during a release", file: holdFile,
		edits: []edit{{"\tc.renewer.removeHold(h)\n\terr := h.tryRelease(ctx)", "\terr := h.tryRelease(ctx)"}},
		more: []mutant{{file: "renewer.go",
			edits: []edit{{"if h.state != stateHeld || h.remainingAt(now) <= 0 {", "if h.remainingAt(now) <= 0 {"}}}},
		want: "was renewed after its release"},
	{name: "a semaphore that grants more than its limit", file: recordFile,
		edits: []edit{noCheck, {"fits := r.totalWeight()+c.Weight <= limit\n",
			"fits := r.totalWeight()+c.Weight <= limit+limit/3\n"}},
		want: "overlapping holders|the store has granted"},
	{name: "a reader counted twice", file: recordFile,
		edits: []edit{noCheck, {"if mine := r.findClaim(c.ID); mine != nil {",
			"if mine := r.findClaim(c.ID); mine != nil && kind != driver.KindRW {"}},
		want: "is left with|could not be acquired|still wait|though nothing went wrong"},
	{name: "a waiter that overtakes the queue", file: recordFile,
		edits: []edit{noCheck, {"fits := r.totalWeight()+c.Weight <= limit\n",
			"fits := c.Weight <= limit\n\tfor i := range r.Claims {\n\t\tif r.Claims[i].State == Granted {\n\t\t\tfits = false\n\t\t}\n\t}\n"}},
		want: "granted before an earlier one"},
	{name: "only the monotonic clock is read", file: "driver/clock/clock.go",
		edits: []edit{{"return max(i.Monotonic-earlier.Monotonic, i.Boottime-earlier.Boottime)",
			"return i.Monotonic - earlier.Monotonic"}},
		more: []mutant{{file: "renewer.go",
			edits: []edit{{"max(0, i.Monotonic-r.lastRead.Monotonic, i.Boottime-r.lastRead.Boottime)",
				"max(0, i.Monotonic-r.lastRead.Monotonic)"}}}},
		want: "overlapping holders|came after"},
	{name: "a release that ignores a request in flight", file: "engine/record/release.go",
		edits: []edit{{"len(r.rec.Claims), r.fresh && r.mayStillArrive()", "len(r.rec.Claims), false"}},
		want:  "after all waiters had left"},
	{name: "a lease counted from the reply of a shared swap", file: writerFile,
		edits: []edit{{"\to.row, o.rec, o.err = e.swapRecord(ctx, g.seen, g.next, g.addsClaim)\n",
			"\to.row, o.rec, o.err = e.swapRecord(ctx, g.seen, g.next, g.addsClaim)\n\to.since = e.clock.Now()\n"}},
		want: "overlapping holders|came after"},
	{name: "an unknown outcome counted as a renewal", file: "renewer.go",
		edits: []edit{{"\t\th.ensureExtras().renewalErr = mergeRenewalErrors(h.renewalErr(), a.Err)\n",
			"\t\th.ensureExtras().renewalErr = mergeRenewalErrors(h.renewalErr(), a.Err)\n\t\th.since = h.client.clock.Now()\n"}},
		want: "overlapping holders"},
	{name: "an observer that expires a claim too early", file: expiryFile,
		edits: []edit{{"return c.SilenceLimit + driver.Margin(c.SilenceLimit)", "return c.SilenceLimit / 2"}},
		want:  "overlapping holders|though nothing went wrong|was to be held until"},
	{name: "a loss reported from a cached row", file: "engine/record/renew.go",
		edits: []edit{{"\t\t\tclear(r.answers)\n", ""}},
		want:  "but it exists"},
	{name: "leadership without a valid lease", file: "election.go",
		edits: []edit{{"\treturn l != nil && l.Valid()\n", "\treturn l != nil\n"}},
		want:  "overlapping holders"},
	{name: "LockAll keeps some locks after a failure", file: "lockall.go",
		edits: []edit{{"go func() { _ = lg.Release(); close(done) }()", "close(done)"}},
		want:  "could not be acquired|still wait"},
	{name: "LockAll takes locks in any order", file: "lockall.go",
		edits: []edit{{"return cmp.Or(cmp.Compare(addresses[a.client], addresses[b.client]), cmp.Compare(a.name, b.name),\n\t\t\tcmp.Compare(b.weight, a.weight))",
			"return cmp.Compare(min(b.weight, 2), min(a.weight, 2))"}},
		want: "still wait"},
	{name: "LockAll ignores the loss of one lock", file: "lockall.go",
		edits: []edit{{"context.AfterFunc(ends, func() { lg.end(l, context.Cause(ends)) })", "_ = ends"},
			{"left = min(left, l.Remaining())", "_ = l"}},
		want: "overlapping holders"},
	{name: "a release that ignores MinHold and Detach", file: holdFile,
		edits: []edit{{"\tif keep > 0 {\n", "\tif keep > time.Hour {\n"}},
		want:  "was to be held until|was renewed after its release"},
	{name: "a detached claim kept for half of its time", file: recordFile,
		edits: []edit{{"c.TTL, c.SilenceLimit, c.ExpiresAt = d, d, in.expiryAfter(d)",
			"c.TTL, c.SilenceLimit, c.ExpiresAt = d, d/2, in.expiryAfter(d/2)"}},
		want: "was to be held until"},
	{name: "MaxHold ignored", file: holdFile,
		edits: []edit{{"\tif h.maxHold > 0 {\n", "\tif h.maxHold < 0 {\n"}},
		want:  "and MaxHold is"},
	{name: "re-entries not counted", file: holdFile,
		edits: []edit{{"\tif open > 1 {\n\t\tl.state", "\tif false {\n\t\tl.state"}},
		want:  "released by the first Release"},
	{name: "a lost lock can be entered again", file: "reentrant.go",
		edits: []edit{{"\tcase h.state == stateLost:\n", "\tcase false:\n"},
			{"h.state != stateHeld || ctx.Err() != nil", "h.state == stateReleased"}},
		want: "was entered again"},
	{name: "a downgrade that counts as a writer until the store replies", file: "rwmutex.go",
		edits: []edit{{"h.extras.weight = min(h.extras.weight, weight)", "_ = weight"}},
		want:  "overlapping holders"},
	{name: "an upgrade next to other holders", file: recordFile,
		edits: []edit{noCheck, {"sum > r.Limit && weight > before", "sum > r.Limit && weight < before"}},
		want:  "the store has granted|overlapping holders"},
}

// kindMutants are mutants that show only on stores of a certain kind.
var kindMutants = []mutant{
	{name: "a grant confirmed by a read alone", file: acquireFile, kind: undurable,
		edits: []edit{{"\tsince := a.clock.Now()\n",
			"\tif c := a.rec.findClaim(a.claim.ID); a.unresolved.unknown && a.fresh && c != nil && c.State == Granted {\n\t\treturn a.newGrant(c, a.queue.renewedAt), true, nil\n\t}\n\tsince := a.clock.Now()\n"},
			{"\t\ta.unresolved.noteUnknown(o.replaces)\n",
				"\t\ta.unresolved.noteUnknown(o.replaces)\n\t\ta.queue.renewedAt = o.since\n"}},
		want: "overlapping holders|came after|was granted twice"},
	{name: "a detached claim confirmed by a read alone", file: inspectFile, kind: undurable,
		edits: []edit{{"case done && t.again:", "case done && t.recalled:"}},
		want:  "was to be held until"},
	{name: "a clock that is set forward expires claims at once", file: clockFile, kind: stepped,
		edits: []edit{{"\tif left.early >= followed.early {\n", "\tif true {\n"}},
		want:  "overlapping holders|came after|was to be held until"},
	{name: "one reply with a time that is ahead expires claims", file: clockFile, kind: astray,
		edits: []edit{{"\t\ts.early, s.late, middle = min(s.early, odd.early), max(s.late, odd.late), min(middle, odd.midpoint())\n", "\t\ts.early, s.late, middle = max(s.early, odd.early), max(s.late, odd.late), max(middle, odd.midpoint())\n"}},
		want:  "overlapping holders|came after|was to be held until"},
	{name: "the promised session timeout used although the store keeps sessions for less", file: sequenceDir + "session.go",
		tree: true, kind: lowered,
		edits: []edit{{"promise > 0 && promise < s.TTL", "promise > 0 && promise < 0"}},
		want:  "overlapping holders|came after"},
	{name: "a release that counts every ending as its own", file: sequenceDir + "release.go", tree: true, kind: broken,
		edits: []edit{{"\tif err := e.checkNotBroken(retry, cl.name, n, retry.ttl); err != nil {\n",
			"	if err := error(nil); err != nil {\n"}},
		want: "had been ended by an operator"},
	{name: "a forced break leaves no note", file: recordFile, kind: broken,
		edits: []edit{{"\t\tr.addNote(c, driver.LossBroken, in)\n", ""}},
		want:  "had been ended by an operator|but its holder learned"},
	{name: "a takeover leaves no note", file: recordFile, kind: broken,
		edits: []edit{{"\t\t\tr.addNote(c, c.lossCause(v), in)\n", ""}},
		want:  "had been ended by somebody else"},
	{name: "a release that does not read notes", file: "engine/record/release.go", kind: broken,
		edits: []edit{{"\tloss := r.rec.notedCause(r.id)\n", "\tloss := driver.LossCause(\"\")\n"}},
		want:  "had been ended by an operator|had been ended by somebody else"},
	{name: "too few notes of ended claims kept", file: "engine/record/notes.go", kind: crowded,
		edits: []edit{{"const maxEndedNotes = driver.MaxWaiters", "const maxEndedNotes = 4"}},
		want:  "exists again"},
	{name: "a waiter hub that does not pass on errors", file: "engine/record/hub.go", kind: silent,
		edits: []edit{{"\t\th.noteLoadResult(ctx, err)\n", ""}},
		want:  "did not end within"},
	{name: "LockAll waits while it holds locks of another client", file: "lockall.go", kind: paired,
		edits: []edit{{"wait && !severalClients)", "true)"}},
		want:  "waits for .* while it holds another lock"},
	{name: "a LockAll over several clients that does not release before it waits", file: "lockall.go", kind: paired,
		edits: []edit{{"\t\tlg.releaseUnused(ctx)\n", "\t\tif !severalClients || ctx.Err() != nil {\n\t\t\tlg.releaseUnused(ctx)\n\t\t}\n"}},
		want:  "waits for .* while it holds another lock"},
	{name: "a LockAll that failed keeps MinHold", file: "lockall.go", kind: paired,
		edits: []edit{{"l.hold.setUnused(l, true)", "_ = l"}},
		want:  "which no user ever had"},
	{name: "a LockAll that succeeded does not keep MinHold", file: "lockall.go", kind: paired,
		edits: []edit{{"\t\t\tlg.markUsed()\n", ""}},
		want:  "was to be held until"},
	{name: "a LockAll that is given up releases nothing", file: "lockall.go", kind: paired,
		edits: []edit{{"\tdone := make(chan struct{})\n", "\tif ctx.Err() != nil {\n\t\treturn\n\t}\n\tdone := make(chan struct{})\n"}},
		want:  "has failed it still has a claim"},
}

var treeMutants = []mutant{
	{name: "a keep-alive counted from the reply instead of the request", file: sequenceDir + "session.go", tree: true,
		edits: []edit{{"\t\ts.noteKeepAlive(start)\n", "\t\ts.noteKeepAlive(start.Add(e.clock.Since(start)))\n"},
			// otherwise the error is smaller than the safety margin
			{"min(requestTimeout, max(s.TTL/6, 250*time.Millisecond))", "2*s.TTL"}},
		want: "overlapping holders"},
	{name: "a read that confirms a claim without a keep-alive of its session", file: sequenceDir + "acquire.go", tree: true,
		edits: []edit{{"\tif e.clock.Since(seen.start) > e.clock.Since(since) {\n", "\tif true {\n"}},
		more: []mutant{{file: sequenceDir + "session.go",
			edits: []edit{{"\t\tcase called.Since(at) <= s.TTL/6:\n", "\t\tcase called.Since(at) < 1<<62:\n"}}},
			{file: sequenceDir + "renew.go",
				edits: []edit{{"\tif e.clock.Since(start) > e.clock.Since(since) {\n", "\tif true {\n"}}}},
		want: "overlapping holders"},
	{name: "an add with unknown outcome not withdrawn", file: sequenceDir + "release.go", tree: true,
		edits: []edit{{"\t\tcase unresolved:\n", "\t\tcase false:\n"}},
		want:  "is left on|could not be acquired|still wait|after all waiters had left"},
	{name: "a read from before a claim was added again counted as its removal", file: sequenceDir + "claim.go",
		tree:  true,
		edits: []edit{{"\tif cl.node.key != key {\n", "\tif false {\n"}},
		want:  "is left on|could not be acquired|still wait|after all waiters had left"},
	{name: "abandoned nodes not removed", file: sequenceDir + "janitor.go", tree: true,
		edits: []edit{{"\t\t\ts.removeAbandoned()\n", ""}},
		want:  "is left on|could not be acquired|still wait|after all waiters had left"},
	{name: "a forgotten claim removed by its key, which another one has", file: sequenceDir + "janitor.go", tree: true,
		kind: crowded, edits: []edit{{"!s.has(cl) || cl.isBusy()", "cl.isBusy()"}},
		want: "an operator broke it, but none did"},
	{name: "an upgrade next to later readers", file: sequenceDir + "weight.go", tree: true,
		edits: []edit{{"		if room < 0 {\n", "		if room < 0 && i > 0 {\n"}},
		want:  "overlapping holders|came after"},
	{name: "an upgrade next to readers that come meanwhile", file: "internal/memtree/memtree.go",
		tree: true,
		edits: []edit{{"func(o *sequence.Node) bool { return o.Token > among.Revision }",
			"func(o *sequence.Node) bool { return false }"}},
		want: "overlapping holders|came after"},
	{name: "the claim behind a waiter granted when the waiter leaves", file: sequenceDir + "release.go", tree: true,
		edits: []edit{{"!e.traits.ReadsNext || !cl.wasGranted() || !cl.isExclusive {",
			"!e.traits.ReadsNext {"}},
		want: "overlapping holders|came after"},
	{name: "a watch trusted that nobody has confirmed", file: sequenceDir + "renew.go", tree: true, kind: broken,
		edits: []edit{{"s.confirmWatches(ctx)\n\tif err != nil {\n", "s.confirmWatches(ctx)\n\tif false {\n"}},
		want:  "although its claim had been broken"},
	{name: "the last claim ahead not counted", file: sequenceDir + "rule.go", tree: true,
		edits: []edit{{"range nodes[:i] {\n\t\tif left -= effectiveWeight(&nodes[k], me.Kind, me.Limit)",
			"range nodes[:max(i-1, 0)] {\n\t\tif left -= effectiveWeight(&nodes[k], me.Kind, me.Limit)"}},
		want: "overlapping holders|came after"},
}

const (
	runsFile   = "engine/record/runs.go"
	termsFile  = "driver/ledger.go"
	ledgerFile = "engine/record/ledger.go"
)

var ledgerMutants = []mutant{
	{name: "a slot that does not take the lock of its job", file: "ledger.go", runs: true,
		edits: []edit{{"\t\tif opts.Slot != nil {\n\t\t\terr = l.enterJob", "\t\tif false {\n\t\t\terr = l.enterJob"}},
		want:  "overlapping runs"},
	{name: "a success is not final", file: termsFile, runs: true,
		edits: []edit{{"case last.State == RunSucceeded:\n\t\trefused", "case false:\n\t\trefused"}},
		more:  []mutant{{file: recordFile, edits: []edit{noCheck}}},
		want:  "began after one that had succeeded"},
	{name: "the report of an abandoned run is accepted", file: runsFile, runs: true,
		edits: []edit{{"\tif c == nil || c.State != Granted || c.Token != token {\n",
			"\tif run != nil && run.State == driver.RunAbandoned {\n\t\trun.State, run.Error, run.Result = o.State, o.Error, o.Result\n" +
				"\t\treturn true, nil\n\t}\n\tif c == nil || c.State != Granted || c.Token != token {\n"}},
		more: []mutant{{file: recordFile, edits: []edit{noCheck}}},
		want: "was changed: it was"},
	{name: "a report ends the run in progress, whosever it is", file: runsFile, runs: true,
		edits: []edit{{"\trun, c := r.Runs.findRun(id, token), r.findClaim(id)\n",
			"\tif len(r.Claims) > 0 {\n\t\tid, token = r.Claims[0].ID, r.Claims[0].Token\n\t}\n" +
				"\trun, c := r.Runs.findRun(id, token), r.findClaim(id)\n"}},
		want: "its worker has not reported|the history does not show it"},
	{name: "a run that ends in another step than its claim", file: runsFile, runs: true,
		edits: []edit{{"\tr.Release(id, in)\n\treturn true, nil\n", "\treturn true, nil\n"}},
		more:  []mutant{{file: recordFile, edits: []edit{noCheck}}},
		want:  "and its claim exists|invalid memory address"}, // a claim whose history is removed has no run to end
	{name: "a permission to retry that is not used up", file: runsFile, runs: true,
		edits: []edit{{"r.Runs.RetryAfter == last.Attempt", "r.Runs.RetryAfter > 0"}},
		want:  "began without permission"},
	{name: "a history removed while its run is in progress", file: "engine/record/sweep.go", runs: true,
		edits: []edit{{"if len(r.Claims) > 0 || r.Foreign != 0 {", "if r.Foreign != 0 {"}},
		want:  "was removed while a run was in progress"},
	{name: "an outcome acknowledged by a read alone", file: ledgerFile, runs: true, kind: undurable,
		edits: []edit{{"\t\tif changed || outcome == nil {\n",
			"\t\tif !changed && outcome == nil {\n\t\t\treturn errDone\n\t\t}\n\t\tif changed {\n"}},
		want: "was lost in a failover"},
	{name: "an expired run that its own late report does not end", file: runsFile, runs: true,
		edits: []edit{{"\tif c != nil && in.isExpiredHolder(c) {", "\tif c != nil && in.isExpiredHolder(c) && r.Kind == \"\" {"},
			{"|| c.Token != token {\n\t\tif run", "|| c.Token != token || in.isExpiredHolder(c) {\n\t\tif run"}},
		want: "was refused, and its run has not ended"},
	{name: "another payload runs under the same key", file: termsFile, runs: true,
		edits: []edit{{"t.Fingerprint != last.Fingerprint:", "t.Fingerprint == last.Owner:"}},
		want:  "began with the payload"},
	{name: "the slot by the clocks of the hosts", file: "slots.go", runs: true,
		edits: []edit{{"= store.ReadClock(ctx)\n", "= store.ReadClock(ctx)\n\t\tslot.Now = time.Now()\n"}},
		want:  "by another clock than the store's"},
	{name: "a page of old runs not written", file: ledgerFile, runs: true,
		edits: []edit{{"\tif err := e.writePage(ctx, pageName(key, l.Pages), rec.Token, l.KeepFor, l.Runs[:old]); err != nil {\n",
			"\tif err := ctx.Err(); err != nil {\n"}},
		want: "is not kept"},
	{name: "a Begin that is given up and leaves a failed run", file: "client.go", runs: true,
		edits: []edit{{"\tclaim.Withdrawn = true\n", "\tclaim.Withdrawn = false\n"}},
		want:  "no worker ever got it"},
	{name: "a run released by its worker and taken out of the history", file: "engine/record/release.go", runs: true,
		edits: []edit{{"\tif r.claim.Withdrawn {\n", "\tif true {\n"}},
		more:  []mutant{{file: "run.go", edits: []edit{{"\t\tif o.State == \"\" {\n", "\t\tif o.State == driver.RunFailed {\n"}}}},
		want:  "its worker had got it"},
	{name: "ended runs that leave no room for a result", file: runsFile, runs: true,
		edits: []edit{{"\tcase rest <= m.ended:\n", "\tcase rest <= 8<<10:\n"}},
		more:  []mutant{{file: "engine/record/codec.go", edits: []edit{{"\t\tfull += e.room.result\n", "\t\tfull += 0\n"}}}},
		want:  "bytes is written"},
}

// sampleInterval is which fraction of the mutants make test runs: one in so many. This shows that simulations still
// find violations.
const sampleInterval = 16

var allMutants = flag.Bool("all", false, "run all mutants")

func allMutantRows() []mutant { return slices.Concat(mutants, kindMutants, treeMutants, ledgerMutants) }

// TestMutants switches off one safety rule at a time. The simulations must then find a violation. The changed files
// replace the real ones in one build only.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range allMutantRows() {
		if i%sampleInterval != 0 && !*allMutants {
			continue // each takes seconds; make mutants runs them all
		}
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			overlay := map[string]string{}
			for _, part := range append([]mutant{m}, m.more...) {
				overlay[filepath.Join(root, part.file)] = part.writeMutant(t, root, dir)
			}
			data, err := json.Marshal(map[string]any{"Replace": overlay})
			if err != nil {
				t.Fatal(err)
			}
			list := filepath.Join(dir, "overlay.json")
			if err := os.WriteFile(list, data, 0o600); err != nil {
				t.Fatal(err)
			}
			worlds := filepath.Join(dir, "worlds")
			if out, err := exec.Command("go", "test", "-c", "-overlay", list, "-o", worlds,
				".").CombinedOutput(); err != nil {
				t.Fatalf("the mutant does not build: %v\n%s", err, out)
			}
			which := "TestWorlds"
			if m.kind != "" {
				which = "TestKindWorlds"
			}
			if m.runs {
				which = "TestLedgerWorlds"
			}
			if m.tree {
				which = strings.Replace(which, "Test", "TestTree", 1)
			}
			out, err := exec.Command(worlds, "-test.run", "^"+which+"$", "-kind", string(m.kind), "-seeds", "2000",
				"-until", m.want, "-test.timeout", "3m").CombinedOutput()
			if err == nil {
				t.Fatalf("no check failed in 2000 simulations\n%s", out)
			}
			if !regexp.MustCompile(m.want).Match(out) {
				t.Errorf("it failed for another reason:\n%.2000s", out)
			}
		})
	}
}

// TestMutantsFit checks that the text that each mutant replaces is still in the code. Unlike TestMutants, it is fast.
func TestMutantsFit(t *testing.T) {
	for _, m := range allMutantRows() {
		for _, part := range append([]mutant{m}, m.more...) {
			t.Run(m.name, func(t *testing.T) { part.writeMutant(t, "../..", t.TempDir()) })
		}
	}
}

// writeMutant writes a changed copy of a file to dir. Each edit must match, so that no mutant silently changes nothing.
func (m mutant) writeMutant(t *testing.T, root, dir string) string {
	data, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, e := range m.edits {
		if !strings.Contains(text, e.old) {
			t.Fatalf("%s has no %q any more: the mutant must follow the code", m.file, e.old)
		}
		text = strings.ReplaceAll(text, e.old, e.new)
	}
	path := filepath.Join(dir, strings.ReplaceAll(m.file, "/", "_"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
