package httplimit

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/settle"
	"github.com/stintdev/stint/rule"
)

// settlement is a call about a reservation: one that makes it, or one that has its ticket.
type settlement struct {
	check // of a call that reserves

	ticket string // that of the call, and then that of the answer, if it has one
	usage  engine.Usage
	told   bool // the call has a cost or a usage
	life   time.Duration

	receipt   engine.Receipt
	extension engine.Extension
}

// operation is one of the calls about reservations.
type operation struct {
	fields []string
	least  int64 // that a cost can be
	tells  bool  // it must have a cost or a usage
	do     func(a *api, ctx context.Context, s *settlement) error
	write  func(b []byte, s *settlement) []byte
	list   string // the answers of a batch
}

var (
	reserveOp = operation{
		fields: append(slices.Clone(checkFields[:len(checkFields)-1]), "usage", "expires_in"), least: 1, // it cannot peek
		do: (*api).reserve, write: appendReserved, list: "verdicts",
	}
	commitOp = operation{
		fields: []string{"ticket", "cost", "usage", "model"}, tells: true,
		do: (*api).commit, write: appendReceipt, list: "receipts",
	}
	cancelOp = operation{fields: []string{"ticket"}, do: (*api).cancel, write: appendReceipt, list: "receipts"}
	extendOp = operation{
		fields: []string{"ticket", "cost", "usage", "expires_in"},
		do:     (*api).extend, write: appendExtension, list: "extensions",
	}
)

// settles reports whether a call has a ticket.
func (o *operation) settles() bool { return o.fields[0] == "ticket" }

// settlement reads a call.
func (s *scanner) settlement(o *operation, c *settlement) *inputError {
	c.life = settle.Life
	c.request.Method = http.MethodGet
	err := s.object(o.fields, func(i int) (err *inputError) {
		switch o.fields[i] {
		case "ticket":
			var text []byte
			text, err = s.text()
			c.ticket = string(text)
		case "cost":
			c.told = true
			c.usage.Cost, err = s.cost(o.least)
		case "usage":
			c.usage.Meters, err = s.meters(o.least)
		case "model":
			c.usage.Model, err = s.model()
		case "expires_in":
			c.life, err = s.life()
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
	case !o.settles():
		c.request.Cost, c.request.Usage = c.usage.Cost, c.usage.Meters
		return c.complete()
	case c.ticket == "":
		return &inputError{"ticket", "want the ticket of a reservation"}
	case o.tells && !c.told && c.usage.Meters == nil:
		return &inputError{"cost", "want what was used: cost, or usage by meter"}
	}
	return nil
}

// model reads the name of a model.
func (s *scanner) model() (string, *inputError) {
	start := s.i
	text, err := s.text()
	if err == nil && !settle.ValidModel(string(text)) {
		err = s.wrong(start, settle.WantModel)
	}
	return string(text), err
}

// life reads how many seconds a ticket is valid.
func (s *scanner) life() (time.Duration, *inputError) {
	const longest = int64(settle.MaxLife / time.Second)
	start := s.i
	seconds, err := s.cost(0)
	if err != nil || seconds < 1 || seconds > longest {
		return 0, s.wrong(start, "a whole number of seconds from 1 to "+strconv.FormatInt(longest, 10))
	}
	return time.Duration(seconds) * time.Second, nil
}

// meters reads units by meter.
func (s *scanner) meters(least int64) (map[rule.Meter]int64, *inputError) {
	usage := map[rule.Meter]int64{}
	return usage, s.members(func(raw []byte) *inputError {
		name := string(raw)
		m, ok := rule.ParseMeter(name)
		if !ok {
			return &inputError{strconv.Quote(name[:min(len(name), 64)]), "want " + settle.WantMeter}
		}
		if _, twice := usage[m]; twice || len(usage) == settle.MaxMeters {
			return &inputError{name, "want it only once, and at most " + strconv.Itoa(settle.MaxMeters) + " meters"}
		}
		n, err := s.cost(least)
		if err != nil {
			return err.within(name)
		}
		usage[m] = n
		return nil
	})
}

// desk returns where reservations are made and settled.
func (a *api) desk() *settle.Desk { return &settle.Desk{Engine: a.Engine, Tickets: a.Tickets} }

// settle carries out a call.
func (a *api) settle(ctx context.Context, o *operation, s *settlement) { s.err = o.do(a, ctx, s) }

func (a *api) reserve(ctx context.Context, s *settlement) (err error) {
	if s.named {
		s.request.Subject = &s.subject
	}
	s.verdict, s.ticket, err = a.desk().Reserve(ctx, s.request, s.life)
	return err
}

func (a *api) commit(ctx context.Context, s *settlement) (err error) {
	s.receipt, err = a.desk().Commit(ctx, s.ticket, s.usage)
	return err
}

func (a *api) cancel(ctx context.Context, s *settlement) (err error) {
	s.receipt, err = a.desk().Cancel(ctx, s.ticket)
	return err
}

func (a *api) extend(ctx context.Context, s *settlement) (err error) {
	s.extension, s.ticket, s.life, err = a.desk().Extend(ctx, s.ticket, s.usage, s.life)
	return err
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
		switch a.settle(r.Context(), o, &c); {
		case settle.IsInput(c.err):
			badRequest(w, r, c.err)
			return
		case c.err != nil:
			a.failed(w, r, c.err)
			return
		case !o.settles():
			a.Headers.Set(w.Header(), &c.verdict)
		}
		b.out = o.write(b.out, &c)
		b.write(w)
	}
}

// several serves a call about several reservations: each has its own answer.
func (a *api) several(o *operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b := scratches.Get().(*scratch)
		defer b.release()
		if !b.read(w, r, maxBatch) {
			return
		}
		var all []settlement
		s := scanner{data: b.in.Bytes()}
		if err := s.requests(func() *inputError {
			all = append(all, settlement{})
			return s.settlement(o, &all[len(all)-1])
		}); err != nil {
			badRequest(w, r, err)
			return
		}
		a.each(len(all), func(i int) { a.settle(r.Context(), o, &all[i]) })
		b.out = append(append(append(b.out, `{"`...), o.list...), `":[`...)
		for i := range all {
			if i > 0 {
				b.out = append(b.out, ',')
			}
			switch c := &all[i]; {
			case settle.IsInput(c.err):
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
	return append(appendSettled(b, s.receipt.Limits, !s.receipt.Repeated), '}')
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
