package admin

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/rollup"
)

// Consumption is what requests have used under rules with a meter.
type Consumption struct {
	Period    string `json:"period" doc:"The hour, day or month, of UTC. Empty, unless it is grouped by one." example:"2026-01"`
	Tenant    string `json:"tenant" doc:"The tenant. Empty, if unknown or not grouped by. As with users, API keys and models, the name other stands for those that were not counted one by one, because there were too many at once." example:"acme"`
	User      string `json:"user" doc:"The user. Empty, if unknown or not grouped by." example:"alice"`
	Key       string `json:"key" doc:"The id of the API key. Empty, if unknown or not grouped by." example:"4mqyx7bn2kcd6wvr"`
	Model     string `json:"model" doc:"The language model. Empty, if unknown or not grouped by." example:"gpt-5"`
	Rule      string `json:"rule" doc:"The rule. Empty, unless it is grouped by: then a request counts once for each meter, even if several rules have that meter." example:"tokens"`
	Meter     string `json:"meter" doc:"The meter. Units of different meters are never added up." example:"llm.total_tokens"`
	Requests  int64  `json:"requests" doc:"Requests that were settled, and not cancelled." example:"12"`
	Reserved  int64  `json:"reserved" doc:"Units that were charged before it was known what the requests use." example:"12000"`
	Used      int64  `json:"used" doc:"Units that were used." example:"9500"`
	GivenBack int64  `json:"given_back" doc:"Units that were reserved and not used." example:"3000"`
	Overshoot int64  `json:"overshoot" doc:"Units that were used and not reserved." example:"500"`
	Estimated int64  `json:"estimated" doc:"Those of the units used that were estimated, because they were not reported." example:"0"`
}

// NewConsumption converts what was recorded.
func NewConsumption(c *record.Consumption) Consumption {
	return Consumption{c.Period, c.Tenant, c.User, c.Key, c.Model, c.Rule, c.Meter, c.Requests, c.Reserved, c.Used, c.GivenBack, c.Overshoot, c.Estimated}
}

// Harmless returns it with texts that a spreadsheet does not read as formulas.
func (c Consumption) Harmless() Consumption {
	for _, text := range []*string{&c.Tenant, &c.User, &c.Key, &c.Model, &c.Rule, &c.Meter} {
		*text = harmless(*text)
	}
	return c
}

// ConsumptionList is a page of what requests have used.
type ConsumptionList struct {
	From  time.Time     `json:"from" doc:"The start of the time range." example:"2026-01-01T00:00:00Z"`
	To    time.Time     `json:"to" doc:"The end of the time range." example:"2026-02-01T00:00:00Z"`
	Items []Consumption `json:"items" nullable:"false" doc:"What was used, the most first."`
	Next  string        `json:"next" doc:"The value of after for the next page. Empty on the last page." example:"100"`
}

// ConsumptionFilter selects what was used, by all fields that are not empty.
type ConsumptionFilter struct {
	Tenant string `query:"tenant" maxLength:"512" doc:"Only for this tenant." example:"acme"`
	User   string `query:"user" maxLength:"512" doc:"Only for this user." example:"alice"`
	Key    string `query:"key" maxLength:"512" doc:"Only for the API key with this id." example:"4mqyx7bn2kcd6wvr"`
	Model  string `query:"model" maxLength:"512" doc:"Only for this model." example:"gpt-5"`
	Rule   string `query:"rule" maxLength:"512" doc:"Only for this rule." example:"tokens"`
	Meter  string `query:"meter" maxLength:"512" doc:"Only for this meter." example:"llm.total_tokens"`
	Shadow bool   `query:"shadow" default:"false" doc:"True for log_only rules instead of the others: what they count is not to be billed." example:"false"`
}

func (f *ConsumptionFilter) query(by string, d During, now time.Time) record.ConsumptionQuery {
	q := record.ConsumptionQuery{Range: d.at(now), Tenant: f.Tenant, User: f.User, Key: f.Key, Model: f.Model, Rule: f.Rule, Meter: f.Meter, Shadow: f.Shadow}
	if by != "" {
		q.By = strings.Split(by, ",")
	}
	return q
}

const settledHours = " It is recorded in whole hours of UTC, and in whole days after 90 days, by when requests were settled. Those of the last seconds may be missing."

func (a *API) addConsumption() {
	type listInput struct {
		During
		ConsumptionFilter
		By    string `query:"by" maxLength:"100" doc:"What to group by: some of user, tenant, key, model, rule, meter, and one of hour, day, month, with commas between them. Default: only by meter." example:"tenant,model"`
		Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
		After int    `query:"after" default:"0" minimum:"0" maximum:"1000000" doc:"The next of the previous page. Results that change between two pages may be on both, or on none." example:"100"`
	}
	ask(a, true, "listConsumption", "/consumption", "List what was used",
		"Returns what requests have used under rules with a meter, the most first: tokens, bytes, seconds or money."+settledHours,
		func(ctx context.Context, s *rollup.Store, in *listInput) (ConsumptionList, error) {
			if err := narrowSums(ctx, &in.Tenant); err != nil {
				return ConsumptionList{}, err
			}
			q := in.query(in.By, in.During, a.now())
			q.Limit, q.Skip = in.Limit, in.After
			rows, more, err := s.Consumption(ctx, q)
			out := ConsumptionList{From: q.From, To: q.To, Items: converted(rows, NewConsumption)}
			if more {
				out.Next = strconv.Itoa(q.Skip + q.Limit)
			}
			return out, err
		})

	type exportInput struct {
		During
		ConsumptionFilter
		By    string `query:"by" maxLength:"100" default:"month,tenant" doc:"What to group by, as in GET /consumption." example:"month,tenant"`
		Limit int    `query:"limit" default:"10000" minimum:"1" maximum:"100000" doc:"The maximum number of rows; those with the most used are returned." example:"10000"`
	}
	type file struct {
		ContentType string `header:"Content-Type" hidden:"true"`
		Disposition string `header:"Content-Disposition" hidden:"true"`
		Body        []byte
	}
	add(a, operation{
		ID: "exportConsumption", Method: http.MethodGet, Path: "/consumption/export", Tag: tagRecord, Timeout: 30 * time.Second, Scoped: true,
		Summary: "Export what was used",
		Description: "Returns what GET /consumption lists as a file of CSV with a header line, by month and tenant unless something else is asked for. " +
			"A text that a spreadsheet would read as a formula starts with an apostrophe.",
		Problems: []int{http.StatusConflict}, Answer: "The file.",
		Produces: []content{{"text/csv", reflect.TypeFor[[]byte](), "The file."}},
	}, catalog.Viewer, func(ctx context.Context, in *exportInput) (*file, error) {
		s, err := a.record()
		if err != nil {
			return nil, err
		}
		if err := narrowSums(ctx, &in.Tenant); err != nil {
			return nil, err
		}
		q := in.query(in.By, in.During, a.now())
		q.Limit = in.Limit
		rows, _, err := s.Consumption(ctx, q)
		if err != nil {
			return nil, asParameters(err)
		}
		var text bytes.Buffer
		w := newCSVOf[Consumption](&text)
		for i := range rows {
			w.err = w.fields(NewConsumption(&rows[i]))
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		const day = "20060102"
		return &file{formats["csv"].contentType, fmt.Sprintf(`attachment; filename="stint-usage_%s_%s.csv"`, q.From.Format(day), q.To.Format(day)), text.Bytes()}, nil
	})
}
