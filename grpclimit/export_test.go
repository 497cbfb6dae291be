package grpclimit

// Routes is how many refusals the client remembers.
func (c *Client) Routes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.refused)
}
