package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2Client makes concurrent gRPC calls on one connection with very little work, so that the
// client does not compete with the servers for the processors.
type h2Client struct {
	conn   net.Conn
	in     *bufio.Reader
	out    *bufio.Writer
	framer *http2.Framer
	header []byte // of every call
	next   uint32 // the ID of the next stream
}

func dialH2(addr, method string) (*h2Client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &h2Client{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10), next: 1}
	c.framer = http2.NewFramer(c.out, c.in)
	c.framer.SetReuseFrames()
	var header bytes.Buffer
	e := hpack.NewEncoder(&header)
	e.SetMaxDynamicTableSize(0) // so that it is the same for every call
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", addr}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	c.header = header.Bytes()
	const most = 1<<31 - 1
	_, err = c.out.WriteString(http2.ClientPreface)
	return c, errors.Join(err,
		c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: most}),
		c.framer.WriteWindowUpdate(0, most-65535), c.out.Flush())
}

// call is a call without a response yet.
type call struct {
	began    time.Time
	answered bool
}

// run makes calls for this time, n at once, and returns how long each took. Every response must
// begin with the code OK.
func (c *h2Client) run(n int, length time.Duration, request func() []byte) (took []time.Duration, err error) {
	end := time.Now().Add(length)
	calls := map[uint32]*call{}
	for range n {
		if err := c.send(calls, request()); err != nil {
			return nil, err
		}
	}
	for len(calls) > 0 {
		if c.in.Buffered() == 0 {
			if err := c.out.Flush(); err != nil {
				return nil, err
			}
		}
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		id := frame.Header().StreamID
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = c.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = c.framer.WritePing(true, f.Data)
			}
		case *http2.DataFrame:
			// After the length of the message, overall_code is its first field.
			if b := f.Data(); calls[id] != nil && len(b) >= 7 && b[5] == 1<<3 && b[6] == 1 {
				calls[id].answered = true
			}
		case *http2.RSTStreamFrame:
			// NO_ERROR means that the server answered before it had read the whole request.
			if f.ErrCode != http2.ErrCodeNo {
				return nil, fmt.Errorf("the server answers with %v", f)
			}
		case *http2.GoAwayFrame:
			return nil, fmt.Errorf("the server answers with %v", f)
		}
		if err != nil {
			return nil, err
		}
		if one := calls[id]; one != nil && frame.Header().Flags.Has(http2.FlagHeadersEndStream) && frame.Header().Type == http2.FrameHeaders {
			if !one.answered {
				return nil, errors.New("a call was not answered with OK")
			}
			now := time.Now()
			took = append(took, now.Sub(one.began))
			delete(calls, id)
			if now.Before(end) {
				if err := c.send(calls, request()); err != nil {
					return nil, err
				}
			}
		}
	}
	return took, nil
}

func (c *h2Client) send(calls map[uint32]*call, request []byte) error {
	id := c.next
	c.next += 2
	calls[id] = &call{began: time.Now()}
	return errors.Join(
		c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.header, EndHeaders: true}),
		c.framer.WriteData(id, true, request))
}
