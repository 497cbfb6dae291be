package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
)

// mergePatch is a patch, as RFC 7396 has it.
type mergePatch map[string]any

// readPatch reads a patch. What is wrong with it is said as of any other body.
func readPatch(body []byte) (mergePatch, error) {
	var whole any
	if err := decode(body, &whole); err != nil { // a name that is given twice, too
		return nil, err
	}
	if _, ok := whole.(map[string]any); !ok {
		return nil, fail(http.StatusUnprocessableEntity, "want a JSON object with the fields to change")
	}
	var p mergePatch
	return p, exactly(body, &p)
}

// exactly reads JSON that was checked, and keeps numbers as they are.
func exactly(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return d.Decode(into)
}

// patched returns a value with its changes.
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
			told.Errors[i].Line, told.Errors[i].Column = 0, 0 // of what no one has written
		}
		told.Detail = told.Errors[0].text()
	}
	return changed, err
}

// text is the problem in a line.
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

// merge returns the target as the patch has it. The patch has the depth that a body may
// have.
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
