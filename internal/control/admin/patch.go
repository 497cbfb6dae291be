package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
)

// mergePatch is a merge patch, as in RFC 7396.
type mergePatch map[string]any

// readPatch reads a patch, with the same errors as any other body.
func readPatch(body []byte) (mergePatch, error) {
	var whole any
	if err := decode(body, &whole); err != nil { // also finds duplicate names
		return nil, err
	}
	if _, ok := whole.(map[string]any); !ok {
		return nil, fail(http.StatusUnprocessableEntity, "want a JSON object with the fields to change")
	}
	var p mergePatch
	return p, exactly(body, &p)
}

// exactly reads JSON that was checked, and keeps the digits of numbers.
func exactly(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return d.Decode(into)
}

// patched returns a value with a patch applied.
func patched[T any](value T, p mergePatch) (changed T, err error) {
	body, err := json.Marshal(value)
	if err != nil {
		return changed, err
	}
	var target any
	if err := exactly(body, &target); err != nil {
		return changed, err
	}
	if body, err = json.Marshal(merge(target, map[string]any(p))); err != nil {
		return changed, err
	}
	err = decode(body, &changed)
	if told := (*Problem)(nil); errors.As(err, &told) {
		for i := range told.Errors {
			told.Errors[i].Line, told.Errors[i].Column = 0, 0 // of the merged text, which the client has not written
		}
		told.Detail = told.Errors[0].text()
	}
	return changed, err
}

// text is the problem in one line.
func (f *FieldProblem) text() string {
	text := f.Message
	if f.Field != "" {
		text = f.Field + ": " + text
	}
	if f.Hint != "" {
		text += "; " + f.Hint
	}
	return text
}

// merge applies a patch to a target. The depth of the patch is bounded by that of bodies.
func merge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	members, ok := target.(map[string]any)
	if !ok {
		members = map[string]any{}
	}
	for name, change := range changes {
		if change == nil {
			delete(members, name)
		} else {
			members[name] = merge(members[name], change)
		}
	}
	return members
}
