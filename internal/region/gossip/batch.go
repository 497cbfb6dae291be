package gossip

import "github.com/stintdev/stint"

// Sender is a process that tells what it has admitted.
type Sender struct {
	Region string
	Node   string
	// Run is another number each time the process starts. The numbers of batches begin anew with it.
	Run uint64
}

// Entry says that units of a counter were admitted in the sender's region, or, if they are less than
// none, given back. At is when the last of it was, by the clock of the sender's store, in microseconds
// since the Unix epoch. All of it was in the same window.
type Entry struct {
	Key   stint.Key
	Limit stint.Limit
	At    int64
	Units int64
	// ID, if there is one, is that of [stint.Charge.ID]: the sender was told to make this change once.
	ID string
	// Reset says that the counter was reset, and nothing else.
	Reset bool
}

// Batch is what a sender tells at a time. The first one of a run has the number 1, and each of the
// following the next. A batch is applied once, however often it arrives.
type Batch struct {
	Number  uint64
	Entries []Entry
}

// What a receiver takes, and so what is sent. Batches that are larger are refused.
const (
	// MaxEntries is how many entries a batch has at most.
	MaxEntries = 1024
	// maxBytes is how many bytes a batch has at most before it gets its last entry, compressed by nothing.
	maxBytes = 512 << 10
	// entryBytes is what an entry has at most beside its strings, with the text of its limit.
	entryBytes = 320
)

// maxUnits is how many units an entry of a limit has at most. In a window there are as many as the limit has, and in a
// bucket as much again comes back meanwhile; each region may be ahead of the others.
func maxUnits(l *stint.Limit) int64 { return 4 * (l.Cap() + l.Max) }
