package rule

// Equal reports whether rules are the same.
func (r *Rule) Equal(o *Rule) bool { return r.equal(o) }

// Equal reports whether tiers are the same.
func (t Tier) Equal(o Tier) bool { return t.equal(o) }
