package envoyenv

// Names returns the names of all known variables.
func Names() (names []string) {
	for _, v := range variables {
		names = append(names, v.name)
	}
	return names
}
