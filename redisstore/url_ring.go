package redisstore

import (
	"slices"
	"strconv"
	"strings"
)

// ringConfig is the part of a URL that only rings have.
type ringConfig struct {
	nodes        []node // the servers
	was          []node // before the last change; nil: no change
	virtualNodes int

	weights, wasWeights []int  // already read into nodes and was
	wasHosts            string // likewise
}

const oneForEach = "whole numbers from 1 to 100, one for each server, such as `1,1,2`"

var ringParams = []param{
	{
		name: "weights", takes: oneForEach, means: "how many subjects a server has, compared with others; all 1 if not set", only: ring,
		set: func(c *config, v string) (ok bool) { c.weights, ok = parseWeights(v); return ok },
	},
	{
		name: "virtual_nodes", takes: "a number from 100 to 16384", def: "2048", means: "points of a server on the ring, times its weight; another number moves most subjects", only: ring,
		set: func(c *config, v string) bool {
			n, err := strconv.ParseUint(v, 10, 16)
			c.virtualNodes = int(n)
			return err == nil && n >= 100 && n <= 16384
		},
	},
	{
		name: "was", takes: "hosts as before the path", means: "the servers before the last change: subjects that have moved are counted on both", only: ring,
		set: func(c *config, v string) bool { c.wasHosts = v; return v != "" },
	},
	{
		name: "was_weights", takes: oneForEach, means: "their weights; if not set, as in `weights`, and 1 for others", only: ring, needs: "was",
		set: func(c *config, v string) (ok bool) { c.wasWeights, ok = parseWeights(v); return ok },
	},
}

func parseWeights(v string) (weights []int, ok bool) {
	for text := range strings.SplitSeq(v, ",") {
		n, err := strconv.ParseUint(text, 10, 8)
		if err != nil || n < 1 || n > maxWeight {
			return nil, false
		}
		weights = append(weights, int(n))
	}
	return weights, true
}

// setRing sets the servers of a ring.
func (c *config) setRing() (err error) {
	if c.topology != ring {
		return nil
	}
	if c.nodes, err = nodesOf("host", c.addrs, "weights", c.weights); err != nil {
		return err
	}
	if c.wasHosts != "" {
		addrs, err := parseHosts("was", c.wasHosts, "6379")
		if err != nil {
			return err
		}
		if c.was, err = nodesOf("was", addrs, "was_weights", c.wasWeights); err != nil {
			return err
		}
		c.keepWeights()
	}
	if len(c.nodes) < 2 && c.was == nil {
		return badURL("host", "one server", "two or more; redis:// is for one")
	}
	for _, nodes := range [][]node{c.nodes, c.was} {
		sum := 0
		for _, n := range nodes {
			sum += n.weight
		}
		if sum > 0 && sum*c.virtualNodes > maxPoints {
			return badURL("virtual_nodes", strconv.Itoa(c.virtualNodes),
				"at most "+strconv.Itoa(maxPoints/sum)+", or smaller weights: they add up to "+strconv.Itoa(sum))
		}
	}
	return nil
}

// keepWeights gives the servers before a change the weights that they have after it, unless the URL says
// otherwise.
func (c *config) keepWeights() {
	for i := range c.was {
		at := slices.IndexFunc(c.nodes, func(n node) bool { return n.addr == c.was[i].addr })
		if c.wasWeights == nil && at >= 0 {
			c.was[i].weight = c.nodes[at].weight
		}
	}
}

// nodesOf returns the servers of a list in the URL. Names in upper and lower case are the same server.
func nodesOf(part string, addrs []string, weightsPart string, weights []int) ([]node, error) {
	if len(addrs) > maxRing {
		return nil, badURL(part, strconv.Itoa(len(addrs))+" servers", "at most "+strconv.Itoa(maxRing))
	}
	if weights != nil && len(weights) != len(addrs) {
		return nil, badURL(weightsPart, strconv.Itoa(len(weights))+" numbers", strconv.Itoa(len(addrs))+" numbers, one for each server")
	}
	var nodes []node
	for i, addr := range addrs {
		n := node{addr: strings.ToLower(addr), weight: 1}
		if j := slices.IndexFunc(nodes, func(o node) bool { return o.addr == n.addr }); j >= 0 {
			return nil, badURL(part+" "+strconv.Itoa(i+1), hidden, "a server that is not in the list before, as number "+strconv.Itoa(j+1))
		}
		if weights != nil {
			n.weight = weights[i]
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}
