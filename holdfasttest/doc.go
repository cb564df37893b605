// Package holdfasttest helps to test code that uses Holdfast. It is a store in memory whose clock is in the test's
// hand, clients that can be cut off and paused, locks that can be lost in every way in which locks are lost, and
// assertions.
//
// # Time
//
// Tests run in a bubble of [testing/synctest], where time stands still until all goroutines wait. [Store.Advance] lets
// it pass: a healthy client renews its leases meanwhile as ever, one that is cut off loses them to the tick, and when
// Advance returns all that was due has happened.
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
// Code that does real input and output cannot run in a bubble. Outside of one all works but Advance, in real time:
// choose a TTL of a second or use [Store.Expire], and wait for the end of the lease's context.
//
// # What is not tested by it
//
// A client that is paused or cut off goes on to run the test's code: nothing can stop that in the middle of a line. A
// process that was frozen and goes on to write under an old token is shown by [Store.Steal]: the holder does not know
// of the theft until its next renewal.
package holdfasttest
