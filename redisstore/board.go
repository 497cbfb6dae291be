package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Board is where nodes leave notes for each other. What it has ends after some time, or is lost with Redis.
type Board struct{ side *Side }

// Board returns the board of the store's prefix.
func (x *Side) Board() *Board { return &Board{x} }

// Where the board has what. Nodes that have posted a note are in the group.
const boardAsks, boardNotes, boardGroup, boardStay = "board/asks/", "board/notes/", "board", 5 * time.Second

// Ask asks all nodes for notes about a topic, for some time from now on.
func (b *Board) Ask(ctx context.Context, topic string, during time.Duration) error {
	return b.side.Set(ctx, boardAsks+topic, []byte("1"), during)
}

// Asked returns those of the topics that anyone asks for.
func (b *Board) Asked(ctx context.Context, topics ...string) (out []string, err error) {
	for _, topic := range topics {
		_, asked, err := b.side.Get(ctx, boardAsks+topic)
		if err != nil {
			return nil, err
		}
		if asked {
			out = append(out, topic)
		}
	}
	return out, nil
}

// Post leaves the note of a node, in place of the one before, for some time. It may have [MaxSideValue] bytes.
func (b *Board) Post(ctx context.Context, node string, note []byte, during time.Duration) error {
	if err := b.side.Set(ctx, boardNotes+node, note, during); err != nil {
		return err
	}
	_, err := b.side.Present(ctx, boardGroup, node, during)
	return err
}

// Notes returns the notes of all nodes. The node that reads them is in the group of those that post: that is how it reads it.
func (b *Board) Notes(ctx context.Context, node string) (map[string][]byte, error) {
	all, err := b.side.Present(ctx, boardGroup, node, boardStay)
	if err != nil {
		return nil, err
	}
	notes, errs := make([][]byte, len(all)), make([]error, len(all))
	var work sync.WaitGroup
	for i, p := range all { // at once, so that they share a round trip
		work.Go(func() { notes[i], _, errs[i] = b.side.Get(ctx, boardNotes+p.Node) })
	}
	work.Wait()
	out := map[string][]byte{}
	for i, p := range all {
		if notes[i] != nil {
			out[p.Node] = notes[i]
		}
	}
	return out, errors.Join(errs...)
}
