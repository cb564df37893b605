package metrics

import "time"

// openClaim is an attempt that has not ended, or a lease that is held.
type openClaim struct {
	id     string
	series *lockSeries
	since  time.Time // when the attempt began, or zero
	held   bool
	slow   bool // slowHolds has counted it
}

// claimSet has the open claims by their ids. The one that was added last is kept apart: often it is also the next one
// to be looked for, and a map costs more than all else that is measured of a lock.
type claimSet struct {
	hasLast bool
	last    openClaim
	others  map[string]*openClaim
}

// find returns an open claim until the next call, or nil.
func (s *claimSet) find(id string) *openClaim {
	if s.hasLast && s.last.id == id {
		return &s.last
	}
	return s.others[id]
}

// add adds a claim that is not in the set.
func (s *claimSet) add(c openClaim) {
	if s.hasLast {
		if s.others == nil {
			s.others = map[string]*openClaim{}
		}
		older := s.last
		s.others[older.id] = &older
	}
	s.hasLast, s.last = true, c
}

func (s *claimSet) remove(id string) {
	if s.hasLast && s.last.id == id {
		s.hasLast, s.last = false, openClaim{}
		return
	}
	delete(s.others, id)
}

// each calls f for all claims.
func (s *claimSet) each(f func(*openClaim)) {
	if s.hasLast {
		f(&s.last)
	}
	for _, c := range s.others {
		f(c)
	}
}

func (s *claimSet) clear() { *s = claimSet{} }
