package main

// table is all mutants, store by store. What a row needs is described at type mutant.
var table = []mutant{
	{name: "a durable write that the disk has not confirmed", file: "store/file/cell.go", pkg: "./store/file", test: "TestPowerCut",
		edits: []edit{{"if err := cmp.Or(c.sync(d), c.sync(c.at)); err != nil {", "if err := cmp.Or(error(nil)); err != nil {"}}},
	{name: "what is no session taken for one that is gone", file: "store/file/presence.go", pkg: "./store/file", test: "TestPresence",
		edits: []edit{{"if session == p.session || !validSession(session) {", "if session == p.session {"}}},
}
