// Package accesslog reads access logs as requests: the combined and common formats of nginx and Apache, and JSON, one object per line,
// as nginx, Caddy, Traefik and Envoy write it.
//
// Invariants:
//
//   - No line ends the log: one that cannot be read is counted, and the first are kept with their numbers. Lines of more than
//     64 KiB are among them, and are not kept in memory.
//   - The client is the address of the connection. X-Forwarded-For and the like are never read, since anyone can write them, unless
//     the caller names such a field.
//   - Requests come in the order of their time, if no line is more than ten seconds late. Those of one second follow each other
//     evenly in it, if the log has whole seconds.
//   - Memory is bounded, whatever the log has.
//
// The package decides nothing, and opens no file.
package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/recorded"
)

// The formats of lines.
const (
	Auto     = "auto" // JSON if a line begins with {
	Combined = "combined"
	JSON     = "json"
)

// Options configure a Reader.
type Options struct {
	Format string // default Auto
	// User and Address are the fields of JSON that name the user and the client, such as request.headers.X-User. Default: the
	// usual ones, which are remote_user and remote_addr in nginx.
	User, Address string
}

// Problem is a line that cannot be read.
type Problem struct {
	File string `json:"file"`
	Line int64  `json:"line"`
	Why  string `json:"why"`
	Text string `json:"text"` // its beginning
}

// Stats is what a Reader has read.
type Stats struct {
	Lines     int64     `json:"lines"`
	Bytes     int64     `json:"bytes"`
	Malformed int64     `json:"malformed"`
	Problems  []Problem `json:"problems" nullable:"false"` // the first of the malformed lines
	// Empty is lines about connections without a request, such as those that timed out.
	Empty int64 `json:"empty"`
	Late  int64 `json:"late"` // lines that were too late to be sorted
}

const (
	maxLine     = 64 << 10
	maxProblems = 10
)

// Reader reads the logs of one service. Not for concurrent use.
type Reader struct {
	Stats Stats

	o      Options
	line   parsed
	stamp  [64]byte // the time that was parsed last
	stamps int
	at     time.Time
	coarse bool              // of that time, only the second is known
	names  map[string]string // methods
	// addresses are those of clients, by how they are written.
	addresses map[string]string
}

// NewReader returns a reader.
func NewReader(o Options) *Reader {
	if o.Format == "" {
		o.Format = Auto
	}
	return &Reader{o: o, names: map[string]string{}, addresses: map[string]string{}, Stats: Stats{Problems: []Problem{}}}
}

// parsed is what a line says. Its texts are parts of the line, or of memory that is reused.
type parsed struct {
	at                         time.Time
	coarse                     bool
	address, user, method, uri []byte
	status                     int
}

var errEmpty = errors.New("no request")

// Read iterates over the requests of a log, which may be compressed with gzip. It ends with an error of the reader. Its name is for
// problems.
func (r *Reader) Read(name string, from io.Reader) iter.Seq2[recorded.Request, error] {
	return r.ordered(func(yield func(entry, error) bool) {
		in := bufio.NewReaderSize(from, maxLine)
		magic, err := in.Peek(2)
		if err != nil && !errors.Is(err, io.EOF) {
			yield(entry{}, fmt.Errorf("%s: %w", name, err))
			return
		}
		if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
			z, err := gzip.NewReader(in)
			if err != nil {
				yield(entry{}, fmt.Errorf("%s: %w", name, err))
				return
			}
			in = bufio.NewReaderSize(z, maxLine)
		}
		for number := int64(1); ; number++ {
			line, long, err := readLine(in, &r.Stats.Bytes)
			if len(line) > 0 || long {
				r.Stats.Lines++
				e, problem := r.parse(line, long)
				switch {
				case problem == nil:
					if !yield(e, nil) {
						return
					}
				case errors.Is(problem, errEmpty):
					r.Stats.Empty++
				default:
					r.problem(name, number, line, problem)
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(entry{}, fmt.Errorf("%s: line %d: %w", name, number, err))
				return
			}
		}
	})
}

// readLine returns a line without its end, until the next call. Of one that is too long, it returns the beginning.
func readLine(in *bufio.Reader, read *int64) (line []byte, long bool, err error) {
	line, err = in.ReadSlice('\n')
	*read += int64(len(line))
	if !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.TrimSpace(line), false, err
	}
	line = bytes.Clone(line[:200])
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = in.ReadSlice('\n')
		*read += int64(len(more))
	}
	return line, true, err
}

func (r *Reader) problem(name string, number int64, line []byte, why error) {
	if r.Stats.Malformed++; len(r.Stats.Problems) < maxProblems {
		const most = 200
		r.Stats.Problems = append(r.Stats.Problems, Problem{name, number, why.Error(), strings.ToValidUTF8(string(line[:min(len(line), most)]), "\uFFFD")})
	}
}

// parse parses a line.
func (r *Reader) parse(line []byte, long bool) (entry, error) {
	if long {
		return entry{}, fmt.Errorf("it has more than %d bytes", maxLine)
	}
	var err error
	r.line = parsed{}
	if r.o.Format == JSON || r.o.Format == Auto && line[0] == '{' {
		err = r.parseJSON(line)
	} else {
		err = r.parseCombined(line)
	}
	if err != nil {
		return entry{}, err
	}
	p := &r.line
	ip, ok := r.address(p.address)
	if !ok {
		return entry{}, fmt.Errorf("the client %.60q is not an address", p.address)
	}
	path := pathOf(p.uri)
	if len(p.method) == 0 || !isMethod(p.method) || path == nil {
		return entry{}, errEmpty
	}
	q := recorded.Request{At: p.at, Method: r.name(p.method), Path: string(path), IP: ip, Refused: p.status == statusDenied}
	if user := string(p.user); user != "-" {
		q.User = user
	}
	return entry{request: q, coarse: p.coarse}, nil
}

const statusDenied = 429

// name returns a text as a string that others may share.
func (r *Reader) name(text []byte) string {
	if s, ok := r.names[string(text)]; ok {
		return s
	}
	const most = 50_000
	if len(r.names) >= most {
		clear(r.names)
	}
	s := string(text)
	r.names[s] = s
	return s
}

// isMethod reports whether a text is a method. Those who send TLS to a port of HTTP have others.
func isMethod(text []byte) bool {
	const longest = 32
	for _, c := range text {
		if c < 'A' || c > 'Z' && c != '_' && (c < 'a' || c > 'z') {
			return c == '-' && len(text) > 1 && len(text) <= longest
		}
	}
	return len(text) <= longest
}

// pathOf returns the path of a URI, or nil if it has none.
func pathOf(uri []byte) []byte {
	if _, rest, ok := bytes.Cut(uri, []byte("://")); ok && (len(uri) == 0 || uri[0] != '/') {
		i := bytes.IndexByte(rest, '/')
		if i < 0 {
			return []byte("/")
		}
		uri = rest[i:]
	}
	if i := bytes.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i]
	}
	if len(uri) == 0 || uri[0] != '/' && string(uri) != "*" {
		return nil
	}
	return uri
}

// address returns an address as the record has it, without a port and a zone. The same ones come again and again.
func (r *Reader) address(text []byte) (string, bool) {
	if known, ok := r.addresses[string(text)]; ok {
		return known, true
	}
	a, err := netip.ParseAddr(strings.Trim(string(text), "[]"))
	if err != nil {
		p, err := netip.ParseAddrPort(string(text))
		if err != nil {
			return "", false
		}
		a = p.Addr()
	}
	const most = 50_000
	if len(r.addresses) >= most {
		clear(r.addresses)
	}
	known := a.Unmap().WithZone("").String()
	r.addresses[string(text)] = known
	return known, true
}
