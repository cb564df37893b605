// Package stores registers all stores of the holdfast command. It is imported for that alone:
//
//	import _ "github.com/holdfast-go/holdfast/cmd/holdfast/stores"
//
// A program that wants only some of them imports their packages instead. The memory store is left out: it would protect
// nothing outside its process.
package stores

import (
	_ "github.com/holdfast-go/holdfast/store/azure/identity" // with the store
	_ "github.com/holdfast-go/holdfast/store/consul"
	_ "github.com/holdfast-go/holdfast/store/dynamodb"
	_ "github.com/holdfast-go/holdfast/store/etcd"
	_ "github.com/holdfast-go/holdfast/store/file"
	_ "github.com/holdfast-go/holdfast/store/gcs"
	_ "github.com/holdfast-go/holdfast/store/kubernetes"
	_ "github.com/holdfast-go/holdfast/store/mysql"
	_ "github.com/holdfast-go/holdfast/store/nats"
	_ "github.com/holdfast-go/holdfast/store/postgres"
	_ "github.com/holdfast-go/holdfast/store/redis"
	_ "github.com/holdfast-go/holdfast/store/s3"
	_ "github.com/holdfast-go/holdfast/store/zookeeper"
)
