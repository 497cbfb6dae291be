package archive

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

const (
	// schemaKey is the key of the schema version in the metadata of a file.
	schemaKey = "stint.schema"
	// SchemaVersion is the version of the columns of Parquet files. It changes when readers of
	// the existing columns would notice.
	SchemaVersion = "1"
)

// A row group, which is sorted in memory, ends at groupEvents events, fewer in tests, or
// groupText bytes of text and of what was settled.
var groupEvents = 1 << 16

const groupText = 16 << 20

var settledBytes = int(reflect.TypeFor[settled]().Size())

// row is an event in a Parquet file. No column is null: unknown values are empty, as in a
// [record.Event].
type row struct {
	pathRow
	Source     string `parquet:"source,dict"`
	Unaccepted string `parquet:"unaccepted,dict"`
}

// pathRow is a row of a version that did not keep how clients were identified.
type pathRow struct {
	settledRow
	Path string `parquet:"path,dict"`
}

// settledRow is a row of a version without paths.
type settledRow struct {
	columns
	Settled []settled `parquet:"settled,list"`
}

// settled is a [record.Settlement] of a row.
type settled struct {
	Rule      string `parquet:"rule,dict"`
	Meter     string `parquet:"meter,dict"`
	Shadow    bool   `parquet:"shadow"`
	At        int64  `parquet:"at,timestamp(microsecond:utc)"`
	Reserved  int64  `parquet:"reserved"`
	Used      int64  `parquet:"used"`
	GivenBack int64  `parquet:"given_back"`
	Overshoot int64  `parquet:"overshoot"`
	Model     string `parquet:"model,dict"`
	Estimated bool   `parquet:"estimated"`
	Cancelled bool   `parquet:"cancelled"`
}

// columns are those that files of earlier versions have, too.
type columns struct {
	ID         engine.ID `parquet:"decision_id,uuid"`
	At         int64     `parquet:"time,timestamp(microsecond:utc),delta"`
	User       string    `parquet:"user_id,dict"`
	Tenant     string    `parquet:"tenant_id,dict"`
	Key        string    `parquet:"key_id,dict"`
	Tier       string    `parquet:"tier,dict"`
	IP         string    `parquet:"ip,dict"`
	Rule       string    `parquet:"rule,dict"`
	Limit      string    `parquet:"limit_name,dict"`
	Endpoint   string    `parquet:"endpoint,dict"`
	Method     string    `parquet:"method,dict"`
	Outcome    string    `parquet:"outcome,dict"`
	Shadow     bool      `parquet:"shadow"`
	Cached     bool      `parquet:"cached"`
	Used       int64     `parquet:"count"`
	Max        int64     `parquet:"limit_value"`
	Cost       int64     `parquet:"cost"`
	Status     int32     `parquet:"status"`
	RetryAfter int64     `parquet:"retry_after_us"` // -1: never
	Waited     int64     `parquet:"waited_us"`
	Latency    int64     `parquet:"latency_us"`
	Region     string    `parquet:"region,dict"`
	Node       string    `parquet:"node,dict"`
	Weight     int64     `parquet:"weight"`
}

// schema is that of files, and earlier are those of earlier versions, which are read, too.
var (
	schema  = parquet.NewSchema("event", parquet.SchemaOf(row{}))
	earlier = []*parquet.Schema{parquet.NewSchema("event", parquet.SchemaOf(pathRow{})), parquet.NewSchema("event", parquet.SchemaOf(settledRow{})), parquet.NewSchema("event", parquet.SchemaOf(columns{}))}
)

// rowOf returns an event as a row. Text becomes valid UTF-8, which the format requires, and
// times become whole microseconds.
func rowOf(e *record.Event) row {
	r := row{Source: e.Source, Unaccepted: e.Unaccepted, pathRow: pathRow{Path: e.Path, settledRow: settledRow{columns: columns{
		ID: e.ID, At: e.At.UnixMicro(), Outcome: e.Outcome.String(), Shadow: e.Shadow, Cached: e.Cached,
		User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier, IP: e.IP,
		Rule: e.Rule, Limit: e.Limit, Endpoint: e.Endpoint, Method: e.Method,
		Used: e.Used, Max: e.Max, Cost: e.Cost, Status: int32(e.Status),
		RetryAfter: record.RetryMicros(e.RetryAfter), Waited: e.Waited.Microseconds(), Latency: e.Latency.Microseconds(),
		Region: e.Region, Node: e.Node, Weight: e.Weight,
	}}}}
	for _, s := range e.Settled {
		r.Settled = append(r.Settled, settled{
			Rule: s.Rule, Meter: s.Meter, Shadow: s.Shadow, At: s.At.UnixMicro(), Reserved: s.Reserved, Used: s.Used, GivenBack: s.GivenBack(), Overshoot: s.Overshoot(),
			Model: s.Model, Estimated: s.Estimated, Cancelled: s.Cancelled,
		})
	}
	for s := range r.texts() {
		*s = strings.ToValidUTF8(*s, "\uFFFD")
	}
	return r
}

// texts yields those of the columns, in their order, then those of what was settled, and last what later versions
// added, as far as it is not empty.
func (r *row) texts() iter.Seq[*string] {
	return func(yield func(*string) bool) {
		for _, s := range [...]*string{
			&r.User, &r.Tenant, &r.Key, &r.Tier, &r.IP, &r.Rule, &r.Limit, &r.Endpoint, &r.Method, &r.Outcome, &r.Region, &r.Node,
		} {
			if !yield(s) {
				return
			}
		}
		for i := range r.Settled {
			if s := &r.Settled[i]; !yield(&s.Rule) || !yield(&s.Meter) || !yield(&s.Model) {
				return
			}
		}
		for _, s := range [...]*string{&r.Path, &r.Source, &r.Unaccepted} {
			if *s != "" && !yield(s) {
				return
			}
		}
	}
}

func (r *row) event() (record.Event, error) {
	outcome, ok := record.ParseOutcome(r.Outcome)
	if !ok {
		return record.Event{}, fmt.Errorf("outcome %.40q of %v is unknown", r.Outcome, r.ID)
	}
	micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	e := record.Event{
		ID: r.ID, At: time.UnixMicro(r.At).UTC(), Outcome: outcome, Shadow: r.Shadow, Cached: r.Cached,
		User: r.User, Tenant: r.Tenant, Key: r.Key, Tier: r.Tier, IP: r.IP,
		Rule: r.Rule, Limit: r.Limit, Endpoint: r.Endpoint, Method: r.Method,
		Used: r.Used, Max: r.Max, Cost: r.Cost, Status: int(r.Status),
		RetryAfter: record.RetryAfter(r.RetryAfter), Waited: micros(r.Waited), Latency: micros(r.Latency),
		Region: r.Region, Node: r.Node, Weight: r.Weight, Path: r.Path, Source: r.Source, Unaccepted: r.Unaccepted,
	}
	for _, s := range r.Settled {
		e.Settled = append(e.Settled, record.Settlement{
			Event: r.ID, Rule: s.Rule, Meter: s.Meter, Shadow: s.Shadow, At: time.UnixMicro(s.At).UTC(), Reserved: s.Reserved, Used: s.Used,
			Model: s.Model, Estimated: s.Estimated, Cancelled: s.Cancelled,
		})
	}
	return e, nil
}

// compare orders rows by time and subject.
func (r *row) compare(s *row) int {
	return cmp.Or(
		cmp.Compare(r.At, s.At), strings.Compare(r.Tenant, s.Tenant), strings.Compare(r.User, s.User),
		strings.Compare(r.Key, s.Key), strings.Compare(r.IP, s.IP), slices.Compare(r.ID[:], s.ID[:]),
	)
}

// digest is the sum of the hashes of events. Two collections of the same events have the same
// digest, in whatever order.
type digest [4]uint64

// add adds a row. It returns a scratch buffer for the next call. A row that has nothing of what later versions added has the
// digest that earlier versions gave it.
func (d *digest) add(r *row, scratch []byte) []byte {
	b := scratch[:0]
	b = append(b, r.ID[:]...)
	for _, n := range [...]int64{r.At, r.Used, r.Max, r.Cost, int64(r.Status), r.RetryAfter, r.Waited, r.Latency, r.Weight} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	b = strconv.AppendBool(strconv.AppendBool(b, r.Shadow), r.Cached)
	for s := range r.texts() {
		b = append(binary.AppendUvarint(b, uint64(len(*s))), *s...)
	}
	for i := range r.Settled {
		s := &r.Settled[i]
		for _, n := range [...]int64{s.At, s.Reserved, s.Used} {
			b = binary.BigEndian.AppendUint64(b, uint64(n))
		}
		b = strconv.AppendBool(strconv.AppendBool(strconv.AppendBool(b, s.Shadow), s.Estimated), s.Cancelled)
	}
	sum := sha256.Sum256(b)
	for i := range d {
		d[i] += binary.BigEndian.Uint64(sum[8*i:])
	}
	return b
}

func (d *digest) addAll(e digest) {
	for i := range d {
		d[i] += e[i]
	}
}

// MarshalText implements [encoding.TextMarshaler].
func (d digest) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%016x%016x%016x%016x", d[0], d[1], d[2], d[3]), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *digest) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != 32 {
		return fmt.Errorf("digest %.80q: want 64 hexadecimal digits", text)
	}
	for i := range d {
		d[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return nil
}

// Writer writes events to a Parquet file. It holds one row group in memory.
type Writer struct {
	w    *parquet.GenericWriter[row]
	rows []row
	text int
}

// NewWriter returns a writer that writes to w, and does not close it.
func NewWriter(w io.Writer) *Writer {
	by := []parquet.SortingColumn{}
	for _, column := range []string{"time", "tenant_id", "user_id", "key_id", "ip"} {
		by = append(by, parquet.Ascending(column))
	}
	return &Writer{w: parquet.NewGenericWriter[row](w, schema,
		parquet.Compression(&parquet.Zstd),
		parquet.SortingWriterConfig(parquet.SortingColumns(by...)),
		parquet.KeyValueMetadata(schemaKey, SchemaVersion),
		parquet.CreatedBy("stint", SchemaVersion, ""),
	)}
}

// Write adds an event. Events may come in any order within a row group; readers can skip groups
// best if those are in order of time.
func (w *Writer) Write(e *record.Event) error { return w.write(rowOf(e)) }

func (w *Writer) write(r row) error {
	w.rows = append(w.rows, r)
	for s := range r.texts() {
		w.text += len(*s)
	}
	w.text += len(r.Settled) * settledBytes
	if len(w.rows) < groupEvents && w.text < groupText {
		return nil
	}
	return w.flush()
}

func (w *Writer) flush() error {
	slices.SortFunc(w.rows, func(a, b row) int { return a.compare(&b) })
	_, err := w.w.Write(w.rows)
	if err == nil {
		err = w.w.Flush()
	}
	clear(w.rows)
	w.rows, w.text = w.rows[:0], 0
	if err != nil {
		return fmt.Errorf("archive: write Parquet: %w", err)
	}
	return nil
}

// Close writes the remaining events and the footer, without which the file is invalid.
func (w *Writer) Close() error {
	if len(w.rows) > 0 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if err := w.w.Close(); err != nil {
		return fmt.Errorf("archive: write Parquet: %w", err)
	}
	return nil
}

// Read iterates over the events of a file that a [Writer] wrote. It ends with the first error.
func Read(r io.ReaderAt, size int64) iter.Seq2[record.Event, error] {
	return func(yield func(record.Event, error) bool) {
		for row, err := range readRows(r, size) {
			var e record.Event
			if err == nil {
				if e, err = row.event(); err != nil {
					err = fmt.Errorf("archive: read Parquet: %w", err)
				}
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func readRows(r io.ReaderAt, size int64) iter.Seq2[*row, error] {
	return func(yield func(*row, error) bool) {
		rows, next, err := openRows(r, size)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // an empty file is not valid
		}
		for err == nil {
			var n int
			n, err = next()
			for i := range rows[:n] {
				if !yield(&rows[i], nil) {
					return
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, fmt.Errorf("archive: read Parquet: %w", err))
		}
	}
}

// openRows returns a buffer for rows, and a function that reads the next ones into it. The
// library panics on some broken files, which becomes an error here.
func openRows(r io.ReaderAt, size int64) (rows []row, next func() (int, error), err error) {
	defer broken(&err)
	f, err := parquet.OpenFile(r, size)
	if err != nil {
		return nil, nil, err
	}
	if version, _ := f.Lookup(schemaKey); version != SchemaVersion {
		return nil, nil, fmt.Errorf("%s is %.20q, want %q", schemaKey, version, SchemaVersion)
	}
	same := func(s *parquet.Schema) bool { return parquet.EqualNodes(f.Schema(), s) }
	if !same(schema) && !slices.ContainsFunc(earlier, same) {
		return nil, nil, fmt.Errorf("the columns are not those of schema %s", SchemaVersion)
	}
	rows = make([]row, 256)
	in, left := parquet.NewGenericReader[row](f, schema), f.NumRows()
	return rows, func() (n int, err error) {
		defer broken(&err)
		n, err = in.Read(rows)
		if left -= int64(n); errors.Is(err, io.EOF) && left != 0 {
			return n, fmt.Errorf("%d rows are missing", left)
		}
		if n == 0 && err == nil {
			return 0, io.ErrNoProgress
		}
		return n, err
	}, nil
}

func broken(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("broken file: %v", p)
	}
}
