package strict

import (
	"encoding"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Unmarshaler is a value that may be written in more than one way. UnmarshalStrict gets the
// kind that was found, and calls decode with a suitable value. Its error is a problem with
// the value as a whole.
type Unmarshaler interface {
	UnmarshalStrict(found Kind, decode func(into any)) error
}

type decoder struct {
	doc    *Doc
	fields map[reflect.Type]*fields
	open   []scope // the structs around the current value, outermost first
}

type scope struct {
	where  *place
	fields *fields
}

func (d *decoder) value(n *node, v reflect.Value, where *place) {
	if d.doc.full() || d.doc.loose && n.kind == Null {
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch u := v.Addr().Interface().(type) {
	case Unmarshaler:
		err := u.UnmarshalStrict(n.kind, func(into any) { d.value(n, reflect.ValueOf(into).Elem(), where) })
		if err != nil {
			d.report(n, where, err.Error(), "")
		}
		return
	case encoding.TextUnmarshaler:
		if n.kind != String && n.kind != Time && !d.text(n) {
			d.mismatch(n, where, String)
		} else if err := u.UnmarshalText([]byte(n.text)); err != nil {
			d.report(n, where, err.Error(), "")
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if d.is(n, where, Table) {
			d.structure(n, v, where)
		}
	case reflect.Map:
		if d.is(n, where, Table) {
			d.mapping(n, v, where)
		}
	case reflect.Slice:
		if d.is(n, where, Array) {
			v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
			for i, item := range n.items {
				d.value(item, v.Index(i), &place{where, "", i})
			}
		}
	case reflect.String:
		if d.text(n) || d.is(n, where, String) {
			v.SetString(n.text)
		}
	case reflect.Bool:
		if d.is(n, where, Bool) {
			on, _ := truth(n.text)
			v.SetBool(on)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if d.is(n, where, Integer) {
			i, err := strconv.ParseInt(digits(n.text), 0, v.Type().Bits())
			if err != nil {
				most := int64(math.MaxInt64) >> (64 - v.Type().Bits())
				d.report(n, where, brief(n.text)+" is out of range, want an integer from "+
					strconv.FormatInt(-most-1, 10)+" to "+strconv.FormatInt(most, 10), "")
			}
			v.SetInt(i)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if d.is(n, where, Integer) {
			i, err := strconv.ParseUint(digits(n.text), 0, v.Type().Bits())
			if err != nil {
				d.report(n, where, brief(n.text)+" is out of range, want an integer from 0 to "+
					strconv.FormatUint(math.MaxUint64>>(64-v.Type().Bits()), 10), "")
			}
			v.SetUint(i)
		}
	case reflect.Float64:
		if n.kind == Integer || d.is(n, where, Float) {
			v.SetFloat(d.number(n, where))
		}
	case reflect.Interface:
		if whole := d.any(n, where); whole != nil {
			v.Set(reflect.ValueOf(whole))
		}
	default:
		panic("strict: cannot decode into " + v.Type().String())
	}
}

// text reports whether the value is a number, boolean or time that may stand for a string.
func (d *decoder) text(n *node) bool { return d.doc.loose && n.kind >= Integer && n.kind <= Time }

// digits returns a number without underscores and plus sign.
func digits(text string) string {
	return strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+")
}

func (d *decoder) number(n *node, where *place) float64 {
	text := digits(n.text)
	f, err := strconv.ParseFloat(text, 64)
	if i, other := strconv.ParseInt(text, 0, 64); n.kind == Integer && other == nil {
		f, err = float64(i), nil // 0x10, and 010 in YAML
	}
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		d.report(n, where, brief(n.text)+" is out of range, want a finite number", "")
	}
	return f
}

// any returns a value as map[string]any, []any, string, bool, float64, or nil for a null.
func (d *decoder) any(n *node, where *place) any {
	switch n.kind {
	case Table:
		members := make(map[string]any, len(n.members))
		for _, m := range n.members {
			members[m.name] = d.any(m.value, &place{where, m.name, -1})
		}
		return members
	case Array:
		items := make([]any, len(n.items))
		for i, item := range n.items {
			items[i] = d.any(item, &place{where, "", i})
		}
		return items
	case Integer, Float:
		return d.number(n, where)
	case Bool:
		on, _ := truth(n.text)
		return on
	case Null:
		return nil
	default:
		return n.text
	}
}

func (d *decoder) structure(n *node, v reflect.Value, where *place) {
	known := d.fieldsOf(v.Type())
	d.open = append(d.open, scope{where, known})
	for _, m := range n.members {
		inside := &place{where, m.name, -1}
		if f, ok := known.byName[m.name]; ok {
			d.value(m.value, v.FieldByIndex(f.Index), inside)
		} else if !d.doc.full() {
			d.unknown(n, m, where)
		}
	}
	d.open = d.open[:len(d.open)-1]
}

func (d *decoder) mapping(n *node, v reflect.Value, where *place) {
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.members)))
	for _, m := range n.members {
		value := reflect.New(v.Type().Elem()).Elem()
		d.value(m.value, value, &place{where, m.name, -1})
		v.SetMapIndex(reflect.ValueOf(m.name).Convert(v.Type().Key()), value)
	}
}

// unknown reports a name that the innermost struct does not have. It may be misspelled, or
// belong to a struct inside or around it: in TOML, lines after a header belong to its table,
// even if they were meant for the one before.
func (d *decoder) unknown(table *node, m member, where *place) {
	known := d.open[len(d.open)-1].fields
	hint := ""
	if name, ok := Closest(m.name, known.names); ok {
		hint = DidYouMean(name)
		if table.member(name) == nil {
			d.doc.broken[Member(where.String(), name)] = true // it is misspelled, not missing
		}
	} else if path, ok := d.elsewhere(m.name, known); ok {
		hint = DidYouMean(path)
	} else if len(known.names) > 0 {
		hint = "want one of " + strings.Join(known.names, ", ")
	}
	d.doc.report(m.at, &place{where, m.name, -1}, UnknownField, hint)
}

func (d *decoder) elsewhere(name string, known *fields) (path string, ok bool) {
	for _, outer := range known.names {
		t, step := known.byName[outer].Type, outer
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			if t.Kind() == reflect.Slice {
				step = Item(step, 0)
			}
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			continue
		}
		if _, ok := d.fieldsOf(t).byName[name]; ok {
			return step + "." + name, true
		}
	}
	for i := len(d.open) - 2; i >= 0; i-- {
		if _, ok := d.open[i].fields.byName[name]; ok {
			return Member(d.open[i].where.String(), name), true
		}
	}
	return "", false
}

func (d *decoder) is(n *node, where *place, want Kind) bool {
	if n.kind != want {
		d.mismatch(n, where, want)
	}
	return n.kind == want
}

func (d *decoder) mismatch(n *node, where *place, want Kind) {
	hint := ""
	switch _, err := strconv.ParseInt(n.text, 10, 64); {
	case n.kind == Null:
		hint = "leave it out instead"
	case n.kind == String && (want == Integer && err == nil || want == Bool && (n.text == "true" || n.text == "false")):
		hint = "write it without quotes"
	case want == String && n.kind >= Integer:
		hint = "write it in quotes"
	case want == Array && n.kind != Table:
		hint = "write it in brackets"
	case want == Array && n.made == byHeader:
		hint = "write its header in double brackets"
	}
	d.report(n, where, "found "+n.kind.String()+", want "+want.String(), hint)
}

func (d *decoder) report(n *node, where *place, message, hint string) {
	d.doc.report(n.at, where, message, hint)
}

// brief shortens the text to 64 bytes, of whole characters.
func brief(text string) string {
	end := 64
	if len(text) <= end {
		return text
	}
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// fields are the fields of a struct by their names in documents.
type fields struct {
	names  []string
	byName map[string]reflect.StructField
}

func (d *decoder) fieldsOf(t reflect.Type) *fields {
	if f, ok := d.fields[t]; ok {
		return f
	}
	f := &fields{byName: map[string]reflect.StructField{}}
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "" || name == "-" {
			continue
		}
		f.names = append(f.names, name)
		f.byName[name] = field
	}
	d.fields[t] = f
	return f
}
