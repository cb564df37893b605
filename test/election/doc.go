// Package election has processes campaign in an election, kills, stops or cuts off the leader, and checks when each
// process believed that it led.
//
// Every few milliseconds, a candidate reads the time, asks whether it leads, and reports the time if it does. All
// processes of a machine share the clock, so the reports of two leaderships either follow each other or overlap.
package election
