package catalog

import "database/sql"

// DB returns what a catalog writes with: a database in memory has no other way in.
func DB(c *Catalog) *sql.DB { return c.db }
