package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stintdev/stint/rule"
)

// lastGood is a file with the last snapshot that was put to use, so that a node can start
// without the database, and knows which history it has followed. It is replaced atomically,
// and has a checksum.
type lastGood struct{ path string } // empty: there is none

// goodHeader starts the first line, which ends with the checksum of the other lines.
const goodHeader = "stint last good 1 sha256:"

// goodDraft is the pattern of the names of temporary files.
const goodDraft = ".last-good-*"

// tidy removes old temporary files of killed processes.
func (l lastGood) tidy(now time.Time) {
	drafts, _ := filepath.Glob(filepath.Join(filepath.Dir(l.path), goodDraft)) // the pattern is valid
	for _, draft := range drafts {
		if info, err := os.Stat(draft); err == nil && now.Sub(info.ModTime()) > time.Hour {
			_ = os.Remove(draft) // if it fails, the next call tries again
		}
	}
}

// lastGoodContent is the content of the file.
type lastGoodContent struct {
	mark
	Accepted []string  `json:"accepted,omitempty"`
	Saved    time.Time `json:"saved"`
	Document Document  `json:"document"`
}

// LastGoodPrefix begins the names of the files of last good rules.
const LastGoodPrefix = "last-good-"

// newLastGood returns the file in a directory for the database at a place.
func newLastGood(dir, place string) lastGood {
	if dir == "" {
		return lastGood{}
	}
	sum := sha256.Sum256([]byte(place))
	return lastGood{filepath.Join(dir, LastGoodPrefix+hex.EncodeToString(sum[:6])+".json")}
}

// sibling returns another file beside it, for the same database. Empty: there is none.
func (l lastGood) sibling(name string) string {
	if l.path == "" {
		return ""
	}
	return strings.TrimSuffix(l.path, ".json") + "." + name
}

// save replaces the file. After a crash there is either the old one or the new one.
func (l lastGood) save(s *Snapshot, now time.Time) error {
	if l.path == "" {
		return nil
	}
	body, err := json.Marshal(lastGoodContent{s.mark, s.accepted, now.UTC(), s.document})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	dir := filepath.Dir(l.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	l.tidy(now)
	f, err := os.CreateTemp(dir, goodDraft)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after an error; otherwise it was renamed
	_, err = fmt.Fprintf(f, "%s%x\n%s\n", goodHeader, sum, body)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), l.path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// load reads the file. The case of paths is not in it: it is a setting of the node.
func (l lastGood) load(pathCase rule.Case) (s *Snapshot, saved time.Time, err error) {
	if l.path == "" {
		return nil, saved, errors.New("no last good rules are kept")
	}
	text, err := os.ReadFile(l.path)
	if err != nil {
		return nil, saved, err
	}
	first, body, _ := bytes.Cut(text, []byte("\n"))
	body = bytes.TrimSuffix(body, []byte("\n"))
	if !bytes.HasPrefix(first, []byte(goodHeader)) {
		return nil, saved, fmt.Errorf("%s does not begin with %q: it is damaged, of another version, or not a file of last good rules", l.path, goodHeader)
	}
	if want := fmt.Sprintf("%s%x", goodHeader, sha256.Sum256(body)); string(first) != want {
		return nil, saved, fmt.Errorf("%s is damaged: its content does not match its checksum", l.path)
	}
	var content lastGoodContent
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields() // see kind.strict
	if err := decoder.Decode(&content); err != nil {
		return nil, saved, fmt.Errorf("%s: %w", l.path, err)
	}
	content.Document.Case = pathCase
	s, err = newSnapshot(content.mark, content.Document)
	if err != nil {
		return nil, saved, fmt.Errorf("%s: %w", l.path, err)
	}
	s.accepted = content.Accepted
	return s, content.Saved, nil
}
