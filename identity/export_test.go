package identity

// RememberedAddresses returns how many addresses with failed keys the resolver remembers.
func RememberedAddresses(r *Resolver) int {
	f := r.keys.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.first) + len(f.old)
}
