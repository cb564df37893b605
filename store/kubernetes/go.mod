module github.com/holdfast-go/holdfast/store/kubernetes

go 1.26.0

require (
	github.com/holdfast-go/holdfast v0.0.0
	go.yaml.in/yaml/v3 v3.0.4
)

require golang.org/x/sys v0.49.0 // indirect

replace github.com/holdfast-go/holdfast => ../..
