package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
)

// Manifest describes a month in the archive.
type Manifest struct {
	Month   record.Month `json:"month"`
	Edition int          `json:"edition"`
	Schema  string       `json:"schema"`
	Events  int64        `json:"events"`
	First   time.Time    `json:"first"` // time of the first event
	Last    time.Time    `json:"last"`
	Digest  digest       `json:"digest"`
	Parts   []Part       `json:"parts"`
	Written time.Time    `json:"written"`
	// SHA256 is the hash of the manifest without this field.
	SHA256 string `json:"sha256"`
}

// Part is a file of a month.
type Part struct {
	Name   string    `json:"name"`
	Bytes  int64     `json:"bytes"`
	SHA256 string    `json:"sha256"`
	Events int64     `json:"events"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	LastID string    `json:"last_id"`
	Digest digest    `json:"digest"`
}

func (m *Manifest) file(name string) string { return m.Month.String() + "/" + name }

func (m *Manifest) name() string { return m.file(fmt.Sprintf("manifest-%04d.json", m.Edition)) }

func (m *Manifest) add(p Part) {
	if len(m.Parts) == 0 {
		m.First = p.First
	}
	m.Parts, m.Events, m.Last = append(m.Parts, p), m.Events+p.Events, p.Last
	m.Digest.addAll(p.Digest)
}

func (m *Manifest) bytes() (n int64) {
	for _, p := range m.Parts {
		n += p.Bytes
	}
	return n
}

// cursor returns the position after the last part.
func (m *Manifest) cursor() (c record.Cursor, err error) {
	if len(m.Parts) == 0 {
		return c, nil
	}
	p := m.Parts[len(m.Parts)-1]
	id, err := record.ParseID(p.LastID)
	if err != nil {
		return c, fmt.Errorf("last_id: %w", err)
	}
	return record.Cursor{At: p.Last, ID: id}, nil
}

// seal returns the manifest as it is written, with its own hash.
func (m *Manifest) seal() []byte {
	m.SHA256 = ""
	sum := sha256.Sum256(m.text())
	m.SHA256 = hex.EncodeToString(sum[:])
	return m.text()
}

func (m *Manifest) text() []byte {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // text, numbers and times of this millennium
	}
	return append(text, '\n')
}

// check checks a manifest, without reading its files.
func (m *Manifest) check(month record.Month, text []byte) error {
	if m.Schema != SchemaVersion {
		return fmt.Errorf("schema %.20q: this version reads %q", m.Schema, SchemaVersion)
	}
	again := *m
	if !bytes.Equal(again.seal(), text) {
		return fmt.Errorf("%w: its content does not match its sha256", ErrDamaged)
	}
	sum := Manifest{Month: month}
	for _, p := range m.Parts {
		if p.Bytes < 0 || p.Bytes > maxPart || p.Events < 1 || path.Base(p.Name) != p.Name {
			return fmt.Errorf("%w: part %.80q is invalid", ErrDamaged, p.Name)
		}
		sum.add(p)
	}
	if m.Month != month || m.Edition < 1 || m.Events != sum.Events || m.Digest != sum.Digest || !m.First.Equal(sum.First) || !m.Last.Equal(sum.Last) {
		return fmt.Errorf("%w: it is not the sum of its parts, or is of another month", ErrDamaged)
	}
	return nil
}

// manifest returns the manifest of the newest edition of a month.
func (a *Archive) manifest(ctx context.Context, month record.Month) (*Manifest, error) {
	names, err := a.names(ctx, month.String()+"/manifest-")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%v is %w", month, ErrNotArchived)
	}
	name := names[len(names)-1]
	m, err := a.load(ctx, name, month)
	if err == nil && m.name() != name {
		err = fmt.Errorf("%s: %w: it is of edition %d", name, ErrDamaged, m.Edition)
	}
	return m, err
}

// load reads a manifest, or a progress file, which has the same form.
func (a *Archive) load(ctx context.Context, name string, month record.Month) (*Manifest, error) {
	text, err := a.get(ctx, name, maxText, 0)
	if err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, ErrDamaged, err)
	}
	if err := m.check(month, text); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &m, nil
}

// verify reads all parts of a month, and returns the errors of all of them.
func (a *Archive) verify(ctx context.Context, l *lease, m *Manifest) error {
	var (
		all  error
		done int64
	)
	for _, p := range m.Parts {
		err := a.verifyPart(ctx, m, p)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return err // the part could not be read
		}
		all = errors.Join(all, err)
		done += p.Events
		a.o.Progress(done, m.Events, "verifying "+m.Month.String())
		if l != nil {
			if err := l.renew(ctx); err != nil {
				return err
			}
		}
	}
	return all
}

// part reads the file of a part, and checks that it is the one that was written.
func (a *Archive) part(ctx context.Context, m *Manifest, p Part) ([]byte, error) {
	file, err := a.get(ctx, m.file(p.Name), p.Bytes, p.Bytes)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, fmt.Errorf("%s: %w: it is missing", m.file(p.Name), ErrDamaged)
	}
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(file); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, fmt.Errorf("%s: %w: its SHA-256 is %x, want %s", m.file(p.Name), ErrDamaged, sum, p.SHA256)
	}
	return file, nil
}

func (a *Archive) verifyPart(ctx context.Context, m *Manifest, p Part) error {
	file, err := a.part(ctx, m, p)
	if err != nil {
		return err
	}
	got := Part{Name: p.Name, Bytes: p.Bytes, SHA256: p.SHA256, LastID: p.LastID}
	var scratch []byte
	for r, err := range readRows(bytes.NewReader(file), int64(len(file))) {
		if err != nil {
			return fmt.Errorf("%s: %w: %w", m.file(p.Name), ErrDamaged, err)
		}
		at := time.UnixMicro(r.At).UTC()
		if got.Events == 0 || at.Before(got.First) {
			got.First = at
		}
		if at.After(got.Last) {
			got.Last = at
		}
		got.Events++
		scratch = got.Digest.add(r, scratch)
	}
	if got != p || record.MonthOf(p.First) != m.Month || record.MonthOf(p.Last) != m.Month {
		return fmt.Errorf("%s: %w: it has %d events from %v to %v, not those that were written", m.file(p.Name), ErrDamaged, got.Events, got.First, got.Last)
	}
	return nil
}
