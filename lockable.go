package holdfast

// Lockable is a lock together with the way in which it is to be held: a *Mutex, a *RWMutex (to write), RWMutex.Reader
// (to read), or Semaphore.Permits. [LockAll] takes any number of them. Only this package implements it.
type Lockable interface {
	// Explain returns how a claim on the lock would be kept in the store: under which keys and with which TTL. It makes
	// no claim, does no I/O, and is for people to read. It returns ErrInvalid if the name or the options are wrong, and
	// ErrUnsupported if the store cannot keep such a claim.
	Explain() (Plan, error)

	lockSpec() lockSpec
}

// lockSpec is what all primitives come to: a claim of a certain weight on a lock of a certain limit.
type lockSpec struct {
	client        *Client
	name          string
	kind          Kind
	limit, weight int64
	opts          LockOptions
}

func (s lockSpec) lockSpec() lockSpec { return s }

// Explain implements Lockable.
func (s lockSpec) Explain() (Plan, error) {
	c := s.client
	if c == nil {
		return Plan{}, &Error{Op: "explain", Lock: s.name, Err: errNilClient}
	}
	claim, err := c.newClaim(s)
	if err != nil {
		return Plan{}, c.wrapError("explain", s.name, err)
	}
	return Plan(c.store.Explain(claim)), nil
}
