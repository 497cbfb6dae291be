package fitting

// SetBounds lowers the bounds.
func SetBounds(all, one, endpoints int) { mostClients, mostOfOne, mostEndpoints = all, one, endpoints }

// Needed returns the smallest limits of a second, a minute and an hour that never deny requests at these times, in microseconds.
func Needed(at []int64) (out [3]int64) {
	s := scope{most: 1, clients: map[uint64]*client{}}
	for _, t := range at {
		s.add(1, t)
	}
	for i := range out {
		out[i] = s.clients[1].windows[i].need
	}
	return out
}

// Rounded returns a number that people would write.
var Rounded = rounded
