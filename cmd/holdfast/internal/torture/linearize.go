package torture

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	windowSize    = 400
	windowTimeout = 5 * time.Second
)

// step is one operation on an exclusive lock, for the linearizability check.
type step struct {
	acquire bool
	token   int64
}

// exclusiveLock is a lock as its users see it: it is free, or held under a token, and tokens rise.
var exclusiveLock = porcupine.Model{
	Init: func() any { return [2]int64{} }, // the holder's token, and the largest token
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.([2]int64), input.(step)
		if op.acquire {
			return s[0] == 0 && op.token > s[1], [2]int64{op.token, op.token}
		}
		return s[0] == op.token, [2]int64{0, s[1]}
	},
}

// checkWindow checks the holds of an exclusive lock that were judged since the last check. A hold whose release was
// confirmed ends between the call and the return; one that was lost ends at some time between the last time
// at which its holder believed, and the next grant.
func (j *judge) checkWindow(s *lockState) {
	holds := s.window
	s.window = nil
	slices.SortFunc(holds, func(a, b *hold) int { return cmp.Compare(a.begin, b.begin) })
	var history []porcupine.Operation
	for i, h := range holds {
		history = append(history, porcupine.Operation{ClientId: 2 * i, Input: step{true, h.token}, Call: h.called, Return: h.begin})
		from, to := h.end, int64(0)
		switch h.how {
		case howReleased, howSucceeded, howFailed:
			from, to = h.released, h.returned
		default:
			to = max(h.end+1, h.returned)
			if i+1 < len(holds) {
				to = max(to, holds[i+1].begin)
			}
		}
		history = append(history, porcupine.Operation{ClientId: 2*i + 1, Input: step{false, h.token}, Call: max(from, h.begin), Return: max(to, h.begin+1)})
	}
	j.windows++
	if porcupine.CheckOperationsTimeout(exclusiveLock, history, windowTimeout) == porcupine.Illegal {
		j.accuse("linearizable", 0, holds[0], nil, fmt.Sprintf("no order of the steps of %d holds in a row explains what their holders saw", len(holds)))
	}
}
