package archive_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testdoc"
)

// toParquet writes a Parquet file.
func toParquet(t testing.TB, events []record.Event) []byte {
	t.Helper()
	var file bytes.Buffer
	w := archive.NewWriter(&file)
	for i := range events {
		if err := w.Write(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// fromParquet reads one.
func fromParquet(file []byte) (out []record.Event, err error) {
	for e, err := range archive.Read(bytes.NewReader(file), int64(len(file))) {
		if err != nil {
			return out, err
		}
		out = append(out, e)
	}
	return out, nil
}

func byID(events []record.Event) []record.Event {
	events = slices.Clone(events)
	slices.SortFunc(events, func(a, b record.Event) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return events
}

// someEvents returns n events from a time on, a second apart, in their order.
func someEvents(from time.Time, n int) []record.Event {
	out := make([]record.Event, n)
	for i := range out {
		at := from.Add(time.Duration(i) * time.Second)
		out[i] = record.Event{
			ID: engine.NewID(at), At: at, Outcome: engine.Outcome(i % 8), User: fmt.Sprint("user", i%100), Tenant: fmt.Sprint("tenant", i%7),
			Tier: "gold", IP: "192.0.2.0", Rule: "api", Limit: "api/1", Endpoint: "/orders/{id}", Method: "GET", Path: "/orders/" + strconv.Itoa(i%20),
			Used: int64(i), Max: 100, Cost: 1, Status: 429, RetryAfter: time.Second, Latency: time.Duration(i) * time.Microsecond,
			Region: "eu", Node: "node-1", Weight: 1,
		}
		if out[i].Outcome == engine.Allowed {
			s := record.Settlement{Event: out[i].ID, Rule: "answers", Meter: "llm.output_tokens", At: at.Add(time.Minute), Reserved: 100, Used: int64(i), Model: "gpt"}
			out[i].Settled = []record.Settlement{s, s}[:1+i%16/8]
			if len(out[i].Settled) == 2 {
				out[i].Settled[1].Rule = "tokens"
			}
		}
	}
	return out
}

func TestParquetRoundTrip(t *testing.T) {
	t.Parallel()
	text := rapid.StringN(-1, -1, 40)
	micros := rapid.Map(rapid.Int64Range(0, 1<<50), func(n int64) time.Duration { return time.Duration(n) * time.Microsecond })
	event := rapid.Custom(func(t *rapid.T) record.Event {
		e := record.Event{
			ID:      engine.ID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
			At:      time.UnixMicro(rapid.Int64Range(-1<<50, 1<<52).Draw(t, "at")).UTC(),
			Outcome: rapid.Map(rapid.IntRange(0, 7), func(n int) engine.Outcome { return engine.Outcome(n) }).Draw(t, "outcome"),
			Shadow:  rapid.Bool().Draw(t, "shadow"), Cached: rapid.Bool().Draw(t, "cached"),
			User: text.Draw(t, "user"), Tenant: text.Draw(t, "tenant"), Key: text.Draw(t, "key"), Tier: text.Draw(t, "tier"), IP: text.Draw(t, "ip"),
			Rule: text.Draw(t, "rule"), Limit: text.Draw(t, "limit"), Endpoint: text.Draw(t, "endpoint"), Method: text.Draw(t, "method"),
			Used: rapid.Int64().Draw(t, "used"), Max: rapid.Int64().Draw(t, "max"), Cost: rapid.Int64().Draw(t, "cost"),
			Status:     int(rapid.Int32().Draw(t, "status")),
			RetryAfter: rapid.OneOf(micros, rapid.Just(stint.Never)).Draw(t, "retry after"), Waited: micros.Draw(t, "waited"), Latency: micros.Draw(t, "latency"),
			Region: text.Draw(t, "region"), Node: text.Draw(t, "node"), Weight: rapid.Int64().Draw(t, "weight"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "settled") {
			e.Settled = append(e.Settled, record.Settlement{
				Event: e.ID, Rule: text.Draw(t, "rule"), Meter: text.Draw(t, "meter"), Model: text.Draw(t, "model"),
				At:       time.UnixMicro(rapid.Int64Range(-1<<50, 1<<52).Draw(t, "at")).UTC(),
				Reserved: rapid.Int64().Draw(t, "reserved"), Used: rapid.Int64().Draw(t, "used"),
				Shadow: rapid.Bool().Draw(t, "shadow"), Estimated: rapid.Bool().Draw(t, "estimated"), Cancelled: rapid.Bool().Draw(t, "cancelled"),
			})
		}
		return e
	})
	rapid.Check(t, func(r *rapid.T) {
		events := rapid.SliceOfNDistinct(event, 0, 30, func(e record.Event) engine.ID { return e.ID }).Draw(r, "events")
		got, err := fromParquet(toParquet(t, events))
		if err != nil {
			r.Fatal(err)
		}
		if !slices.EqualFunc(byID(got), byID(events), recordtest.Same) {
			r.Fatalf("got %+v, want %+v", got, events)
		}
	})
}

// TestParquetFields checks that a file has every field of an event, also one that is
// added some day.
func TestParquetFields(t *testing.T) {
	t.Parallel()
	var events []record.Event
	for i := range reflect.TypeFor[record.Event]().NumField() {
		e := record.Event{ID: engine.ID{15: byte(i)}, At: time.UnixMicro(0).UTC()}
		switch v := reflect.ValueOf(&e).Elem().Field(i); v.Interface().(type) {
		case time.Time:
			e.At = time.UnixMicro(1).UTC()
		case time.Duration:
			v.SetInt(int64(time.Microsecond))
		case engine.ID:
			e.ID[0] = 1
		case []record.Settlement:
			e.Settled = []record.Settlement{
				{Event: e.ID, Rule: "a", Meter: "m", Shadow: true, At: time.UnixMicro(1).UTC(), Reserved: 1, Used: 2, Model: "x", Estimated: true, Cancelled: true},
				{Event: e.ID, Rule: "b", At: time.UnixMicro(2).UTC()},
			}
		default:
			switch v.Kind() {
			case reflect.String:
				v.SetString("x")
			case reflect.Bool:
				v.SetBool(true)
			case reflect.Uint8:
				v.SetUint(1)
			default:
				v.SetInt(1)
			}
		}
		events = append(events, e)
	}
	got, err := fromParquet(toParquet(t, events))
	if err != nil || len(got) != len(events) {
		t.Fatalf("%d of %d, %v", len(got), len(events), err)
	}
	got, events = byID(got), byID(events)
	for i, e := range events {
		if !recordtest.Same(got[i], e) {
			t.Errorf("got %+v, want %+v", got[i], e)
		}
	}
}

// TestParquetDocumented checks that the document has the columns, in their order.
func TestParquetDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/archive.md")
	if err != nil {
		t.Fatal(err)
	}
	file := toParquet(t, nil)
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| column | type | meaning |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var got, want []string
	for line := range strings.Lines(table) {
		got = append(got, strings.Split(strings.ReplaceAll(strings.Split(line, " | ")[0][2:], "`", ""), ", ")...)
	}
	for _, field := range f.Schema().Fields() {
		want = append(want, field.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the document has %q, files have %q", got, want)
	}
}

// TestParquetQuery runs the query of the document: on the rows of a file, in SQLite.
func TestParquetQuery(t *testing.T) {
	t.Parallel()
	queries := testdoc.In(t, "docs/archive.md", "sql")
	if len(queries) != 1 {
		t.Fatalf("the document has %d queries", len(queries))
	}
	at := time.Date(2026, time.January, 10, 12, 0, 0, 0, time.UTC)
	events := []record.Event{
		{At: at, User: "alice", Outcome: engine.Denied, Weight: 2},
		{At: at.Add(time.Hour), User: "bob", Outcome: engine.Denied, Weight: 3},
		{At: at.Add(2 * time.Hour), User: "alice", Outcome: engine.Denied, Weight: 2},
		{At: at, User: "carol", Outcome: engine.Allowed, Weight: 100},
		{At: at.AddDate(0, 0, 1), User: "bob", Outcome: engine.Denied, Weight: 9},
	}
	db, err := database.Open("sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	file := toParquet(t, events)
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range f.Schema().Columns() {
		if len(c) == 1 { // it is not one of a list, which come last
			columns = append(columns, c[0])
		}
	}
	if _, err := db.Write.ExecContext(t.Context(), "CREATE TABLE archive ("+strings.Join(columns, ", ")+")"); err != nil {
		t.Fatal(err)
	}
	for _, group := range f.RowGroups() {
		rows := group.Rows()
		buffer := make([]parquet.Row, len(events))
		n, _ := rows.ReadRows(buffer) // it also says that these were all
		if n != len(events) {
			t.Fatalf("read %d rows of %d", n, len(events))
		}
		for _, row := range buffer {
			var values []any
			for i, v := range row[:len(columns)] {
				switch {
				case columns[i] == "time":
					values = append(values, time.UnixMicro(v.Int64()).UTC().Format(time.DateTime))
				case v.Kind() == parquet.ByteArray:
					values = append(values, v.String())
				default:
					values = append(values, v.Int64())
				}
			}
			if _, err := db.Write.ExecContext(t.Context(), "INSERT INTO archive VALUES (?"+strings.Repeat(", ?", len(columns)-1)+")", values...); err != nil {
				t.Fatal(err)
			}
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := db.Write.QueryContext(t.Context(), strings.Replace(queries[0].Text, "'archive/2026-*/*.parquet'", "archive", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Close()
	got := ""
	for answer.Next() {
		var user string
		var denials int
		if err := answer.Scan(&user, &denials); err != nil {
			t.Fatal(err)
		}
		got += fmt.Sprintln(user, denials)
	}
	if err := answer.Err(); err != nil || got != "alice 4\nbob 3\n" {
		t.Errorf("got %s, %v", got, err)
	}
}

// TestParquetText checks that a file is one that others can read, whatever clients sent.
func TestParquetText(t *testing.T) {
	t.Parallel()
	got, err := fromParquet(toParquet(t, []record.Event{{User: "a\xffb\x00c"}}))
	if err != nil || got[0].User != "a\uFFFDb\x00c" {
		t.Errorf("got %q, %v", got[0].User, err)
	}
}

// TestParquetFile looks at a file as one does who knows the format and not stint.
func TestParquetFile(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, time.January, 31, 23, 59, 59, 123456000, time.UTC)
	events := someEvents(at, 1<<12+10)
	for i := range events {
		events[i].At = at.Add(time.Duration(i/10) * time.Second) // ten at once, for the second key of the order
	}
	file := toParquet(t, events)

	const magic = "PAR1"
	end := len(file) - 8
	footer := int(binary.LittleEndian.Uint32(file[end:]))
	if string(file[:4]) != magic || string(file[end+4:]) != magic || footer < 100 || footer > end-4 {
		t.Fatalf("begins with %q, ends with %q and a footer of %d bytes", file[:4], file[end+4:], footer)
	}
	if meta := file[end-footer : end]; !bytes.Contains(meta, []byte("stint.schema")) || !bytes.Contains(meta, []byte("decision_id")) {
		t.Errorf("the footer does not name the schema and the columns: %q", meta)
	}
	if perEvent := len(file) / len(events); perEvent > 40 {
		t.Errorf("an event takes %d bytes", perEvent)
	}

	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	const want = `message event {
	required fixed_len_byte_array(16) decision_id (UUID);
	required int64 time (TIMESTAMP(isAdjustedToUTC=true,unit=MICROS));
	required binary user_id (STRING);
	required binary tenant_id (STRING);
	required binary key_id (STRING);
	required binary tier (STRING);
	required binary ip (STRING);
	required binary rule (STRING);
	required binary limit_name (STRING);
	required binary endpoint (STRING);
	required binary method (STRING);
	required binary outcome (STRING);
	required boolean shadow;
	required boolean cached;
	required int64 count (INT(64,true));
	required int64 limit_value (INT(64,true));
	required int64 cost (INT(64,true));
	required int32 status (INT(32,true));
	required int64 retry_after_us (INT(64,true));
	required int64 waited_us (INT(64,true));
	required int64 latency_us (INT(64,true));
	required binary region (STRING);
	required binary node (STRING);
	required int64 weight (INT(64,true));
	required group settled (LIST) {
		repeated group list {
			required group element {
				required binary rule (STRING);
				required binary meter (STRING);
				required boolean shadow;
				required int64 at (TIMESTAMP(isAdjustedToUTC=true,unit=MICROS));
				required int64 reserved (INT(64,true));
				required int64 used (INT(64,true));
				required int64 given_back (INT(64,true));
				required int64 overshoot (INT(64,true));
				required binary model (STRING);
				required boolean estimated;
				required boolean cancelled;
			}
		}
	}
	required binary path (STRING);
	required binary source (STRING);
	required binary unaccepted (STRING);
}`
	if got := f.Schema().String(); got != want {
		t.Errorf("the schema is\n%s\nwant\n%s", got, want)
	}
	if groups := f.RowGroups(); len(groups) != 2 || groups[0].NumRows() != 1<<12 {
		t.Errorf("%d row groups, of which the first has %d rows", len(groups), groups[0].NumRows())
	}
	for _, group := range f.Metadata().RowGroups {
		if len(group.SortingColumns) != 5 {
			t.Errorf("it says that it is sorted by %v", group.SortingColumns)
		}
		for _, c := range group.Columns {
			if codec := c.MetaData.Codec.String(); codec != "ZSTD" {
				t.Errorf("%v is compressed by %s", c.MetaData.PathInSchema, codec)
			}
		}
	}

	if got, err := fromParquet(file); err != nil || !slices.EqualFunc(byID(got), byID(events), recordtest.Same) {
		t.Errorf("%d events, %v, want the %d that were written", len(got), err, len(events))
	}
	// Rows without a struct.
	if f.NumRows() != int64(len(events)) {
		t.Errorf("%d rows, want %d", f.NumRows(), len(events))
	}
	r := parquet.NewGenericReader[any](bytes.NewReader(file))
	defer r.Close()
	rows, last := make([]any, 1000), ""
	for n := 0; n < len(rows); {
		read, err := r.Read(rows[n:])
		if n += read; err != nil {
			t.Fatalf("%d rows, %v", n, err)
		}
	}
	for i, row := range rows {
		m, ok := row.(map[string]any)
		if !ok || len(m) != 28 {
			t.Fatalf("got %v", row)
		}
		if i == 0 && (m["time"] != at.UnixMicro() || m["user_id"] != "user0" || m["outcome"] != "allowed" || m["limit_value"] != int64(100) || m["retry_after_us"] != int64(1e6)) {
			t.Errorf("the first is %v", m)
		}
		key := fmt.Sprint(m["time"], m["tenant_id"], " ", m["user_id"])
		if key < last {
			t.Fatalf("%s comes after %s", key, last)
		}
		last = key
	}
}

func TestParquetRefuses(t *testing.T) {
	t.Parallel()
	var other bytes.Buffer
	w := parquet.NewGenericWriter[struct{ X int }](&other, parquet.KeyValueMetadata("stint.schema", "1"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	good := toParquet(t, someEvents(time.Unix(1e9, 0), 10))
	for says, file := range map[string][]byte{
		"EOF":                 nil,
		"magic":               []byte("this is not a Parquet file, though it is long enough"),
		"invalid magic":       good[:len(good)-1],
		"columns are not":     other.Bytes(),
		`stint.schema is "2"`: bytes.Replace(good, []byte("stint.schema\x18\x011"), []byte("stint.schema\x18\x012"), 1),
		"outcome":             bytes.ReplaceAll(toParquet(t, []record.Event{{Outcome: engine.Denied}}), []byte("denied"), []byte("danced")),
	} {
		if _, err := fromParquet(file); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}

// FuzzReadParquet checks that a broken file is an error, and no more than that.
func FuzzReadParquet(f *testing.F) {
	good := toParquet(f, someEvents(time.Unix(1e9, 0), 3))
	f.Add(0, []byte{0}, len(good))
	for i := range 100 {
		f.Add(i*len(good)/100, []byte{byte(i), 0xff}, len(good)-i%3)
	}
	f.Fuzz(func(_ *testing.T, at int, with []byte, size int) {
		file := bytes.Clone(good)
		if at >= 0 && at < len(file) {
			copy(file[at:], with)
		}
		if size >= 0 && size < len(file) {
			file = file[:size]
		}
		_, _ = fromParquet(file)
	})
}
