package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// printURLOptions shows what the URL of a store looks like and its options, and checks the URL. The store is the one
// that args name, by a URL or its scheme, or the one that is used.
func printURLOptions(w io.Writer, flag string, args []string, asJSON bool) error {
	where := ""
	if len(args) > 0 {
		where = args[0]
		if slices.Contains(driver.Schemes(), where) {
			where += "://"
		}
	} else {
		choice, err := resolveStore(flag)
		if err != nil {
			return err
		}
		where = choice.url
	}
	if err := checkScheme(where); err != nil {
		return err
	}
	scheme, rest, _ := strings.Cut(where, "://")
	scheme = strings.ToLower(scheme)
	if !slices.Contains(driver.Schemes(), scheme) { // then it may as well be a password
		return storeError(&openError{&holdfast.Error{Op: "open", Err: driver.CheckURL(where)}})
	}
	form, ok := driver.DescribeURL(scheme)
	if !ok {
		return usageError("the store for %s:// does not say which options its URLs have", scheme)
	}
	if err := writeURLOptions(w, scheme, form, asJSON); err != nil || rest == "" {
		return err
	}
	if err := driver.CheckURL(where); err != nil {
		return storeError(&openError{&holdfast.Error{Op: "open", Err: err}})
	}
	return nil
}

func writeURLOptions(w io.Writer, scheme string, form driver.URLForm, asJSON bool) error {
	plain := strings.NewReplacer("`", "")
	if !asJSON {
		if _, err := fmt.Fprintf(w, "%s\n", form.Shape); err != nil {
			return err
		}
	}
	for _, o := range form.Options {
		f := fields{"scheme": scheme, "url": form.Shape, "option": o.Name, "value": plain.Replace(o.DescribeValue()),
			"means": plain.Replace(o.Means)}
		if o.Default != "" {
			f["default"] = plain.Replace(o.Default)
		}
		if len(o.Values) > 0 {
			f["values"] = o.Values
		}
		if len(o.Layouts) > 0 {
			f["layouts"] = o.Layouts
		}
		var err error
		if asJSON {
			err = writeRecord(w, recordStoreOption, f)
		} else {
			_, err = fmt.Fprint(w, describeURLOption(o, f))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// describeURLOption is an option for people: a line with its name and its values, and one that says what it is.
func describeURLOption(o driver.URLOption, f fields) string {
	text := fmt.Sprintf("\n%s: %s", o.Name, f["value"])
	if o.Default != "" {
		text += fmt.Sprintf("; by default %s", f["default"])
	}
	if len(o.Layouts) > 0 {
		text += "; only with layout=" + strings.Join(o.Layouts, " or layout=")
	}
	return text + fmt.Sprintf("\n    %s\n", f["means"])
}
