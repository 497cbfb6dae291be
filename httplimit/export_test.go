package httplimit

// Hosts is how many hosts the transport remembers.
func (t *Transport) Hosts() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.hosts)
}
