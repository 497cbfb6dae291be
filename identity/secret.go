package identity

import (
	"fmt"
	"io"
	"log/slog"
)

// Secret is text that is not shown: whatever prints, logs or marshals it gets a
// placeholder. Convert it to a string to use it.
type Secret string

const redacted = "[redacted]"

// Format implements [fmt.Formatter], for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String returns a placeholder.
func (Secret) String() string { return redacted }

// LogValue implements [slog.LogValuer].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler].
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
