// Package storeurl declares the URLs of a store: what they look like, and their options. A URL is read by the same
// declaration, a [Form], that makes the errors, the tables of docs/urls.md and "holdfast stores URL --options":
//
//	type settings struct {
//		server string
//		opts   Options
//	}
//
//	func (s *settings) form() *storeurl.Form {
//		return &storeurl.Form{
//			Shape: "mystore://host[:1234]",
//			Host:  &s.server,
//			Options: []storeurl.Option{
//				{Name: "folder", To: storeurl.Text(&s.opts.Folder), Default: "locks", Means: "the folder of the locks"},
//				storeurl.Timeout(&s.opts.Timeout, 3*time.Second, 50*time.Millisecond),
//			},
//		}
//	}
//
//	func init() { driver.Register("mystore", openURL, storeurl.Describe((*settings).form)) }
//
// The opener makes settings, and lets their form read the URL: [Form.Read].
//
// What the URL looks like is a text, and what is not in that text is refused: so the text that people read is the rule.
// Rejected: tags on the fields of a store's Options, in which sentences, bounds and layouts do not fit, and which would
// make a URL's option of each field.
package storeurl
