package servepage

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// doctorInterval is how long the findings of the doctor are kept: twice that is the pause between two examinations.
const doctorInterval = 2 * time.Minute

// diagnosis is what the doctor has found.
type diagnosis struct {
	at       time.Time
	findings []holdfast.Finding
	err      error
}

// diagnose examines the store.
func (p *Page) diagnose(ctx context.Context) diagnosis {
	d := diagnosis{at: time.Now()}
	d.findings, d.err = p.opts.Doctor(ctx)
	shown.SortFindings(d.findings)
	return d
}

// showHealth is the page of the store's state and of the doctor's findings.
func (p *Page) showHealth(r *http.Request) (*content, error) {
	list, err := p.locks.get(r.Context())
	if err != nil {
		return nil, err
	}
	now, info, all := time.Now(), p.opts.Client.Info(), p.rights(r, "").See
	answer, count := badge("held", "answers"), plain("shown to those who may see all locks")
	if list.err != nil {
		answer = badge("alarm", "does not answer")
	}
	if all {
		count = number(len(list.locks))
	}
	if all && list.err != nil {
		answer = join(answer, span("detail", plain(describeStoreError(list.err).text)))
	}
	live := []markup{facts(
		definition{"Store", answer},
		definition{"Last listing", join(clockTime(list.at, now),
			span("detail", plain("took "+list.took.Round(time.Millisecond).String())))},
		definition{"Locks", count},
		definition{"Trust", describeCode(string(info.Tier), info.Tier.Description())},
		definition{"Who ends the claim of a dead holder",
			describeCode(string(info.ExpiredBy), info.ExpiredBy.Description())},
		definition{"By which clock", describeCode(string(info.ExpiryClock), info.ExpiryClock.Description())},
		definition{"Order of waiters", describeCode(string(info.Order), info.Order.Description())},
		definition{"Claims and tokens survive", plain(shown.DescribeSurvives(info))},
	)}
	if p.opts.Viewer != nil {
		you := p.opts.Viewer(r)
		may := cmp.Or(strings.Join(you.Rights, "; "), "nothing")
		live = append(live, element("h2", nil, plain("You")),
			facts(definition{"Your name here", foreignText(you.Name)}, definition{"You may", foreignText(may)}))
	}
	live = append(live, element("h2", nil, plain("Findings of the doctor")), p.findings(r, now))
	return &content{title: "Health", part: "health", at: now, events: "list",
		fixed: element("h1", nil, plain("Health")), live: join(live...)}, nil
}

// describeCode is a code of the library and what it means.
func describeCode(code, description string) markup {
	if code == "" {
		return plain("unknown")
	}
	return join(plain(description), span("detail", element("code", nil, plain(code))))
}

// findings are what the doctor has found.
func (p *Page) findings(r *http.Request, now time.Time) markup {
	if !p.rights(r, "").See { // they name locks
		return paragraph("empty", plain("They are shown to those who may see all locks."))
	}
	if p.opts.Doctor == nil {
		return paragraph("empty", plain("This server does not examine its store. Run: holdfast doctor"))
	}
	d, err := p.doctor.get(r.Context())
	if err != nil {
		return element("p", attrs{"class", "problem", "role", "alert"}, plain(describeStoreError(err).text))
	}
	parts := []markup{paragraph("note", plain("Examined at "), clockTime(d.at, now), plain(" UTC."))}
	if d.err != nil {
		parts = append(parts, element("p", attrs{"class", "problem", "role", "alert"},
			plain("The examination failed: "+text.OneLine(d.err.Error()))))
	} else if len(d.findings) == 0 {
		parts = append(parts, paragraph("empty", plain("Nothing was found.")))
	}
	for _, f := range d.findings {
		class := map[holdfast.Severity]string{holdfast.SeverityCritical: "alarm",
			holdfast.SeverityWarning: "notice"}[f.Severity]
		title := []markup{badge("quiet "+class, string(f.Severity)), plain(" "), plain(f.Code)}
		if f.Subject != "" {
			title = append(title, plain(", "), foreignText(f.Subject))
		}
		list := []definition{{"Found", foreignText(f.What)}}
		if f.Why != "" {
			list = append(list, definition{"Why it matters", foreignText(f.Why)})
		}
		if f.Fix != "" {
			list = append(list, definition{"Change", foreignText(f.Fix)})
		}
		parts = append(parts, element("section", attrs{"class", "finding"}, element("h3", nil, title...),
			facts(list...)))
	}
	return join(parts...)
}

var _ http.Handler = (*Page)(nil)
