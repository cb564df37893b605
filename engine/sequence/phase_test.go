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

// All tests of this package check the phases of all claims that they make.
func init() {
	onPhaseChange = func(from, to phase) {
		if !slices.Contains(allowedPhaseChanges[from], to) {
			panic(fmt.Sprintf("a claim went from phase %d to %d", from, to))
		}
	}
}
