package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"io"

	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// ExportOptions say what is exported besides rules, tiers, tenants, exemptions and bans.
type ExportOptions struct {
	Users bool // and API keys
}

// Export returns the content of the catalog at one moment. With very many users,
// [Catalog.ExportTOML] and [Catalog.ExportJSON] need less memory.
func (c *Catalog) Export(ctx context.Context, o ExportOptions) (*Document, error) {
	d := &Document{}
	return d, c.pages(ctx, o, func(p Document) error {
		d.Rules, d.Tiers = append(d.Rules, p.Rules...), append(d.Tiers, p.Tiers...)
		d.Tenants, d.Users, d.APIKeys = append(d.Tenants, p.Tenants...), append(d.Users, p.Users...), append(d.APIKeys, p.APIKeys...)
		d.Exemptions, d.Bans = append(d.Exemptions, p.Exemptions...), append(d.Bans, p.Bans...)
		return nil
	})
}

// ExportTOML writes the content at one moment, in the form of a config file.
func (c *Catalog) ExportTOML(ctx context.Context, w io.Writer, o ExportOptions) error {
	var b []byte
	return c.pages(ctx, o, func(p Document) (err error) {
		if len(b) > 0 {
			b = append(b[:0], '\n')
		}
		if b, err = strict.AppendTOML(b, p); err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	})
}

// ExportJSON writes the content at one moment, as a [Document] in JSON.
func (c *Catalog) ExportJSON(ctx context.Context, w io.Writer, o ExportOptions) error {
	var b bytes.Buffer
	section, end := "", "{"
	err := c.pages(ctx, o, func(p Document) error {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(p); err != nil {
			return err
		}
		var sections map[string][]json.RawMessage
		if err := json.Unmarshal(b.Bytes(), &sections); err != nil {
			return err
		}
		b.Reset()
		for name, items := range sections { // a page has one
			for _, item := range items {
				if name == section {
					b.WriteString(",\n    ")
				} else {
					b.WriteString(end + "\n  \"" + name + "\": [\n    ")
					section, end = name, "\n  ],"
				}
				b.Write(item)
			}
		}
		_, err := b.WriteTo(w)
		return err
	})
	if err != nil {
		return err
	}
	last := "{}\n"
	if section != "" {
		last = "\n  ]\n}\n"
	}
	_, err = io.WriteString(w, last)
	return err
}

// pages reads the catalog in one transaction, and calls each with pages of one kind.
func (c *Catalog) pages(ctx context.Context, o ExportOptions, each func(Document) error) error {
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	all, err := c.readShared(ctx, tx, nil)
	if err != nil {
		return c.wrap(err)
	}
	for _, p := range []Document{{File: rule.File{Rules: all.Rules}}, {File: rule.File{Tiers: all.Tiers}}, {Exemptions: all.Exemptions}, {Bans: all.Bans}} {
		if !p.Empty() {
			if err := each(p); err != nil {
				return err
			}
		}
	}
	err = eachPage(ctx, tx, c.Tenants, func(v []Tenant) error { return each(Document{Tenants: v}) })
	if err == nil && o.Users {
		err = eachPage(ctx, tx, c.Users, func(v []User) error { return each(Document{Users: v}) })
	}
	if err == nil && o.Users {
		err = eachPage(ctx, tx, c.APIKeys, func(v []APIKey) error { return each(Document{APIKeys: v}) })
	}
	return err
}

// eachPage calls each with the pages of a table.
func eachPage[T any](ctx context.Context, q querier, t *Table[T], each func([]T) error) error {
	for after := ""; ; {
		page, err := t.query(ctx, q, "WHERE id > $1 ORDER BY id LIMIT $2", after, chunk)
		if err != nil || len(page) == 0 {
			return err
		}
		values := make([]T, len(page))
		for i := range page {
			values[i] = page[i].Value
		}
		if err := each(values); err != nil {
			return err
		}
		after = t.id(&values[len(values)-1])
	}
}
