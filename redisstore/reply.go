package redisstore

import (
	"errors"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

var errType = errors.New("a reply of another type")

// message is a reply of the script, or a part of it, as one of the two clients has it.
type message struct {
	of  *rueidis.RedisMessage // nil: own
	own any                   // a string, an int64 or an []any
}

func (m message) text() (string, error) {
	if m.of != nil {
		return m.of.ToString()
	}
	if s, ok := m.own.(string); ok {
		return s, nil
	}
	return "", errType
}

func (m message) number() (int64, error) {
	if m.of != nil {
		return m.of.AsInt64()
	}
	if n, ok := m.own.(int64); ok {
		return n, nil
	}
	return 0, errType
}

func (m message) isText() bool {
	if m.of != nil {
		return m.of.IsString()
	}
	_, ok := m.own.(string)
	return ok
}

func (m message) isNumber() bool {
	if m.of != nil {
		return m.of.IsInt64()
	}
	_, ok := m.own.(int64)
	return ok
}

func (m message) list() (messages, error) {
	if m.of != nil {
		all, err := m.of.ToArray()
		return messages{of: all}, err
	}
	if all, ok := m.own.([]any); ok {
		return messages{own: all}, nil
	}
	return messages{}, errType
}

// messages are the parts of a reply.
type messages struct {
	of  []rueidis.RedisMessage
	own []any
}

func (l messages) len() int { return len(l.of) + len(l.own) } // one of them is empty

func (l messages) at(i int) message {
	if l.of != nil {
		return message{of: &l.of[i]}
	}
	return message{own: l.own[i]}
}

func (l messages) cut(from, to int) messages {
	if l.of != nil {
		return messages{of: l.of[from:to]}
	}
	return messages{own: l.own[from:to]}
}

// errorReply returns the text of an error that Redis has replied.
func errorReply(err error) (text string, ok bool) {
	if reply, ok := rueidis.IsRedisErr(err); ok {
		return reply.Error(), true
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return reply.Error(), true
	}
	return "", false
}
