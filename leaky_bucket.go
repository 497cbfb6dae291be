package stint

// Leaky bucket: requests leave one slot at a time, a slot every window/max, and
// up to burst slots of them may wait. It is a token bucket whose capacity is
// the one slot that is free at once and the burst that may wait, and whose
// usage is the queue: a request is held until what was used before it has
// drained ([Decision.Delay]). A cost of n takes n slots and is held until its
// first.
//
//	allowed when the wait for its last slot <= burst slots
