package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/kit/strict"
)

// remark starts the lines above the text that say what is wrong with it.
const remark = "#: "

func (k *kind[T]) edit(t *terminal) *cobra.Command {
	return serverCommand(t, &cobra.Command{
		Use:   "edit ID",
		Short: "Edit a " + k.one + " in an editor",
		Long: "Edit a " + k.one + ` as TOML, in $VISUAL, $EDITOR or vi. If it has problems, or someone else has
changed it in the meantime, the editor is opened again with your text, and with the problems
at the top. To change nothing, do not save, or save an empty file. A text that could not be
stored is kept in a file, whose name is shown.`,
		Example: fmt.Sprintf("  stint %s edit %s\n  EDITOR='code --wait' stint %s edit %s", k.path, k.example, k.path, k.example),
		Args:    wants(1, 1, "an ID"), ValidArgsFunction: completeIDs(t, k.path),
	}, func(c *cobra.Command, a *client, args []string) error {
		r, err := k.get(c.Context(), a, args[0])
		if err != nil {
			return err
		}
		text, err := k.document(&r)
		if err != nil {
			return err
		}
		f, err := os.CreateTemp(t.variable("TMPDIR"), "stint-"+k.one+"-*.toml")
		if err != nil {
			return err
		}
		e := editing{t, c.InOrStdin(), f.Name()}
		if err := f.Close(); err != nil {
			return err
		}
		kept, err := k.editing(c.Context(), a, &e, r, text)
		if kept {
			return advice{err, fmt.Sprintf("stint %s set %s -f %s, which contains your text", k.path, args[0], e.path)}
		}
		return errors.Join(err, os.Remove(e.path))
	})
}

// editing is a file in an editor.
type editing struct {
	*terminal
	in   io.Reader
	path string
}

// editing opens the editor until the text can be stored, or nothing is to be changed. It
// reports whether the file has a text that would be lost.
func (k *kind[T]) editing(ctx context.Context, a *client, e *editing, r stored[T], first string) (kept bool, err error) {
	was, last, problems, wrong := r, first, []string(nil), false
	seen, err := treeOf(r.Value)
	if err != nil {
		return false, err
	}
	for {
		text, err := e.open(ctx, problems, last)
		switch {
		case err != nil:
			return last != first, err
		case text == "" || text == first:
			e.notes("nothing was changed")
			return false, nil
		case text == last && wrong:
			return true, errors.New("it was saved without changes, and has problems:\n  " + strings.Join(problems, "\n  "))
		}
		last, wrong = text, true
		var v T
		if err := k.parse("", []byte(text), &v); err != nil {
			if problems = remarks(err); problems == nil {
				return true, err
			}
			continue
		}
		after, err := treeOf(v)
		if err != nil {
			return true, err
		}
		now, err := k.change(ctx, a, &r, r.Version, after, false)
		if err == nil {
			return false, k.printChange(e.terminal, &was, &now, false)
		}
		f := new(problem)
		switch errors.As(err, &f); f.Status {
		case http.StatusUnprocessableEntity, http.StatusBadRequest:
			problems = append([]string{clean(f.Detail)}, f.lines()...)
			if len(f.Errors) > 0 {
				problems = f.lines()
			}
		case http.StatusPreconditionFailed, http.StatusConflict: // the latter from older servers
			if was, err = k.get(ctx, a, r.ID); err != nil {
				return true, err
			}
			if r = was; r.Version == 0 {
				return true, f // the rules are in a file
			}
			problems = []string{fmt.Sprintf("%s changed it in the meantime, to version %d. Saving again overwrites these changes:", visible(r.By), r.Version)}
			theirs, err := treeOf(r.Value)
			if err != nil {
				return true, err
			}
			for _, d := range differ("", seen, theirs) {
				problems = append(problems, "  "+formatDiff(d))
			}
			seen = theirs
			wrong = false // it may be saved without changes
		default:
			return true, err
		}
	}
}

// remarks returns the lines of problems. Their line numbers count these lines, too.
func remarks(err error) []string {
	var problems strict.Problems
	if !errors.As(err, &problems) {
		return nil
	}
	out := make([]string, len(problems))
	for i, p := range problems {
		if p.Line > 0 {
			p.Line += len(problems)
		}
		out[i] = clean(p.String())
	}
	return out
}

// open opens the editor with a text below its problems, and returns the new text.
func (e *editing) open(ctx context.Context, problems []string, text string) (string, error) {
	var b strings.Builder
	for _, p := range problems {
		b.WriteString(remark + p + "\n")
	}
	b.WriteString(text)
	if err := os.WriteFile(e.path, []byte(b.String()), 0o600); err != nil {
		return "", err
	}
	editor := cmp.Or(e.variable("VISUAL"), e.variable("EDITOR"), "vi")
	// The editor may have flags, so the shell runs it.
	c := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "stint", e.path)
	c.Stdin, c.Stdout, c.Stderr, c.Env = e.in, e.out, e.err, e.environ
	if err := c.Run(); err != nil {
		return "", advice{fmt.Errorf("the editor %s: %w", strict.Quote(editor), err), "EDITOR with the name of an editor that is installed"}
	}
	data, err := os.ReadFile(e.path)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, remark) {
			out.WriteString(line)
		}
	}
	if strings.TrimSpace(out.String()) == "" {
		return "", nil
	}
	return out.String(), nil
}
