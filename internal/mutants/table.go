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

	{name: "a foreign owner that stays in an item that was taken over", file: "store/dynamodb/table.go", pkg: "./store/dynamodb", test: "TestPlainOwner",
		edits: []edit{{"\t_, err := request(ctx, t.link, t.client.PutItem, &sdk.PutItemInput{\n\t\tTableName: &t.name, Item: it, ConditionExpression: &condition,\n",
			"\tnames[\"#x\"], names[\"#y\"], names[\"#z\"] = dataAttribute, versionAttribute, t.expires\n" +
				"\tvalues[\":x\"], values[\":y\"], values[\":z\"] = it[dataAttribute], it[versionAttribute], it[t.expires]\n" +
				"\t_, err := request(ctx, t.link, t.client.UpdateItem, &sdk.UpdateItemInput{\n\t\tTableName: &t.name, Key: t.id(t.prefix + r.Name),\n" +
				"\t\tUpdateExpression: new(\"SET #x = :x, #y = :y, #z = :z\"), ConditionExpression: &condition,\n"}}},
	{name: "a service that does not tell the time", file: "store/dynamodb/schema.go", pkg: "./store/dynamodb", test: "TestNoDate",
		edits: []edit{{"if !l.clock.Known() {", "if false {"}}},
	{name: "a clock that judges though it is ahead of an earlier one", file: "engine/record/clock.go", pkg: "./engine/record", test: "TestServerClockSet",
		edits: []edit{{"\t\t\tc.leave(agreed, odd)\n", ""}}},
	{name: "a date that judges though it is ahead of earlier ones", file: "engine/record/clock.go", pkg: "./store/gcs", test: "TestOddDate",
		edits: []edit{{"\t\t\tc.leave(agreed, odd)\n", ""}}},
	{name: "one odd reply believed", file: "engine/record/clock.go", pkg: "./engine/record", test: "TestServerClockOddReply",
		edits: []edit{{"\tc.follow(agreed, &reply)\n", "\tc.agreed = reply\n"}}},
	{name: "one odd reply that is behind not heeded", file: "engine/record/clock.go", pkg: "./engine/record", test: "TestServerClockOddReply",
		edits: []edit{{"min(s.early, odd.early)", "s.early"}}},
	{name: "ends set by the earlier of two clocks", file: "engine/record/clock.go", pkg: "./engine/record", test: "TestServerClockSet",
		edits: []edit{{"max(s.late, odd.late)", "s.late"}}},
	{name: "a clock that is behind forgotten", file: "engine/record/clock.go", pkg: "./engine/record", test: "TestServerClockTwoHosts",
		edits: []edit{{"\t\tc.leave(c.odd.when(agreed.at), agreed)\n", ""}}},
	{name: "bounds that do not move apart", file: "engine/record/clock.go", pkg: "./engine/record", test: "TestServerClockAnyReplies",
		edits: []edit{{"least - least/clockDrift", "least"}}},
}
