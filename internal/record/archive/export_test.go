package archive

// Row groups are small here, so that few events make several.
func init() { groupEvents = 1 << 12 }
