package doctor

import "fmt"

// ringFindings are about a ring: the share of each server, and what concerns all of them.
func (p *patient) ringFindings(servers []*server) (out []Finding) {
	for _, r := range p.Ring {
		f := Finding{Server: r.Server, Check: "ring", Found: "has " + percent(r.Now) + " of all subjects"}
		if p.Moves > 0 {
			f.Found += ", and had " + percent(r.Was)
		}
		out = append(out, f)
	}
	if p.Moves > 0 {
		out = append(out, Finding{
			Severity: Info, Check: "ring", Found: percent(p.Moves) + " of all subjects are being moved: their takes need two servers",
			Advice: "when the longest window has passed twice since all nodes have this URL, remove was from it",
		})
	}
	first := map[string]*server{} // by run_id
	for _, s := range servers {
		id := s.info["run_id"]
		if len(p.Ring) == 0 || id == "" {
			continue
		}
		if other := first[id]; other != nil {
			out = append(out, Finding{
				Server: s.addr, Severity: Problem, Check: "ring",
				Found:  "the same server as " + other.addr + ": if it fails, both shares do",
				Advice: "name each server once in the URL",
			})
			continue
		}
		first[id] = s
	}
	return out
}

func percent(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) }
