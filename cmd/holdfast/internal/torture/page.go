package torture

import (
	_ "embed"
	"encoding/json"
	"html"
	"io"
	"strings"
)

// The page has three places to fill. html/template would do that too, but it makes the linker keep every exported
// method of the whole program, which would be 17 MB larger.
//
//go:embed page.html
var pageSource string

// timelineData is what the page draws.
type timelineData struct {
	Report *Report     `json:"report"`
	Holds  []HoldView  `json:"holds"`
	Faults []FaultView `json:"faults"`
}

// WritePage writes the report as one page of HTML that needs nothing else. Without JavaScript it shows the text of the
// report.
func (r *Report) WritePage(w io.Writer) error {
	data, err := json.Marshal(timelineData{r, r.TimelineHolds, r.TimelineFault}) // it escapes < and >
	if err != nil {
		return err
	}
	_, err = strings.NewReplacer("@OUTCOME@", html.EscapeString(string(r.Outcome)), "@TEXT@", html.EscapeString(r.Text()),
		"@DATA@", string(data)).WriteString(w, pageSource)
	return err
}
