module github.com/holdfast-go/holdfast/store/zookeeper

go 1.26.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/holdfast-go/holdfast v0.0.0
	golang.org/x/sys v0.49.0
)

replace github.com/holdfast-go/holdfast => ../..
