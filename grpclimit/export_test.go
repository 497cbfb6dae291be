package grpclimit

// Routes is how many denials the client remembers.
func (c *Client) Routes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.denied)
}
