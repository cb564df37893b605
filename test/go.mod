module github.com/holdfast-go/holdfast/test

go 1.26.0

require (
	github.com/holdfast-go/holdfast v0.0.0
	go.yaml.in/yaml/v3 v3.0.5
)

require (
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/holdfast-go/holdfast => ../
