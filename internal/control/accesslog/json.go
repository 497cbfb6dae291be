package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// The names of fields, in the order in which they are used. Those of Caddy are in an object, request.
var (
	timeFields    = []string{"time", "timestamp", "@timestamp", "ts", "time_iso8601", "time_local", "msec", "start_time", "StartUTC", "StartLocal", "date"}
	addressFields = []string{"remote_addr", "remote_ip", "request.remote_ip", "client_ip", "clientip", "ClientHost", "ClientAddr", "downstream_remote_address", "remote_address", "ip", "addr", "host"}
	methodFields  = []string{"request_method", "method", "request.method", "RequestMethod", "verb"}
	uriFields     = []string{"request_uri", "uri", "request.uri", "RequestPath", "path", "url", "x_envoy_origin_path"}
	statusFields  = []string{"status", "DownstreamStatus", "response_code", "status_code", "code"}
	userFields    = []string{"remote_user", "user", "user_id", "ClientUsername", "username"}
)

// parseJSON parses a line that is an object of JSON.
func (r *Reader) parseJSON(line []byte) error {
	if len(line) == 0 || line[0] != '{' {
		return errors.New("want an object of JSON")
	}
	if !json.Valid(line) {
		return errors.New("it is not valid JSON: the line may be cut off")
	}
	p := &r.line
	found, problem := false, "no time: want one of the fields "+strings.Join(timeFields, ", ")
	const none = 1 << 10
	ranks := [...]int{none, none, none, none, none, none} // of the fields that were found: lower ones win
	better := func(which int, fields []string, name string) bool {
		for i, f := range fields {
			if i >= ranks[which] {
				return false
			}
			if f == name {
				ranks[which] = i
				return true
			}
		}
		return false
	}
	var request []byte
	fields(line, "", 0, func(name string, value []byte) {
		text, ok := textOf(value)
		if !ok {
			return
		}
		switch {
		case better(0, timeFields, name):
			if r.parseTime(text) {
				found, p.at, p.coarse = true, r.at, r.coarse
			} else if !found {
				problem = "the time " + strconv.Quote(string(text[:min(len(text), 40)])) + " is not one with a zone, such as 2026-01-31T12:00:00Z, or seconds since 1970"
				ranks[0] = none // another field may have it
			}
		case r.o.Address != "" && name == r.o.Address, r.o.Address == "" && better(1, addressFields, name):
			p.address = text
		case r.o.User != "" && name == r.o.User, r.o.User == "" && better(2, userFields, name):
			p.user = text
		case name == "request":
			request = text
		case better(3, methodFields, name):
			p.method = text
		case better(4, uriFields, name):
			p.uri = text
		case better(5, statusFields, name):
			p.status, _ = strconv.Atoi(string(text)) // 0 is unknown
		}
	})
	if request != nil && p.method == nil && p.uri == nil { // as in GET / HTTP/1.1
		p.method, request = word(request)
		p.uri, _ = word(request)
	}
	switch {
	case !found:
		return errors.New(problem)
	case p.address == nil && r.o.Address != "":
		return errors.New("no field " + r.o.Address)
	case p.address == nil:
		return errors.New("no address of the client: want one of the fields " + strings.Join(addressFields, ", "))
	}
	return nil
}

// textOf returns a value as text: what a string says, or a number.
func textOf(value []byte) (text []byte, ok bool) {
	switch value[0] {
	case '{', '[', 'n', 't', 'f':
		return nil, false
	case '"':
		if bytes.IndexByte(value, '\\') < 0 {
			return value[1 : len(value)-1], true
		}
		var s string
		if json.Unmarshal(value, &s) != nil {
			return nil, false
		}
		return []byte(s), true
	}
	return value, true
}

// fields calls each for the fields of an object, which is valid, and of objects in it, whose names have dots. It returns the number of
// bytes of the object.
func fields(text []byte, prefix string, depth int, each func(name string, value []byte)) int {
	const deepest = 3
	i := 1
	for {
		i += space(text[i:])
		switch text[i] {
		case '}':
			return i + 1
		case ',':
			i++
			continue
		}
		size := valueSize(text[i:])
		name := string(text[i+1 : i+size-1])
		if prefix != "" {
			name = prefix + "." + name
		}
		i += size
		i += space(text[i:])
		i++ // the colon
		i += space(text[i:])
		if text[i] == '{' && depth < deepest {
			i += fields(text[i:], name, depth+1, each)
			continue
		}
		size = valueSize(text[i:])
		each(name, text[i:i+size])
		i += size
	}
}

func space(text []byte) int {
	n := 0
	for n < len(text) && (text[n] == ' ' || text[n] == '\t' || text[n] == '\r' || text[n] == '\n') {
		n++
	}
	return n
}

// valueSize returns the number of bytes of a value, which is valid.
func valueSize(text []byte) int {
	inString, depth := false, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case inString && c == '\\':
			i++
		case c == '"':
			if inString = !inString; !inString && depth == 0 {
				return i + 1
			}
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth < 0 {
				return i
			}
			if depth == 0 {
				return i + 1
			}
		case depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			return i
		}
	}
	return len(text)
}
