package torture

// resource is what a lock guards: two numbers. Holders read and write them at the same time. One of them is fenced: it
// refuses a token that is smaller than one that it has seen.
type resource struct {
	value      int64 // of the unfenced number
	plainToken int64 // of the last write to it
	largest    int64 // token that the fenced number has seen
}

// ResourceCounts is what happened to the resources of all locks.
type ResourceCounts struct {
	Writes  int `json:"writes"`
	Refused int `json:"stale_writes_refused"`  // by the fence
	Stale   int `json:"stale_writes_unfenced"` // accepted by the number that has no fence
	Lost    int `json:"lost_updates_unfenced"` // writes that did not see the one before
}

// write changes both numbers, and reports whether the fence has accepted it.
func (r *resource) write(token, value int64, c *ResourceCounts) bool {
	c.Writes++
	if token < r.plainToken {
		c.Stale++
	}
	if value != r.value+1 {
		c.Lost++
	}
	r.value, r.plainToken = value, token
	if token < r.largest {
		c.Refused++
		return false
	}
	r.largest = token
	return true
}
