package stint

// Divide divides as plans do.
func Divide(a, n int64) (floor, ceil int64) {
	d := newDivisor(n)
	return d.floor(a), d.ceil(a)
}
