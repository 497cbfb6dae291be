package scan_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stintdev/stint/internal/kit/scan"
)

// tokens writes down what it is told, so that pieces of a string do not matter.
type tokens struct {
	strings.Builder
	inText bool
}

func (t *tokens) Begin(array bool) {
	if array {
		t.WriteString("[ ")
	} else {
		t.WriteString("{ ")
	}
}
func (t *tokens) End()                      { t.WriteString("end ") }
func (t *tokens) Name(name []byte, ok bool) { fmt.Fprintf(t, "%q:%v ", name, ok) }
func (t *tokens) Number(n int64)            { fmt.Fprintf(t, "%d ", n) }
func (t *tokens) Word(first byte)           { fmt.Fprintf(t, "%c ", first) }
func (t *tokens) Text(piece []byte, last bool) {
	if !t.inText {
		t.WriteByte('<')
	}
	t.Write(piece)
	t.inText = !last
	if last {
		t.WriteString("> ")
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a":[1,-2,0.5,1e3],"b":{"c":null}}`:       `{ "a":true [ 1 0 1 1000 end "b":true { "c":true n end end `,
		` [ true , false , null , "x" , {} , [] ] `: `[ t f n <x> { end [ end end `,
		`"a\n\"\\\/\b\f\r\tb"`:                      "<a\n\"\\/\b\f\r\tb> ",
		`"\u0041\u00e9\u4e2d\ud83d\ude00"`:          "<A\u00e9\u4e2d\U0001F600> ",
		`"\ud83d" `:                                 "<\uFFFD> ",
		`"\ud83dx\ude00\ud83d\ud83d\ude00\ud83d\n"`: "<\uFFFDx\uFFFD\uFFFD\U0001F600\uFFFD\n> ",
		`{"\u0075sage":1}`:                          `{ "usage":true 1 end `,
		`7`:                                         `7 `,
		`{"` + strings.Repeat("n", 200) + `":"` + strings.Repeat("v", 200) + `"}`: `{ "` + strings.Repeat("n", scan.MaxName) + `":false <` + strings.Repeat("v", 200) + `> end `,
	} {
		for _, size := range []int{1, 2, 3, len(in)} {
			var got tokens
			j := scan.NewJSON(&got)
			for p := []byte(in); len(p) > 0; p = p[min(size, len(p)):] {
				j.Write(p[:min(size, len(p))])
			}
			if !j.Close() || got.String() != want {
				t.Errorf("%s in pieces of %d: complete %v, got %s, want %s", in, size, j.Done(), got.String(), want)
			}
		}
	}
}

func TestJSONDepth(t *testing.T) {
	t.Parallel()
	for depth, want := range map[int]bool{scan.MaxDepth: true, scan.MaxDepth + 1: false} {
		j := scan.NewJSON(new(tokens))
		j.Write([]byte(strings.Repeat(`[{"a":`, depth/2) + strings.Repeat("[", depth%2) + "1" + strings.Repeat("]", depth%2) + strings.Repeat("}]", depth/2)))
		if got := j.Close(); got != want || j.Broken() == want {
			t.Errorf("depth %d: complete %v, broken %v", depth, got, j.Broken())
		}
	}
}

func TestCeil(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"0": 0, "-0": 0, "-5": 0, "-0.1": 0, "7": 7, " 7 ": 7, "0.001": 1, "1.0": 1, "1.01": 2, "12.5": 13,
		"1e3": 1000, "1.5E+2": 150, "1e-9": 1, "0e9": 0, "123e-2": 2, "100e-2": 1, "0.0": 0,
		"9007199254740991": scan.MaxNumber, "9007199254740990.5": scan.MaxNumber, "9007199254740992": scan.MaxNumber,
		"1e999999999999": scan.MaxNumber, "1e-999999999999": 1, "1" + strings.Repeat("0", 500): scan.MaxNumber,
		"1" + strings.Repeat("0", 500) + "e-500": 1, "1" + strings.Repeat("0", 500) + "1e-501": 2,
		"0." + strings.Repeat("0", 500) + "1": 1, "0." + strings.Repeat("0", 500) + "1e501": 1,
		"3.00000000000000000000000000000001": 4, "3.00000000000000000000000000000000": 3,
	} {
		if got, ok := scan.Ceil(in); !ok || got != want {
			t.Errorf("Ceil(%.40s) = %d, %v, want %d", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "-", "+1", "01", "1.", ".5", "1e", "1e+", "0x1", "1 2", "NaN", "Infinity", "1,5", "--1", "1e1.5"} {
		if got, ok := scan.Ceil(in); ok {
			t.Errorf("Ceil(%q) = %d, want that it is no number", in, got)
		}
	}
}

// ceil is what Ceil means, by arbitrary precision.
func ceil(text string) int64 {
	r, ok := new(big.Rat).SetString(text)
	if !ok || r.Sign() <= 0 {
		return 0
	}
	n, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if n.Cmp(big.NewInt(scan.MaxNumber)) > 0 {
		return scan.MaxNumber
	}
	return n.Int64()
}

// oracle writes down the tokens of a whole text by the standard library.
func oracle(text []byte) string {
	var out tokens
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	type level struct{ object, name bool }
	var levels []level
	for {
		token, err := d.Token()
		if err != nil {
			return out.String()
		}
		top := len(levels) - 1
		isName := top >= 0 && levels[top].object && levels[top].name
		if top >= 0 && levels[top].object {
			levels[top].name = !levels[top].name
		}
		switch v := token.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				out.Begin(v == '[')
				levels = append(levels, level{v == '{', v == '{'})
			} else {
				out.End()
				levels = levels[:top]
			}
		case string:
			if isName {
				out.Name([]byte(v)[:min(len(v), scan.MaxName)], len(v) <= scan.MaxName)
			} else {
				out.Text([]byte(v), true)
			}
		case json.Number:
			out.Number(ceil(v.String()))
		case bool:
			out.Word("ft"[map[bool]int{true: 1}[v]])
		case nil:
			out.Word('n')
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"usage":{"total":12.5,"x":[1,2,{"a":"b\u00e9\n"}]}}`, `[]`, `"\ud83d\ude00\ud83d"`, `-1.5e-3`, `[1,]`, `{"a"}`,
		`tru`, `{"a":1}x`, "[\"\x01\"]", `[[[[[[]]]]]]`, "{\"\xff\":\"\xfe\"}", `[9007199254740993,1e400]`,
	} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		var whole, pieces tokens
		one, many := scan.NewJSON(&whole), scan.NewJSON(&pieces)
		one.Write(text)
		for p := text; len(p) > 0; {
			n := min(int(size%16)+1, len(p))
			many.Write(p[:n])
			p = p[n:]
		}
		if one.Close() != many.Close() || whole.String() != pieces.String() || one.Broken() != many.Broken() {
			t.Fatalf("%q in pieces: %q, whole: %q", text, pieces.String(), whole.String())
		}
		if deep(text) {
			return
		}
		if valid := json.Valid(text); valid != one.Done() {
			t.Fatalf("%q: valid %v, complete %v", text, valid, one.Done())
		}
		if one.Done() && utf8.Valid(text) && !longExponent(text) {
			if want := oracle(text); whole.String() != want {
				t.Fatalf("%q: got %q, want %q", text, whole.String(), want)
			}
		}
	})
}

// deep reports whether a text may be nested too deep.
func deep(text []byte) bool {
	return bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > scan.MaxDepth
}

// longExponent reports whether a number may be too much for arbitrary precision.
func longExponent(text []byte) bool {
	for i, c := range text {
		if c|0x20 != 'e' {
			continue
		}
		n := 0
		for _, d := range text[i+1:] {
			if d >= '0' && d <= '9' {
				n++
			} else if d != '+' && d != '-' {
				break
			}
		}
		if n > 4 {
			return true
		}
	}
	return false
}

func BenchmarkJSON(b *testing.B) {
	text := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}],"usage":null}`)
	paths, err := scan.NewPaths("usage.total_tokens", "choices[*].delta.content")
	if err != nil {
		b.Fatal(err)
	}
	m := scan.NewMatch(paths, nothing{})
	j := scan.NewJSON(m)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		j.Write(text)
		j.Reset()
		m.Reset()
	}
}

type nothing struct{}

func (nothing) Value(int, scan.Value) {}
func (nothing) Text(int, []byte)      {}
