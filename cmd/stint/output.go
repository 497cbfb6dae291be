package main

import (
	"bufio"
	"encoding"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
)

// Output formats.
const (
	asTable   = "table" // for people
	asJSON    = "json"
	asYAML    = "yaml"
	asCSV     = "csv"
	asTOML    = "toml"
	asParquet = "parquet"
)

// choice is a flag that has one of a few values.
type choice struct {
	value  *string
	values []string
}

func (c choice) String() string {
	if c.value == nil { // pflag calls this on the zero value
		return ""
	}
	return *c.value
}

func (c choice) Type() string { return "string" }

func (c choice) Set(text string) error {
	if !slices.Contains(c.values, text) {
		return fmt.Errorf("want one of %s", strings.Join(c.values, ", "))
	}
	*c.value = text
	return nil
}

// addChoice adds a flag that has one of a few values. The first value is the default.
func addChoice(c *cobra.Command, value *string, name, short, usage string, values ...string) {
	*value = values[0]
	c.Flags().VarP(choice{value, values}, name, short, usage)
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// addOutput adds -o, which terminal.format gets. Without formats, it has the usual ones.
func addOutput(c *cobra.Command, formats ...string) {
	if len(formats) == 0 {
		formats = []string{asTable, asJSON, asYAML, asCSV}
	}
	last := len(formats) - 1
	addChoice(c, new(string), "output", "o", "the output `format`: "+strings.Join(formats[:last], ", ")+" or "+formats[last], formats...)
}

// print writes a value in the format of -o: as JSON or YAML; as CSV, with a row for each element of
// rows, or of the value if rows is nil; or for people.
func (t *terminal) print(value, rows any, people func() error) error {
	switch t.format {
	case asJSON:
		return t.writeJSON(value, "  ")
	case asYAML:
		return t.writeYAML(value)
	case asCSV:
		if rows == nil {
			rows = value
		}
		if reflect.ValueOf(rows).Kind() != reflect.Slice {
			one := reflect.ValueOf(rows)
			rows = reflect.Append(reflect.MakeSlice(reflect.SliceOf(one.Type()), 0, 1), one).Interface()
		}
		return t.writeCSV(rows)
	}
	return people()
}

// printList prints a list, in which each item is a row of the table. If the list is empty,
// a note says so in place of the table.
func printList[T any](t *terminal, all []T, empty string, head []string, row func(*T) []any) error {
	return t.print(all, nil, func() error { return printTable(t, all, empty, head, row) })
}

func printTable[T any](t *terminal, all []T, empty string, head []string, row func(*T) []any) error {
	if len(all) == 0 && empty != "" {
		t.notes(empty)
		return nil
	}
	w := t.table(head...)
	for i := range all {
		w.row(row(&all[i])...)
	}
	return w.Flush()
}

// writeJSON writes a value, in one line if there is no indent.
func (t *terminal) writeJSON(v any, indent string) error {
	e := json.NewEncoder(t.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// writeYAML writes a value with the names, the order and the numbers of its JSON. A second value begins a
// new document.
func (t *terminal) writeYAML(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil { // JSON is YAML
		return err
	}
	plain(&n)
	if t.document {
		fmt.Fprintln(t.out, "---")
	}
	t.document = true
	e := yaml.NewEncoder(t.out)
	e.SetIndent(2)
	return errors.Join(e.Encode(&n), e.Close())
}

// plain removes braces, and quotes that are not needed.
func plain(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		plain(c)
	}
}

// writeCSV writes a slice of structs, after a header at the first call. There is a column
// for each field, named as in JSON. Fields of nested structs have columns of their own;
// other nested values are JSON.
func (t *terminal) writeCSV(rows any) (err error) {
	all := reflect.ValueOf(rows)
	var cells []string
	if t.csv == nil {
		t.csv = csv.NewWriter(t.out)
		columns("", reflect.New(indirect(all.Type().Elem())).Elem(), func(name string, _ reflect.Value) { cells = append(cells, name) })
		err = t.csv.Write(cells)
	}
	for i := range all.Len() {
		cells = nil
		columns("", reflect.Indirect(all.Index(i)), func(_ string, v reflect.Value) {
			text, failed := csvText(v)
			err = errors.Join(err, failed)
			cells = append(cells, text)
		})
		err = errors.Join(err, t.csv.Write(cells))
	}
	t.csv.Flush()
	return errors.Join(err, t.csv.Error())
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// columns calls each for the fields of a struct and of the structs in it.
func columns(prefix string, v reflect.Value, each func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of, value := f.Type, v.Field(i)
		if of.Kind() == reflect.Pointer && indirect(of).Kind() == reflect.Struct {
			if of = indirect(of); value.IsNil() {
				value = reflect.New(of)
			}
			value = value.Elem()
		}
		switch name := prefix + tag; {
		case tag == "-" || !f.IsExported() && !f.Anonymous:
		case of.Kind() == reflect.Struct && !marshals(of):
			if !f.Anonymous {
				name += "."
			}
			columns(name, value, each)
		default:
			each(name, value)
		}
	}
}

// marshals reports whether a type defines its own form in JSON.
func marshals(t reflect.Type) bool {
	t = reflect.PointerTo(t)
	return t.Implements(reflect.TypeFor[json.Marshaler]()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// csvText returns the text of a cell, without control characters.
func csvText(v reflect.Value) (string, error) {
	switch v.Kind() { //nolint:exhaustive // the others are never empty
	case reflect.String:
		return printable(v.String()), nil
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 {
			return "", nil
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return "", nil
		}
	case reflect.Struct:
		if z, ok := v.Interface().(interface{ IsZero() bool }); ok && z.IsZero() {
			return "", nil
		}
	}
	data, err := json.Marshal(v.Interface())
	if err != nil {
		return "", err
	}
	var text string
	if json.Unmarshal(data, &text) == nil { // such as a time
		return printable(text), nil
	}
	return printable(string(data)), nil
}

// printable quotes a text that contains control characters. Clients choose some texts.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// visible is like printable, with a dash for an empty text.
func visible(text string) string {
	if text == "" {
		return "-"
	}
	return printable(text)
}

// clean replaces control characters in a text that a client may have chosen.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// table is a table for people.
type table struct{ *tabwriter.Writer }

func (t *terminal) table(head ...string) table {
	w := table{tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)}
	if len(head) > 0 {
		fmt.Fprintln(w, strings.Join(head, "\t"))
	}
	return w
}

func (w table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = cell(c)
	}
	fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// cell returns a value as people read it. Empty values are a dash.
func cell(c any) string {
	switch c := c.(type) {
	case nil:
		return "-"
	case bool:
		if c {
			return "yes"
		}
		return "no"
	case time.Time:
		if c.IsZero() {
			return "-"
		}
		return c.UTC().Format(time.RFC3339)
	case []string:
		return visible(strings.Join(c, ", "))
	}
	return visible(fmt.Sprint(c))
}

// notes writes notes to the standard error.
func (t *terminal) notes(notes ...string) {
	for _, n := range notes {
		fmt.Fprintln(t.err, "note:", n)
	}
}

// errDeclined means that the user did not confirm.
var errDeclined = fmt.Errorf("%w: nothing was changed", errNo)

// consent is the flag --yes of commands that cannot be undone.
type consent bool

func (y *consent) add(c *cobra.Command) {
	c.Flags().BoolVar((*bool)(y), "yes", false, "do not ask for confirmation")
}

// ask asks for confirmation, unless there is --yes.
func (y consent) ask(c *cobra.Command, t *terminal, what string) error {
	if y {
		return nil
	}
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return advice{fmt.Errorf("%s: cannot ask for confirmation without a terminal", what), "the same with --yes"}
	}
	fmt.Fprintf(t.err, "%s%s. Continue? [y/N] ", strings.ToUpper(what[:1]), what[1:])
	line, _ := bufio.NewReader(in).ReadString('\n') // no line means no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	fmt.Fprintln(t.err, "nothing was changed")
	return errDeclined
}

func addDryRun(c *cobra.Command, dryRun *bool) {
	c.Flags().BoolVar(dryRun, "dry-run", false, "show what would be changed, and change nothing")
}

// addFile adds -f for a file to read.
func addFile(c *cobra.Command, file *string, usage string) {
	c.Flags().StringVarP(file, "file", "f", "", usage+", or - for the standard input")
	_ = c.MarkFlagFilename("file", "toml", "json") // the flag exists
}

// addOutputFile adds -f for a file to write.
func addOutputFile(c *cobra.Command, file *string) {
	c.Flags().StringVarP(file, "file", "f", "", "the `FILE` to write (default: the standard output)")
}

// readFile reads a file, or the standard input if it is "-", and returns its name for error
// messages.
func readFile(c *cobra.Command, file string, limit int64, tooLarge string) (name string, data []byte, err error) {
	in := c.InOrStdin()
	if name = file; file == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(file)
		if err != nil {
			return name, nil, advice{err, "-f with a file that exists and can be read"}
		}
		defer f.Close()
		in = f
	}
	data, err = io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return name, nil, fmt.Errorf("%s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return name, nil, advice{fmt.Errorf("%s has more than %d bytes", name, limit), tooLarge}
	}
	return name, data, nil
}

const clearLine = "\r\x1b[K"

// screen returns the standard error if it is a terminal, or nil.
func (t *terminal) screen() *os.File {
	if f, ok := t.err.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// newProgress returns a function that shows progress: as a bar on a terminal, or in lines,
// at most one per second.
func newProgress(w io.Writer, bar bool) func(done, all int64, what string) {
	const width, interval = 30, 100 * time.Millisecond
	last := now()
	return func(done, all int64, what string) {
		at := now()
		switch {
		case bar && done >= all:
			fmt.Fprint(w, clearLine)
		case bar && at.Sub(last) >= interval:
			full := int(done * width / all)
			fmt.Fprintf(w, clearLine+"%s [%s%s] %d%%", what, strings.Repeat("#", full), strings.Repeat(".", width-full), done*100/all)
			last = at
		case !bar && at.Sub(last) >= time.Second:
			fmt.Fprintf(w, "%s: %d of %d events\n", what, done, all)
			last = at
		}
	}
}

// counter shows on a terminal how many bytes were written.
type counter struct {
	io.Writer
	screen        *os.File // nil: it shows nothing
	begin         func()   // called before something is written, and at the end
	bytes, showed int64
}

func (c *counter) Write(p []byte) (int, error) {
	const step = 256 << 10
	c.begin()
	n, err := c.Writer.Write(p)
	if c.bytes += int64(n); c.screen != nil && c.bytes-c.showed >= step {
		c.showed = c.bytes
		fmt.Fprintf(c.screen, clearLine+"%.1f MB", float64(c.bytes)/1e6)
	}
	return n, err
}

func (c *counter) end() {
	c.begin()
	if c.showed > 0 {
		fmt.Fprint(c.screen, clearLine)
	}
}

// firstData is what an export waits for first.
const firstData = "waiting for the first data"

// writeTo writes to a file, or to the standard output if path is empty or "-". The file is
// replaced as a whole or not at all, and only its owner can read it.
func (t *terminal) writeTo(path string, write func(io.Writer) error) error {
	if path == "" || path == "-" {
		c := &counter{Writer: t.out, begin: t.waiting(firstData)}
		if f, ok := t.out.(*os.File); ok && !term.IsTerminal(int(f.Fd())) { // or both would be on one screen
			c.screen = t.screen()
		}
		defer c.end()
		return write(c)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return advice{err, "-f with a file in a directory that can be written to"}
	}
	c := &counter{Writer: f, screen: t.screen(), begin: t.waiting(firstData)}
	err = errors.Join(write(c), f.Close())
	c.end()
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
	}
	return err
}
