package stint_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

func TestStateBinary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		_, s, _ := drawState(t, stint.Algorithms()...)
		b, err := s.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var back stint.State
		if err := back.UnmarshalBinary(b); err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		if len(s.Log) == 0 {
			s.Log = nil
		}
		if !reflect.DeepEqual(s, back) {
			t.Fatalf("%+v came back as %+v", s, back)
		}
	})
}

func TestBadState(t *testing.T) {
	t.Parallel()
	good, err := stint.State{
		Counter: stint.Counter{At: 7, Used: 3, Until: 9},
		Log:     []stint.Entry{{At: 5, Units: 1}, {At: 7, Units: 2}},
	}.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	change := func(i int, b byte) []byte {
		out := bytes.Clone(good)
		out[i] = b
		return out
	}
	for name, c := range map[string]struct {
		b    []byte
		says string
	}{
		"empty":       {nil, "at least 29"},
		"short":       {good[:28], "at least 29"},
		"version":     {change(0, 2), "version 2: want 1"},
		"torn":        {good[:len(good)-1], "inside an entry"},
		"huge":        {append(bytes.Clone(good), make([]byte, 14*10_000)...), "more than 10000"},
		"54 bits":     {change(1, 0x20), "53 bits"},
		"sum":         {change(len(good)-1, 1), "add up"},
		"no units":    {change(len(good)-1, 0), "add up"},
		"order":       {change(29+6, 8), "order"},
		"missing one": {good[:len(good)-14], "add up"},
	} {
		s := stint.State{Counter: stint.Counter{At: 1}}
		if err := s.UnmarshalBinary(c.b); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want an error that says %q", name, err, c.says)
		}
		if s.At != 1 {
			t.Errorf("%s: a bad state changed the receiver", name)
		}
	}
}

func FuzzStateDecode(f *testing.F) {
	for _, s := range []stint.State{
		{},
		{Counter: stint.Counter{At: 1, Used: 2, Aux: 3, Until: 1<<53 - 1}},
		{Counter: stint.Counter{At: 7, Used: 3, Until: 9}, Log: []stint.Entry{{At: 5, Units: 1}, {At: 7, Units: 2}}},
	} {
		b, err := s.MarshalBinary()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s stint.State
		if s.UnmarshalBinary(b) != nil {
			return
		}
		again, err := s.MarshalBinary()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x decodes to %+v, which encodes to %x, %v", b, s, again, err)
		}
	})
}
