package file

import "sync"

// spares remembers which old versions this client may make its next asides of. Making and removing a file is most of
// what a swap costs, so an old one is renamed to be the new aside and written over.
//
// That rename is a removal of the version, and rule 1 of cell holds for it: what is in here was in a list, made after all
// of it had been replaced, whose asides have been removed; it is taken the lowest first; and all versions below had been
// removed before. What is remembered goes out of date when another client removes it first. Then the rename fails, and
// all that is remembered for that record is forgotten.
//
// A reader may have opened the file before it was taken, and reads something else, or a mixture. It notices: a file says
// which version it is and carries a checksum, and a version that fails of that is looked for once more.
type spares struct {
	mu    sync.Mutex
	known map[string][]version // by a cell's entry, the lowest first
}

// maxSpares bounds how many records have some. Past it all are forgotten, which costs new files and nothing else.
const maxSpares = 1 << 14

// claim takes all that is known of a record, so that two goroutines never take two versions in the wrong order.
func (s *spares) claim(entry string) []version {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known[entry]
	delete(s.known, entry)
	return known
}

func (s *spares) learn(entry string, versions []version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxSpares {
		clear(s.known)
	}
	if s.known == nil {
		s.known = map[string][]version{}
	}
	if len(versions) > 0 {
		s.known[entry] = versions
	}
}
