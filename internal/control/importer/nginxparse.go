package importer

import (
	"path"
	"slices"
	"strings"
)

// directive is a directive of nginx, and what is in its block.
type directive struct {
	pos
	name  string
	args  []string
	block []*directive
	text  string // of a block of code
	open  bool   // it has a block
}

// String returns the directive as the file has it, without its block.
func (d *directive) String() string { return strings.Join(append([]string{d.name}, d.args...), " ") }

// all returns the directives of a name in the block.
func (d *directive) all(name string) (out []*directive) {
	for _, c := range d.block {
		if c.name == name {
			out = append(out, c)
		}
	}
	return out
}

func (d *directive) arg(i int) string {
	if i < len(d.args) {
		return d.args[i]
	}
	return ""
}

// nginxParser parses a file by the grammar of nginx: words, quotes, comments, blocks.
type nginxParser struct {
	m     *importer
	file  string
	text  string
	at    int
	line  int
	depth int
	chain []string // of files that include each other
	main  string   // the directory of the main file
}

// parseNginx returns the directives of a file, and of those that it includes.
func (m *importer) parseNginx(file, main string, chain []string, depth int) ([]*directive, error) {
	data, err := m.load(file)
	if err != nil {
		return nil, err
	}
	p := &nginxParser{m: m, file: file, text: string(data), line: 1, chain: append(slices.Clone(chain), file), main: main, depth: depth}
	return p.block(false)
}

func (p *nginxParser) here() pos { return pos{p.file, p.line} }

// block parses directives up to the end of the file, or of the block.
func (p *nginxParser) block(inside bool) (out []*directive, err error) {
	if p.depth++; p.depth > maxDepth {
		return nil, broken(p.here(), "more than %d blocks or files inside each other", maxDepth)
	}
	defer func() { p.depth-- }()
	began := p.here()
	for {
		d, named := &directive{pos: p.here()}, false
		for {
			word, end, err := p.word()
			if err != nil {
				return nil, err
			}
			if end == 0 {
				if !named {
					d.name, d.line, named = word, p.line, true // it may be "", in a map
				} else {
					d.args = append(d.args, word)
				}
				if p.m.nodes++; p.m.nodes > maxNodes {
					return nil, broken(p.here(), "more than %d words", maxNodes)
				}
				continue
			}
			switch {
			case end == 'e' && inside:
				return nil, broken(began, "the block has no end: want }")
			case end == 'e' && named, end == '}' && named:
				return nil, broken(d.pos, "%q is not ended: want ; after it", d.name)
			case end == 'e':
				return out, nil
			case end == '}' && !inside:
				return nil, broken(p.here(), "} without a block")
			case end == '}':
				return out, nil
			case !named && end == '{':
				return nil, broken(p.here(), "a block without a name")
			case end == '{':
				d.open = true
				if strings.HasSuffix(d.name, "_by_lua_block") || strings.HasSuffix(d.name, "_by_njs_block") {
					d.text, err = p.code()
				} else {
					d.block, err = p.block(true)
				}
				if err != nil {
					return nil, err
				}
			}
			break
		}
		switch {
		case !named:
		case d.name == "include":
			more, err := p.include(d)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		default:
			out = append(out, d)
		}
	}
}

// word returns the next word, or what ends a directive: ; { } or e at the end of the file.
func (p *nginxParser) word() (word string, end byte, err error) {
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '\n':
			p.line++
			p.at++
		case c == ' ' || c == '\t' || c == '\r' || strings.HasPrefix(p.text[p.at:], "\ufeff") && p.at == 0:
			p.at++
			if c == 0xef {
				p.at += 2
			}
		case c == '#':
			for p.at < len(p.text) && p.text[p.at] != '\n' {
				p.at++
			}
		case c == ';' || c == '{' || c == '}':
			p.at++
			return "", c, nil
		case c == '"' || c == '\'':
			word, err = p.quoted(c)
			return word, 0, err
		default:
			return p.plain(), 0, nil
		}
	}
	return "", 'e', nil
}

func (p *nginxParser) quoted(quote byte) (string, error) {
	began, line := p.here(), p.line
	var b strings.Builder
	for p.at++; p.at < len(p.text); p.at++ {
		switch c := p.text[p.at]; {
		case c == quote:
			p.at++
			return b.String(), nil
		case c == '\\' && p.at+1 < len(p.text):
			p.at++
			p.escaped(&b)
		default:
			if c == '\n' {
				p.line++
			}
			b.WriteByte(c)
		}
	}
	p.line = line
	return "", broken(began, "a quote without an end")
}

// escaped writes what a backslash and the next byte stand for.
func (p *nginxParser) escaped(b *strings.Builder) {
	switch c := p.text[p.at]; c {
	case '"', '\'', '\\':
		b.WriteByte(c)
	case 't':
		b.WriteByte('\t')
	case 'n':
		b.WriteByte('\n')
	case 'r':
		b.WriteByte('\r')
	default:
		b.WriteByte('\\')
		b.WriteByte(c)
		if c == '\n' {
			p.line++
		}
	}
}

// plain returns a word without quotes. A brace after $ belongs to the word.
func (p *nginxParser) plain() string {
	var b strings.Builder
	for p.at < len(p.text) {
		c := p.text[p.at]
		switch {
		case strings.IndexByte(" \t\r\n;", c) >= 0:
			return b.String()
		case c == '{' && p.at > 0 && p.text[p.at-1] == '$':
			end := strings.IndexAny(p.text[p.at:], "}\n")
			if end < 0 {
				end = len(p.text) - p.at - 1
			}
			b.WriteString(p.text[p.at : p.at+end+1])
			p.at += end + 1
			continue
		case c == '{':
			return b.String()
		case c == '\\' && p.at+1 < len(p.text):
			p.at++
			p.escaped(&b)
		default:
			b.WriteByte(c)
		}
		p.at++
	}
	return b.String()
}

// code returns the text of a block in another language, whose braces match.
func (p *nginxParser) code() (string, error) {
	began, start := p.here(), p.at
	for depth := 1; p.at < len(p.text); p.at++ {
		switch p.text[p.at] {
		case '\n':
			p.line++
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				p.at++
				return p.text[start : p.at-1], nil
			}
		}
	}
	return "", broken(began, "the block has no end: want }")
}

// harmless are files that come with nginx and have no limits.
var harmless = []string{"mime.types", "fastcgi_params", "fastcgi.conf", "uwsgi_params", "scgi_params", "proxy_params", "koi-utf", "koi-win", "win-utf"}

// include returns the directives of the files that an include names.
func (p *nginxParser) include(d *directive) (out []*directive, err error) {
	pattern := d.arg(0)
	if pattern == "" {
		return nil, broken(d.pos, "include: want the name of a file")
	}
	name := pattern
	if !path.IsAbs(name) {
		name = path.Join(p.main, name)
	}
	files := []string{name}
	if wild := strings.ContainsAny(name, "*?["); wild || p.m.Glob != nil {
		if files, err = p.find(name); err != nil {
			return nil, broken(d.pos, "include %s: %v", pattern, err)
		}
		switch {
		case len(files) == 0 && slices.Contains(harmless, path.Base(name)):
			return nil, nil
		case len(files) == 0 && wild:
			p.m.note(d.pos, d.String(), "no file matches")
		case len(files) == 0:
			p.m.missing(d.pos, d.String(), "the file is not there, so its limits are unknown", "import with all files of the configuration")
		}
	}
	for _, f := range files {
		if slices.Contains(p.chain, f) {
			return nil, broken(d.pos, "include %s: the file includes itself", pattern)
		}
		more, err := p.m.parseNginx(f, p.main, p.chain, p.depth)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// find lists files. A configuration that was copied from /etc/nginx has them beside its main file.
func (p *nginxParser) find(pattern string) ([]string, error) {
	files, err := p.m.Glob(pattern)
	if rest, ok := strings.CutPrefix(pattern, "/etc/nginx/"); err == nil && len(files) == 0 && ok {
		files, err = p.m.Glob(path.Join(p.main, rest))
	}
	slices.Sort(files)
	return files, err
}
