package drivertest

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// nameSuffixes are names that stores have confused, cut, folded or rejected. Each is a lock of its own.
var nameSuffixes = []string{
	"a", "A", "a/b", "a//b", "a/", "a/b/", "/a", "//a", "a/b/c", "aa", "ab",
	" a", "a ", "a  ", "a b", " ", "a.", "a..", ".", "..", "../x", "a/../a", "a/./b", ".a", "...",
	"%41", "%61", "a%2Fb", "a%2fb", "%", "%%", "%00", "a+b", "a&b=c", "a?b", "a#b", "a;b", "a:b", "a=b",
	"a*", "a[b]", "{a}", "{a}b", "a_", "a%", "a-b", "-a", "--", "~", "~a", "$a", "$(a)", "`a`", "'a'", "\"a\"", "a\\b", "\\", "a|b",
	"a\nb", "a\n", "\n", "a\tb", "a\r\nb", "a\x01b", "a\x7fb", "\u0085", "\u00a0", "\u200b", "\ufeffa", "\u202ea",
	"é", "e\u0301", "ß", "ss", "ı", "i", "I", "ﬀ", "ff", "\u00c5", "\u212b", "A\u030a", "漢字", "🔒", "🔒🔓", "\U0010ffff", "\ufffd",
	"a.json", "a.lock", "a.tmp", "lock-0000000001", "holdfast", "CON", "nul", "con.txt", "null", "true", "0", "00", "-1", "1e3",
}

var nameCases = []Case{
	newCase("names", "Every name is a lock of its own: no two names are confused, and each is returned exactly as "+
		"it was written.", func(e *Env) {
		names := e.allNames()
		owners := map[string]string{}
		e.runConcurrently(sharedClients, func(i int) {
			for k := i; k < len(names); k += sharedClients {
				cl := e.mutexClaim(names[k])
				e.mu.Lock()
				owners[cl.Name] = cl.Owner
				e.mu.Unlock()
				e.client(i).mustTry(cl)
			}
		})
		for _, name := range names {
			l := e.a().mustInspect(name)
			if l.Name != name || len(l.Holders) != 1 || l.Holders[0].Owner != owners[name] {
				e.failf("%q should be held by %s: it is shown as %q, and %s", name, owners[name], l.Name,
					describeLock(l))
			}
		}
		slices.Sort(names)
		got := e.b().mustList(e.prefix)
		if !slices.Equal(got, names) {
			e.failf("the listing lacks %q, and contains %q, which do not exist", missingFrom(names, got),
				missingFrom(got, names))
		}
		for _, s := range nameSuffixes {
			want := slices.DeleteFunc(slices.Clone(names),
				func(n string) bool { return !strings.HasPrefix(n, e.prefix+s) })
			if got := e.c().mustList(e.prefix + s); !slices.Equal(got, want) {
				e.failf("the listing of %q lacks %q, and contains %q, which do not exist or do not match", s,
					missingFrom(want, got), missingFrom(got, want))
			}
		}
	}),
	newCase("names-that-start-oddly", "A name may also start with a dot, a slash, a space or a minus. Two names "+
		"that differ only in that are two locks.", func(e *Env) {
		// These names do not begin with the run's prefix; they contain it further on.
		for _, start := range []string{"", "/", "//", "../", "./", ".", "..", " ", "-", "~/", "\n", "\\", "%", "*", "{",
			"🔒"} {
			name := e.registerName(start + e.prefix + "x")
			cl := e.mutexClaim(name)
			g := e.a().mustTry(cl)
			defer e.a().releaseIfHeld(cl)
			e.requireHolder(g)
			if got := e.b().mustList(name); len(got) != 1 || got[0] != name {
				e.failf("the listing of %q is %q", name, got)
			}
		}
	}),
}

// allNames returns the unusual names below this case's prefix, and the longest ones that the store accepts.
func (e *Env) allNames() (names []string) {
	for _, s := range nameSuffixes {
		if n := e.prefix + s; len(n) <= e.info.MaxName {
			names = append(names, n)
		}
	}
	room := e.info.MaxName - len(e.prefix)
	for _, r := range []rune{'x', '/', ' ', '%', '*', '_', '\\', '\n', 'é', '🔒'} {
		long := strings.Repeat(string(r), (room-1)/utf8.RuneLen(r))
		for _, last := range []string{"1", "2", "a", "A"} {
			names = append(names, fmt.Sprint(e.prefix, long, last))
		}
	}
	return names
}

// missingFrom returns some of the elements of a that are not in b.
func missingFrom(a, b []string) []string {
	d := slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
	d = d[:min(len(d), 5)]
	for i, s := range d {
		if len(s) > 80 {
			d[i] = s[:60] + "…" + s[len(s)-10:]
		}
	}
	return d
}
