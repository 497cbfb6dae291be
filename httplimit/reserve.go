package httplimit

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

const (
	ticketLife    = 10 * time.Minute
	maxTicketLife = time.Hour
	maxMeters     = 16 // in a usage
)

// settlement is a call about a reservation: one that makes it, or one that has its ticket.
type settlement struct {
	check // of a call that reserves

	text   string // of the ticket
	usage  engine.Usage
	life   time.Duration
	told   bool // the call has a cost or a usage
	ticket string

	receipt   engine.Receipt
	extension engine.Extension
	err       error
}

// operation is one of the calls about reservations.
type operation struct {
	fields []string
	// needs is what a call must have beside a ticket, or nil.
	needs func(s *settlement) *inputError
	do    func(a *api, ctx context.Context, s *settlement)
	write func(b []byte, s *settlement) []byte
	list  string // the answers of a batch
}

var (
	reserveOp = operation{
		fields: append(append([]string{}, checkFields[:len(checkFields)-1]...), "usage", "expires_in"),
		do:     (*api).makeReservation, write: appendReserved, list: "verdicts",
	}
	commitOp = operation{
		fields: []string{"ticket", "cost", "usage"},
		needs: func(s *settlement) *inputError {
			if !s.told {
				return &inputError{"cost", "want what was used: cost, or usage by meter"}
			}
			return nil
		},
		do:    (*api).commitReservation,
		write: appendReceipt, list: "receipts",
	}
	cancelOp = operation{
		fields: []string{"ticket"},
		do:     (*api).cancelReservation,
		write:  appendReceipt, list: "receipts",
	}
	extendOp = operation{
		fields: []string{"ticket", "cost", "usage", "expires_in"},
		do:     (*api).extendReservation,
		write:  appendExtension, list: "extensions",
	}
)

// settlement reads a call.
func (s *scanner) settlement(o *operation, c *settlement) *inputError {
	c.life = ticketLife
	c.request.Method = http.MethodGet
	var text []byte
	err := s.object(o.fields, func(i int) (err *inputError) {
		switch o.fields[i] {
		case "ticket":
			text, err = s.text()
			c.text = string(text)
		case "cost":
			c.told = true
			c.usage.Cost, err = s.cost(0)
		case "usage":
			c.usage.Meters, err = s.meters()
		case "expires_in":
			var seconds int64
			if seconds, err = s.cost(1); err == nil && seconds > int64(maxTicketLife/time.Second) {
				err = &inputError{says: "want at most " + strconv.Itoa(int(maxTicketLife/time.Second)) + " seconds"}
			}
			c.life = time.Duration(seconds) * time.Second
		default:
			err = s.checkField(&c.check, o.fields[i])
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case c.told && c.usage.Meters != nil:
		return &inputError{"usage", "want either cost or usage, not both"}
	}
	c.told = c.told || c.usage.Meters != nil
	if o.fields[0] != "ticket" {
		c.request.Cost, c.request.Usage = c.usage.Cost, c.usage.Meters
		return c.complete()
	}
	if c.text == "" {
		return &inputError{"ticket", "want the ticket of a reservation"}
	}
	if o.needs != nil {
		return o.needs(c)
	}
	return nil
}

// meters reads units by meter.
func (s *scanner) meters() (map[rule.Meter]int64, *inputError) {
	usage := map[rule.Meter]int64{}
	return usage, s.members(func(raw []byte) *inputError {
		name := string(raw)
		m, ok := rule.ParseMeter(name)
		if !ok {
			return &inputError{strconv.Quote(name[:min(len(name), 64)]), "want a meter, such as llm.total_tokens or response_bytes"}
		}
		if _, twice := usage[m]; twice || len(usage) == maxMeters {
			return &inputError{name, "want it only once, and at most " + strconv.Itoa(maxMeters) + " meters"}
		}
		n, err := s.cost(0)
		if err != nil {
			return err.within(name)
		}
		usage[m] = n
		return nil
	})
}

func (a *api) makeReservation(ctx context.Context, s *settlement) {
	if s.named {
		s.request.Subject = &s.subject
	}
	var r *engine.Reservation
	if s.verdict, r, s.err = a.Engine.Reserve(ctx, s.request); s.err != nil || r == nil {
		return
	}
	if s.ticket, s.err = a.Tickets.Seal(r, s.life); s.err != nil {
		// No one could settle it. If this fails, it stays charged, as every reservation that is not settled.
		_, _ = a.Engine.Cancel(context.WithoutCancel(ctx), r)
	}
}

func (a *api) commitReservation(ctx context.Context, s *settlement) {
	var r *engine.Reservation
	if r, s.err = a.Tickets.Open(s.text); s.err == nil {
		s.receipt, s.err = a.Engine.Commit(ctx, r, s.usage)
	}
}

func (a *api) cancelReservation(ctx context.Context, s *settlement) {
	var r *engine.Reservation
	if r, s.err = a.Tickets.Open(s.text); s.err == nil {
		s.receipt, s.err = a.Engine.Cancel(ctx, r)
	}
}

func (a *api) extendReservation(ctx context.Context, s *settlement) {
	var r *engine.Reservation
	if r, s.err = a.Tickets.Open(s.text); s.err != nil {
		return
	}
	if s.extension, s.err = a.Engine.Extend(ctx, r, s.usage); s.err == nil {
		s.ticket, s.err = a.Tickets.Seal(r, s.life)
	}
}

// one serves a call.
func (a *api) one(o *operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b := scratches.Get().(*scratch)
		defer b.release()
		if !b.read(w, r, maxBody) {
			return
		}
		var c settlement
		s := scanner{data: b.in.Bytes()}
		if err := s.document(func() *inputError { return s.settlement(o, &c) }); err != nil {
			badRequest(w, r, err)
			return
		}
		switch o.do(a, r.Context(), &c); {
		case isInput(c.err):
			badRequest(w, r, c.err)
		case c.err != nil:
			a.failed(w, r, c.err)
		default:
			if !c.verdict.At.IsZero() {
				a.Headers.Set(w.Header(), &c.verdict)
			}
			b.out = o.write(b.out, &c)
			b.write(w)
		}
	}
}

// several serves a call about several reservations.
func (a *api) several(o *operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b := scratches.Get().(*scratch)
		defer b.release()
		if !b.read(w, r, maxBatch) {
			return
		}
		var all []settlement
		s := scanner{data: b.in.Bytes()}
		err := s.document(func() *inputError {
			return s.object([]string{"requests"}, func(int) *inputError {
				return s.array(maxRequests, func() *inputError {
					all = append(all, settlement{})
					return s.settlement(o, &all[len(all)-1])
				})
			})
		})
		if err == nil && len(all) == 0 {
			err = &inputError{"requests", "want at least one request"}
		}
		if err != nil {
			badRequest(w, r, err)
			return
		}
		a.each(len(all), func(i int) { o.do(a, r.Context(), &all[i]) })
		b.out = append(append(append(b.out, `{"`...), o.list...), `":[`...)
		for i := range all {
			if i > 0 {
				b.out = append(b.out, ',')
			}
			switch c := &all[i]; {
			case isInput(c.err):
				b.out = (&Problem{Status: http.StatusBadRequest, Detail: c.err.Error()}).append(b.out)
			case c.err != nil:
				p := undecidedProblem(c.err)
				b.out = p.append(b.out)
			default:
				b.out = o.write(b.out, c)
			}
		}
		b.out = append(b.out, `]}`...)
		b.write(w)
	}
}

// appendReserved appends a verdict, and the ticket of a request that passes.
func appendReserved(b []byte, s *settlement) []byte {
	b = appendVerdict(b, &s.verdict)
	if s.ticket == "" {
		return b
	}
	return append(s.appendTicket(b[:len(b)-1]), '}')
}

func (s *settlement) appendTicket(b []byte) []byte {
	b = appendString(append(b, `,"ticket":`...), s.ticket)
	return strconv.AppendInt(append(b, `,"expires_in":`...), int64(s.life/time.Second), 10)
}

func appendReceipt(b []byte, s *settlement) []byte {
	b, _ = s.receipt.ID.AppendText(append(b, `{"decision_id":"`...)) // it never fails
	b = strconv.AppendBool(append(b, `","repeated":`...), s.receipt.Repeated)
	return append(appendSettled(b, s.receipt.Limits, true), '}')
}

func appendExtension(b []byte, s *settlement) []byte {
	x := &s.extension
	b = strconv.AppendBool(append(b, `{"allowed":`...), x.Allowed)
	b = appendWait(append(b, `,"retry_after":`...), x.RetryAfter)
	return append(appendSettled(s.appendTicket(b), x.Limits, false), '}')
}

// appendSettled appends the limits of a reservation, and what was used of them, if that is known.
func appendSettled(b []byte, limits []engine.Settled, settled bool) []byte {
	b = append(b, `,"limits":[`...)
	for i := range limits {
		l := &limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"rule":`...), l.Rule)
		b = appendString(append(b, `,"name":`...), l.Name)
		if l.Meter != "" {
			b = appendString(append(b, `,"meter":`...), string(l.Meter))
		}
		b = appendLimit(b, l.Limit)
		b = strconv.AppendInt(append(b, `,"reserved":`...), l.Reserved, 10)
		if settled {
			b = strconv.AppendInt(append(b, `,"used":`...), l.Used, 10)
		}
		if d := &l.Decision; d.Limit > 0 && d.Basis < stint.Open {
			b = appendNumbers(append(b, `,"max":`...), d.Limit, d.Remaining, d.ResetAfter)
		}
		b = strconv.AppendBool(append(b, `,"shadow":`...), l.Shadow)
		b = append(b, '}')
	}
	return append(b, ']')
}
