package envoyenv

// Names are those of all variables that are known.
func Names() (names []string) {
	for _, v := range variables {
		names = append(names, v.name)
	}
	return names
}
