package strict

// Syntax returns what is wrong with a TOML document as such, and whether it has a
// date or time, which is left to what it is decoded into.
func Syntax(data []byte) (problems Problems, times bool) {
	var walk func(n *node)
	walk = func(n *node) {
		times = times || n.kind == Time
		for _, m := range n.members {
			walk(m.value)
		}
		for _, item := range n.items {
			walk(item)
		}
	}
	_, problems = read("", data, &struct{}{}, func(d *Doc) *node {
		walk(parseTOML(d))
		return &node{}
	})
	return problems, times
}
