// Package election has processes stand for election, ends or stops whoever leads, and judges by what each of them
// believed when.
//
// A candidate writes down a moment, asks itself whether it leads, and reports the moment if it does, every few
// milliseconds. The moments are of the clock that all processes of a machine share, so the reports of two leaderships
// either follow each other or overlap.
package election
