package main

// table is all mutants, store by store. What a row needs is described at type mutant.
var table = []mutant{
	{name: "a durable write that the disk has not confirmed", file: "store/file/cell.go", pkg: "./store/file", test: "TestPowerCut",
		edits: []edit{{"if err := cmp.Or(c.sync(d), c.sync(c.at)); err != nil {", "if err := cmp.Or(error(nil)); err != nil {"}}},
	{name: "what is no session taken for one that is gone", file: "store/file/presence.go", pkg: "./store/file", test: "TestPresence",
		edits: []edit{{"if session == p.session || !validSession(session) {", "if session == p.session {"}}},
	{name: "two boots told apart by their ids alone", file: "store/file/clock.go", pkg: "./store/file", test: "TestTimedLockAmongContainers",
		edits: []edit{{"} else if lives || c.sameBoot(s) {", "} else if lives {"}}},
	{name: "boots told apart by how far the wall clock is ahead alone", file: "store/file/clock.go", pkg: "./store/file", test: "TestWallClockTellsBoots",
		edits: []edit{{" && c.boot().Microseconds()+s.Offset >= s.Floor-floorAhead", ""}}},
	{name: "a record without room of its own", file: "store/file/cell.go", pkg: "./store/file", test: "TestFullDiskEndsNoLock",
		edits: []edit{{"const firstSeq = 2", "const firstSeq = 1"}}},
	{name: "a record that grows without its room", file: "store/file/cell.go", pkg: "./store/file", test: "TestFullDiskEndsNoLock",
		edits: []edit{{"if blocks(size) <= 1 {", "if true {"}}},
	{name: "a directory that anybody can move away trusted", file: "store/file/root_unix.go", pkg: "./store/file", test: "TestUntrustedAncestors",
		edits: []edit{{"if above.mode&0o002 != 0 && above.mode&unix.S_ISVTX == 0 {", "if false {"}}},
	{name: "a pause of the machine not noticed", file: "renewer.go", pkg: ".", test: "TestPause",
		edits: []edit{{"return r.ahead-before >= pauseStep", "return false && before == 0"}}},
	{name: "a renewal from before a pause believed", file: "renewer.go", pkg: ".", test: "TestPauseDuringRenewal",
		edits: []edit{{"if flight <= r.doubted {", "if false {"}}},
}
