package sequence

import (
	"fmt"
	"slices"
)

// allowedPhaseChanges are all changes of phase that a claim may go through; see the comment of phase.
var allowedPhaseChanges = map[phase][]phase{
	phaseJoining: {phaseWaiting, phaseGranted, phaseLeaving, phaseLost},
	phaseWaiting: {phaseGranted, phaseLeaving, phaseLost},
	phaseGranted: {phaseLeaving, phaseLost},
	phaseLeaving: {phaseJoining, phaseWaiting, phaseGranted, phaseLost},
	phaseLost:    {phaseJoining, phaseLeaving}, // leaving: a release came while its Acquire was starting over
}

// Every test of this package checks the phases of all claims that it makes.
func init() {
	onPhaseChange = func(from, to phase) {
		if !slices.Contains(allowedPhaseChanges[from], to) {
			panic(fmt.Sprintf("a claim went from phase %d to %d", from, to))
		}
	}
}
