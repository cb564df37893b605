package servepage

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"sync"
	"time"
)

//go:embed static
var staticFiles embed.FS

// staticTypes are the files that are served.
var staticTypes = map[string]string{
	"page.css": "text/css; charset=utf-8",
	"page.js":  "text/javascript; charset=utf-8",
	"icon.svg": "image/svg+xml",
}

// staticVersion changes with the files. It is in their URLs, so that browsers can keep them.
var staticVersion = sync.OnceValue(func() string {
	sum := sha256.New()
	for _, name := range []string{"page.css", "page.js", "icon.svg"} {
		data, _ := staticFiles.ReadFile("static/" + name)
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
})

func staticURL(name string) string { return "/static/" + name + "?v=" + staticVersion() }

// serveStatic serves the page's own files.
func serveStatic(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	contentType, ok := staticTypes[name]
	data, err := staticFiles.ReadFile("static/" + name)
	if !ok || err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "max-age=3600")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
}
