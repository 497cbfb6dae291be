package identity

import "strings"

// bearer returns the request's bearer token, and "" if it has none. Hidden says that there
// is one in another form, which a service behind us may read all the same. Two lines are
// rejected: the service may read the other one.
func bearer(q *Request) (token string, hidden bool, err error) {
	lines := q.Headers["Authorization"]
	if len(lines) == 0 {
		return "", false, nil
	}
	if len(lines) > 1 {
		return "", false, &RefusedError{Reason: Ambiguous}
	}
	line := strings.Trim(lines[0], " \t") // the next hop does so, if HTTP/2 did not
	const scheme = "Bearer "
	switch {
	case len(line) > len(scheme) && strings.EqualFold(line[:len(scheme)], scheme):
		return strings.TrimLeft(line[len(scheme):], " "), false, nil
	case strings.EqualFold(line, "Bearer"): // and no token
		return "", false, nil
	}
	return "", saysBearer(line) || hasJWT(line), nil
}

// saysBearer reports whether bearer, in any case, is a word at the start of the line, or after
// a space or a comma: Basic YTpi, Bearer TOKEN. What ends the word does not matter: for some
// services a tab is a space, and so is what ISO 8859-1 has as one.
func saysBearer(line string) bool {
	const word = "bearer"
	for i := 0; i+len(word) <= len(line); i++ {
		if !strings.EqualFold(line[i:i+len(word)], word) {
			continue
		}
		starts := i == 0 || isBreak(line[i-1])
		ends := i+len(word) == len(line) || !isBase62[line[i+len(word)]]
		if starts && ends {
			return true
		}
	}
	return false
}

// isBreak reports whether a new word begins after the byte. Bytes that are not ASCII are
// spaces in some encodings.
func isBreak(c byte) bool { return c <= ' ' || c == ',' || c == ';' || c >= 0x7f }

// hasJWT reports whether there is a JWT somewhere in the line: some services take whatever
// follows any scheme, or the whole line. Clients cannot change how a token begins, because
// it is signed: with an object in JSON, in base64. Two dots follow.
func hasJWT(line string) bool {
	begun := false // in this run of base64
	for i := range len(line) {
		switch c := line[i]; {
		case c == '.' && begun:
			return strings.IndexByte(line[i+1:], '.') >= 0
		case !isBase62[c] && c != '-' && c != '_':
			begun = false
		case i >= 2:
			begun = begun || opensObject(line[i-2], line[i-1], c)
		}
	}
	return false
}

// opensObject reports whether base64 that begins so decodes to { and a quote or white space.
func opensObject(a, b, c byte) bool {
	switch {
	case a != 'e':
		return false
	case b == 'y': // {" or a space
		return c >= 'A' && c <= 'D' || c >= 'I' && c <= 'L'
	case b == 'w': // a tab, or the end of a line
		return c >= 'k' && c <= 'r' || c >= '0' && c <= '3'
	}
	return false
}
