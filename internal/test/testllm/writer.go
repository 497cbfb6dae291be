package testllm

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// writer writes an answer. What it has written is on its way at once.
type writer struct {
	ctx      context.Context
	response http.ResponseWriter
	gzip     *gzip.Writer // nil: not encoded
	answer   Answer
	sent     *Sent
}

// step is before a piece. It may wait, or break the connection off.
func (w *writer) step(piece int) {
	if w.answer.Step == nil {
		return
	}
	if err := w.answer.Step(w.ctx, piece); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// pieces calls send for each piece of the text of each answer.
func (w *writer) pieces(answers int64, send func(answer int64, text string)) {
	for piece := range w.answer.Pieces {
		w.step(piece)
		for answer := range answers {
			send(answer, word(piece))
		}
		w.sent.Pieces++
	}
	w.step(w.answer.Pieces)
}

// event sends an event of a stream: with a name, unless that is empty.
func (w *writer) event(name string, data any) {
	if name != "" {
		w.write("event: " + name + "\n")
	}
	w.write("data: " + encode(data) + "\n\n")
	w.flush()
}

// object sends JSON.
func (w *writer) object(data any) { w.write(encode(data) + "\n") }

func (w *writer) close() {
	if w.gzip != nil {
		w.check(w.gzip.Close())
	}
	w.flush()
}

func (w *writer) write(text string) {
	var err error
	if w.gzip != nil {
		_, err = w.gzip.Write([]byte(text))
	} else {
		_, err = w.response.Write([]byte(text))
	}
	w.check(err)
}

func (w *writer) flush() {
	if w.gzip != nil {
		w.check(w.gzip.Flush())
	}
	w.check(http.NewResponseController(w.response).Flush())
}

// check ends the answer if the client is gone.
func (w *writer) check(err error) {
	if err != nil || w.ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

// word returns a piece of a text.
func word(piece int) string { return fmt.Sprintf("word%d ", piece) }

func words(pieces int) (text string) {
	for piece := range pieces {
		text += word(piece)
	}
	return text
}

func encode(data any) string {
	if text, ok := data.(string); ok {
		return text
	}
	text, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	return string(text)
}
