package driverutil

// Shared has one copy for many of what they have in common. Most locks of a program are used alike, so all that is
// equal in them need be kept only once. It knows the newest four values; copies of older ones live as long as they are
// in use. The zero value is ready. It is not safe for concurrent use.
type Shared[T comparable] struct {
	recent [4]*T
	oldest int
}

// Get returns a copy of a value, which is the same for equal values as long as it is known. Nobody may change it.
func (s *Shared[T]) Get(value *T) *T {
	for _, known := range s.recent {
		if known != nil && *known == *value {
			return known
		}
	}
	known := new(T)
	*known = *value
	s.recent[s.oldest] = known
	s.oldest = (s.oldest + 1) % len(s.recent)
	return known
}
