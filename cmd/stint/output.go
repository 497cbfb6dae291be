package main

import (
	"bufio"
	"encoding"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

// How an answer is written.
const (
	asTable = "table" // for people
	asJSON  = "json"
	asCSV   = "csv"
)

// choice is a flag that has one of a few values.
type choice struct {
	into  *string
	among []string
}

func (c choice) String() string {
	if c.into == nil { // as pflag asks the zero value
		return ""
	}
	return *c.into
}

func (c choice) Type() string { return "string" }

func (c choice) Set(text string) error {
	if !slices.Contains(c.among, text) {
		return fmt.Errorf("want one of %s", strings.Join(c.among, ", "))
	}
	*c.into = text
	return nil
}

// addChoice adds such a flag; the first value is the default.
func addChoice(c *cobra.Command, into *string, name, short, usage string, among ...string) {
	*into = among[0]
	c.Flags().VarP(choice{into, among}, name, short, usage)
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(among, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// addOutput adds -o.
func addOutput(c *cobra.Command, as *string) {
	addChoice(c, as, "output", "o", "how to write it, as a `format`: table, json or csv", asTable, asJSON, asCSV)
}

// say writes an answer: as JSON; as CSV, in which each of the rows has the fields of its
// JSON; or for people. Rows are a slice, or else the answer is one itself, or is one row.
func (t *terminal) say(as string, answer, rows any, people func() error) error {
	switch as {
	case asJSON:
		return t.writeJSON(answer)
	case asCSV:
		if rows == nil {
			rows = answer
		}
		all := reflect.ValueOf(rows)
		if all.Kind() != reflect.Slice {
			one := reflect.MakeSlice(reflect.SliceOf(all.Type()), 0, 1)
			all = reflect.Append(one, all)
		}
		w := csvWriter{Writer: csv.NewWriter(t.out)}
		if err := w.head(all.Type().Elem()); err != nil {
			return err
		}
		for i := range all.Len() {
			if err := w.row(all.Index(i)); err != nil {
				return err
			}
		}
		return w.end()
	}
	return people()
}

func (t *terminal) writeJSON(v any) error {
	e := json.NewEncoder(t.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeLine writes an object in a line of its own.
func (t *terminal) writeLine(v any) error {
	e := json.NewEncoder(t.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// csvWriter writes structs: a column for each field, by its name in JSON. What is in a
// struct has a column, too; what is in anything else is JSON.
type csvWriter struct{ *csv.Writer }

func (w csvWriter) head(of reflect.Type) error {
	var names []string
	columns("", reflect.New(indirect(of)).Elem(), func(name string, _ reflect.Value) { names = append(names, name) })
	return w.Write(names)
}

func (w csvWriter) row(v reflect.Value) error {
	var cells []string
	var failed error
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	columns("", v, func(_ string, v reflect.Value) {
		text, err := csvText(v)
		failed = errors.Join(failed, err)
		cells = append(cells, text)
	})
	return errors.Join(failed, w.Write(cells))
}

func (w csvWriter) end() error {
	w.Flush()
	return w.Error()
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// columns goes through the fields of a struct, and of structs in it.
func columns(prefix string, v reflect.Value, each func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		of, at := f.Type, v.Field(i)
		if of.Kind() == reflect.Pointer && indirect(of).Kind() == reflect.Struct {
			if of = indirect(of); at.IsNil() {
				at = reflect.New(of).Elem()
			} else {
				at = at.Elem()
			}
		}
		switch name := prefix + tag; {
		case tag == "-" || !f.IsExported() && !f.Anonymous:
		case of.Kind() == reflect.Struct && !marshals(of):
			if !f.Anonymous {
				name += "."
			}
			columns(name, at, each)
		default:
			each(name, at)
		}
	}
}

// marshals reports whether a type says itself how it is written.
func marshals(t reflect.Type) bool {
	t = reflect.PointerTo(t)
	return t.Implements(reflect.TypeFor[json.Marshaler]()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// csvText is a value in a cell. It has no character that a terminal obeys.
func csvText(v reflect.Value) (string, error) {
	if v.Kind() == reflect.String {
		return printable(v.String()), nil
	}
	switch v.Kind() { //nolint:exhaustive // the others are never nothing
	case reflect.Slice, reflect.Map, reflect.Pointer, reflect.Interface:
		if v.IsNil() || v.Kind() != reflect.Pointer && v.Kind() != reflect.Interface && v.Len() == 0 {
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

// printable is a text that a client may have chosen, without what a terminal would obey.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// visible is the same where nothing would not be seen.
func visible(text string) string {
	if text == "" {
		return "-"
	}
	return printable(text)
}

// grid is a table for people.
type grid struct{ *tabwriter.Writer }

func (t *terminal) grid(head ...string) grid {
	g := grid{tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(g, strings.Join(head, "\t"))
	return g
}

// row writes cells: texts are made visible, and what is nothing is a dash.
func (g grid) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = cell(c)
	}
	fmt.Fprintln(g, strings.Join(texts, "\t"))
}

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

// notes writes what is to be known beside the answer.
func (t *terminal) notes(notes ...string) {
	for _, n := range notes {
		fmt.Fprintln(t.err, "note:", n)
	}
}

// errDeclined says that someone was asked, and did not agree.
var errDeclined = fmt.Errorf("%w: nothing was changed", errNo)

// consent is the flag --yes of commands that cannot be undone.
type consent bool

func (y *consent) add(c *cobra.Command) {
	c.Flags().BoolVar((*bool)(y), "yes", false, "do not ask whether it is meant")
}

// ask asks whether something is meant, if it was not said to be.
func (y consent) ask(c *cobra.Command, t *terminal, what string) error {
	if y {
		return nil
	}
	in, ok := c.InOrStdin().(*os.File)
	if !ok || !isTerminal(in) {
		return advice{fmt.Errorf("%s: there is no terminal to ask whether that is meant", what), "the same with --yes"}
	}
	fmt.Fprintf(t.err, "%s%s. Go on? [y/N] ", strings.ToUpper(what[:1]), what[1:])
	line, _ := bufio.NewReader(in).ReadString('\n') // none is no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	fmt.Fprintln(t.err, "nothing was changed")
	return errDeclined
}
