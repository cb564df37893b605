// Package holdfasttest helps to test code that uses Holdfast. It has a store in memory whose time the test controls,
// clients that can be disconnected and paused, a way to lose a lock for each cause, and assertions.
//
// # Time
//
// Tests run in a bubble of [testing/synctest], where time passes only while all goroutines wait. [Store.Advance] lets
// time pass. Meanwhile, a client that reaches the store renews its leases, and a client that was disconnected loses
// them exactly when they expire. When Advance returns, everything that was due has happened.
//
//	func TestImport(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			store := holdfasttest.New(t)
//			client := store.Client(t, nil)
//			go runImport(t.Context(), client.Client) // the code under test
//			synctest.Wait()
//			store.AssertHeld(t, "import")
//			client.Partition()
//			store.Advance(t, holdfast.DefaultTTL+time.Second)
//			store.AssertFree(t, "import") // and runImport has stopped
//		})
//	}
//
// Code that does real input and output cannot run in a bubble. Outside a bubble, everything except Advance works, in
// real time: use a TTL of a second or [Store.Expire], and wait until the lease's context ends.
//
// A run of a ledger is lost like a lock when its worker is disconnected, and time slots follow the test's clock:
// [Store.AssertRuns] shows what became of a key.
//
// # What it does not test
//
// A client that is paused or disconnected does not stop the code under test: no test can freeze a goroutine in the
// middle of a line. To test a process that was frozen, and then continues to write under an old token, use
// [Store.Steal]: the holder does not learn of the theft before its next renewal.
//
// # Decisions
//
// The test kit has no clock of its own. In a bubble of testing/synctest, timers and clocks agree. Rejected: a clock
// moved by hand, which would need hooks in the client, in the engine and in the user's own timers.
package holdfasttest
