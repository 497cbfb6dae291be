package ruletest

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// String returns the failure as people read it: the step, what was expected, what has happened, and the limits.
func (f *Failure) String() string {
	text, got := f.Step, f.Got
	switch {
	case f.Want != "":
		text += "\nwant " + f.Want
	case !f.Error:
		text += "\nwant what --update writes"
	}
	if f.Error {
		got = "error: " + got
	}
	text += "\ngot  " + got
	for _, l := range f.Limits {
		text += "\n     " + l
	}
	return text
}

type (
	junitSuites struct {
		XMLName xml.Name `xml:"testsuites"`
		counts
		Suites []junitSuite `xml:"testsuite"`
	}
	counts struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Errors   int `xml:"errors,attr"`
	}
	junitSuite struct {
		Name string `xml:"name,attr"`
		counts
		Cases []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		File    string        `xml:"file,attr"`
		Line    int           `xml:"line,attr"`
		Failure *junitFailure `xml:"failure"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes results in the format of JUnit, as servers for continuous integration read it. Each file is a suite.
func WriteJUnit(w io.Writer, results []Result) error {
	var all junitSuites
	for i := range results {
		r := &results[i]
		suite := junitSuite{Name: r.File}
		for j := range r.Tests {
			t := &r.Tests[j]
			c := junitCase{Name: t.Name, Class: r.File, File: r.File, Line: t.Line}
			suite.Tests++
			if !t.Passed() {
				suite.Failures++
				var text strings.Builder
				for k := range t.Failures {
					fmt.Fprintf(&text, "%s:%d: %s\n", r.File, t.Failures[k].Line, &t.Failures[k])
				}
				f := &t.Failures[0]
				c.Failure = &junitFailure{Message: fmt.Sprintf("line %d: want %s, got %s", f.Line, f.Want, f.Got), Text: text.String()}
			}
			suite.Cases = append(suite.Cases, c)
		}
		all.Tests += suite.Tests
		all.Failures += suite.Failures
		all.Suites = append(all.Suites, suite)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
