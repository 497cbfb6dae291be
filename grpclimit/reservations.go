package grpclimit

import (
	"context"
	"net/http"
	"net/netip"
	"net/textproto"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit/stintpb"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/door/field"
	"github.com/stintdev/stint/internal/door/settle"
	"github.com/stintdev/stint/rule"
)

// ReservationsOptions are the settings of [NewReservations]. Engine and Tickets are required.
type ReservationsOptions struct {
	Engine  *engine.Engine
	Tickets *engine.Tickets
	// OnError returns the status of a call that failed, like [Options.OnError]. Default: the same as there.
	OnError func(ctx context.Context, method string, err error) error
}

// Reservations serves stint.v1.Reservations: requests whose cost is known afterwards, as POST /v1/reserve, /v1/commit,
// /v1/cancel and /v1/extend do. What these reject with 400 is InvalidArgument.
//
// It believes what its callers say about who is asking and what it costs. It is not for clients, but for the programs
// that serve them. Authenticate them by the credentials of the server, or an interceptor.
type Reservations struct {
	stintpb.UnimplementedReservationsServer
	desk settle.Desk
	o    ReservationsOptions
}

var _ stintpb.ReservationsServer = (*Reservations)(nil)

// NewReservations returns the service.
func NewReservations(o ReservationsOptions) (*Reservations, error) {
	if o.Engine == nil {
		return nil, &stint.InvalidError{Field: "Engine", Value: "nil", Want: "what engine.New returns"}
	}
	if o.Tickets == nil {
		return nil, &stint.InvalidError{Field: "Tickets", Value: "nil", Want: "what engine.NewTickets returns"}
	}
	return &Reservations{desk: settle.Desk{Engine: o.Engine, Tickets: o.Tickets}, o: o}, nil
}

// Register adds the service to a server.
func (s *Reservations) Register(r grpc.ServiceRegistrar) { stintpb.RegisterReservationsServer(r, s) }

// Check decides a request, and reserves nothing.
func (s *Reservations) Check(ctx context.Context, m *stintpb.CheckRequest) (*stintpb.Verdict, error) {
	q, err := requestOf(m.GetRequest())
	if err != nil {
		return nil, err
	}
	if q.Cost = m.GetCost(); q.Cost != 0 {
		if err := costIn("cost", q.Cost, 1); err != nil {
			return nil, err
		}
	}
	decide := s.o.Engine.Decide
	if m.GetPeek() {
		decide = s.o.Engine.Peek
	}
	v, err := decide(ctx, q)
	if err != nil {
		return nil, s.failed(ctx, stintpb.Reservations_Check_FullMethodName, err)
	}
	return verdictOf(&v), nil
}

// Reserve decides a request, charges what it may cost, and returns a ticket.
func (s *Reservations) Reserve(ctx context.Context, m *stintpb.ReserveRequest) (*stintpb.Reserved, error) {
	q, err := requestOf(m.GetRequest())
	if err != nil {
		return nil, err
	}
	usage, _, err := usageOf(m.GetUsage(), 1)
	if err != nil {
		return nil, err
	}
	life, err := lifeOf(m.GetExpiresIn())
	if err != nil {
		return nil, err
	}
	q.Cost, q.Usage = usage.Cost, usage.Meters
	v, ticket, err := s.desk.Reserve(ctx, q, life)
	if err != nil {
		return nil, s.failed(ctx, stintpb.Reservations_Reserve_FullMethodName, err)
	}
	out := &stintpb.Reserved{Verdict: verdictOf(&v), Ticket: ticket}
	if ticket != "" {
		out.ExpiresIn = int64(life / time.Second)
	}
	return out, nil
}

// Commit settles a reservation by what was used.
func (s *Reservations) Commit(ctx context.Context, m *stintpb.CommitRequest) (*stintpb.Receipt, error) {
	usage, told, err := usageOf(m.GetUsage(), 0)
	switch usage.Model = m.GetModel(); {
	case err != nil:
		return nil, err
	case m.GetTicket() == "":
		return nil, noTicket()
	case !told:
		return nil, bad("usage", "want what was used: cost, or units by meter")
	case !settle.ValidModel(usage.Model):
		return nil, bad("model", "want "+settle.WantModel)
	}
	r, err := s.desk.Commit(ctx, m.GetTicket(), usage)
	if err != nil {
		return nil, s.failed(ctx, stintpb.Reservations_Commit_FullMethodName, err)
	}
	return receiptOf(&r), nil
}

// Cancel gives a reservation back.
func (s *Reservations) Cancel(ctx context.Context, m *stintpb.CancelRequest) (*stintpb.Receipt, error) {
	if m.GetTicket() == "" {
		return nil, noTicket()
	}
	r, err := s.desk.Cancel(ctx, m.GetTicket())
	if err != nil {
		return nil, s.failed(ctx, stintpb.Reservations_Cancel_FullMethodName, err)
	}
	return receiptOf(&r), nil
}

// Extend reserves more.
func (s *Reservations) Extend(ctx context.Context, m *stintpb.ExtendRequest) (*stintpb.Extended, error) {
	usage, _, err := usageOf(m.GetUsage(), 0)
	if err != nil {
		return nil, err
	}
	life, err := lifeOf(m.GetExpiresIn())
	if err != nil {
		return nil, err
	}
	if m.GetTicket() == "" {
		return nil, noTicket()
	}
	x, ticket, life, err := s.desk.Extend(ctx, m.GetTicket(), usage, life)
	if err != nil {
		return nil, s.failed(ctx, stintpb.Reservations_Extend_FullMethodName, err)
	}
	return &stintpb.Extended{
		Allowed: x.Allowed, RetryAfter: waitOf(x.RetryAfter), Ticket: ticket, ExpiresIn: int64(life / time.Second), Limits: settledOf(x.Limits, false),
	}, nil
}

// failed returns the status of a call that failed.
func (s *Reservations) failed(ctx context.Context, method string, err error) error {
	if settle.IsInput(err) {
		return status.Error(codes.InvalidArgument, valid(err.Error()))
	}
	if s.o.OnError != nil {
		if err := s.o.OnError(ctx, method, err); err != nil {
			return err
		}
	}
	return notDecided(ctx, err)
}

// bad returns the status of a call with bad input.
func bad(where, says string) error {
	return status.Error(codes.InvalidArgument, valid(where+": "+says))
}

func noTicket() error { return bad("ticket", "want the ticket of a reservation") }

// found ends the description of a problem with the text that was found, or its beginning.
func found(want, text string) string {
	const most = 64
	return "want " + want + ", found " + strconv.Quote(text[:min(len(text), most)])
}

// requestOf reads the description of a request.
func requestOf(m *stintpb.Request) (q engine.Request, err error) {
	q.Method, q.Path = m.GetMethod(), m.GetPath()
	if q.Method == "" {
		q.Method = http.MethodGet
	}
	switch {
	case q.Path == "":
		return q, bad("request.path", "want the path of the request, such as /search")
	case q.Path[0] != '/':
		return q, bad("request.path", found(settle.WantPath, q.Path))
	case !settle.ValidMethod(q.Method):
		return q, bad("request.method", found(settle.WantMethod, q.Method))
	}
	if text := m.GetIp(); text != "" {
		if q.Peer, err = netip.ParseAddr(text); err != nil {
			return q, bad("request.ip", found(settle.WantAddress, text))
		}
	}
	who := identity.Subject{User: m.GetUser(), Tenant: m.GetTenant(), Key: m.GetApiKey(), Tier: m.GetTier()}
	for _, id := range [...]struct{ name, text string }{{"user", who.User}, {"tenant", who.Tenant}, {"api_key", who.Key}, {"tier", who.Tier}} {
		switch {
		case id.text == "":
		case !identity.ValidID(id.text):
			return q, bad("request."+id.name, found(settle.WantID, id.text))
		default: // otherwise headers and the address say who is asking
			who.IP = q.Peer
			q.Subject = &who
		}
	}
	q.Headers, err = headersIn(m.GetHeaders())
	return q, err
}

// headersIn reads headers, with canonical names.
func headersIn(all []*stintpb.Header) (map[string][]string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	out := make(map[string][]string, len(all))
	for _, h := range all {
		name := textproto.CanonicalMIMEHeaderKey(h.GetName())
		if _, twice := out[name]; twice {
			return nil, bad("request.headers", strconv.Quote(name[:min(len(name), 64)])+": want it only once, with all its values")
		}
		out[name] = h.GetValues()
	}
	return out, nil
}

// costIn checks a number of units.
func costIn(where string, n, least int64) error {
	if n >= least && n <= settle.MaxCost {
		return nil
	}
	return bad(where, "want a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(settle.MaxCost, 10)+", found "+strconv.FormatInt(n, 10))
}

// usageOf reads how much is to be reserved, or was used, and whether the call says it.
func usageOf(m *stintpb.Usage, least int64) (u engine.Usage, told bool, err error) {
	meters := m.GetMeters()
	if m != nil && m.Cost != nil {
		if len(meters) > 0 {
			return u, true, bad("usage", "want either cost or meters, not both")
		}
		u.Cost = m.GetCost()
		return u, true, costIn("usage.cost", u.Cost, least)
	}
	if len(meters) == 0 {
		return u, false, nil
	}
	if len(meters) > settle.MaxMeters {
		return u, true, bad("usage.meters", "want at most "+strconv.Itoa(settle.MaxMeters)+" meters, found "+strconv.Itoa(len(meters)))
	}
	u.Meters = make(map[rule.Meter]int64, len(meters))
	for name, n := range meters {
		meter, ok := rule.ParseMeter(name)
		if !ok {
			return u, true, bad("usage.meters", found(settle.WantMeter, name))
		}
		if err := costIn("usage.meters."+name, n, least); err != nil {
			return u, true, err
		}
		if _, twice := u.Meters[meter]; twice {
			return u, true, bad("usage.meters."+name, "want it only once")
		}
		u.Meters[meter] = n
	}
	return u, true, nil
}

// lifeOf reads how many seconds a ticket is valid.
func lifeOf(seconds int64) (time.Duration, error) {
	const longest = int64(settle.MaxLife / time.Second)
	switch {
	case seconds == 0:
		return settle.Life, nil
	case seconds < 1 || seconds > longest:
		return 0, bad("expires_in", "want a whole number of seconds from 1 to "+strconv.FormatInt(longest, 10)+", found "+strconv.FormatInt(seconds, 10))
	}
	return time.Duration(seconds) * time.Second, nil
}

// waitOf returns a time in seconds, or nil for never.
func waitOf(d time.Duration) *float64 {
	if d == stint.Never {
		return nil
	}
	seconds := d.Seconds()
	return &seconds
}

// verdictOf returns a verdict as a message.
func verdictOf(v *engine.Verdict) *stintpb.Verdict {
	out := &stintpb.Verdict{Allowed: v.Outcome.Passed(), Outcome: v.Outcome.String(), DecisionId: v.ID.String()}
	if v.Rule != nil {
		out.Rule = valid(v.Rule.Name)
	}
	if l, _ := field.Next(v, 0); l != nil && field.Counted(l) {
		remaining, reset := field.Standing(v, l)
		out.Limit, out.Remaining, out.ResetAfter = l.Decision.Limit, remaining, reset.Seconds()
	}
	wait := v.RetryAfter
	if !out.Allowed {
		out.Status, out.Reason = int32(v.Status), valid(message(v))
		if wait == 0 {
			wait = stint.Never
		}
	}
	if v.Subject.BadToken {
		out.Unaccepted = v.Subject.Unaccepted.String()
	}
	out.RetryAfter = waitOf(wait)
	return out
}

func receiptOf(r *engine.Receipt) *stintpb.Receipt {
	return &stintpb.Receipt{DecisionId: r.ID.String(), Repeated: r.Repeated, Limits: settledOf(r.Limits, !r.Repeated)}
}

// settledOf returns the limits of a reservation, and what was used of them, if that is known.
func settledOf(limits []engine.Settled, settled bool) []*stintpb.SettledLimit {
	out := make([]*stintpb.SettledLimit, len(limits))
	for i := range limits {
		l := &limits[i]
		out[i] = &stintpb.SettledLimit{
			Rule: valid(l.Rule), Name: valid(l.Name), Meter: string(l.Meter), Limit: l.Limit.String(), Reserved: l.Reserved, Shadow: l.Shadow,
		}
		if settled {
			out[i].Used = &l.Used
		}
		if d := &l.Decision; d.Limit > 0 && d.Basis < stint.Open {
			out[i].Max, out[i].Remaining, out[i].ResetAfter = d.Limit, d.Remaining, d.ResetAfter.Seconds()
		}
	}
	return out
}
