package guard

import (
	"io"
	"time"
)

// Successor ends what a guard that has ended has left of its tree.
type Successor struct {
	supervisor *supervisor
	out        *asyncWriter
}

// NewSuccessor makes the successor of a guard whose lease expires at until, as BoottimeNow counts. why is why the tree
// must end. known is the reason that the guard has reported, or nil. report is called by Run, and must not block for
// long.
func NewSuccessor(
	t *Tree, lock string, until time.Duration, policy KillPolicy, why, known error, report func(Report),
) *Successor {
	lease := newLeaseMirror(lock, until, CodeExpired)
	lease.markLost(why)
	out := newAsyncWriter(io.Discard)
	s := newSupervisor(t, lease, policy, nil, out.sendMessage, report)
	s.expiry, s.loss, s.endBy, s.exitedAt, s.leftoverReported = lease.expiry, known, lease.expiry, time.Now(), true
	return &Successor{s, out}
}

// Run returns when nothing of the tree is left. It returns why the tree was ended, or nil if nothing was left to end.
func (s *Successor) Run() error {
	_, loss := s.supervisor.run()
	return loss
}

// Close waits a moment until all messages are written.
func (s *Successor) Close() { s.out.close() }
