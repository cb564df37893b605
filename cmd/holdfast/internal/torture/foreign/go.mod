module github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture/foreign

go 1.26.0

require (
	cirello.io/dynamolock/v2 v2.0.3
	github.com/aws/aws-sdk-go-v2 v1.48.0
	github.com/aws/aws-sdk-go-v2/service/dynamodb v1.74.0
	github.com/go-redsync/redsync/v4 v4.18.1
	github.com/go-zookeeper/zk v1.0.4
	github.com/holdfast-go/holdfast v0.0.0
	github.com/holdfast-go/holdfast/cmd/holdfast v0.0.0
	github.com/holdfast-go/holdfast/store/dynamodb v0.0.0
	github.com/holdfast-go/holdfast/store/etcd v0.0.0
	github.com/holdfast-go/holdfast/store/redis v0.0.0
	github.com/holdfast-go/holdfast/store/zookeeper v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	go.etcd.io/etcd/client/v3 v3.7.3
	go.uber.org/zap v1.28.0
	golang.org/x/net v0.62.0
	google.golang.org/grpc v1.85.0
)

require (
	github.com/armon/go-metrics v0.4.1 // indirect
	github.com/fatih/color v1.16.0 // indirect
	github.com/go-viper/mapstructure/v2 v2.5.0 // indirect
	github.com/hashicorp/consul/api v1.34.2 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-hclog v1.5.0 // indirect
	github.com/hashicorp/go-immutable-radix v1.3.1 // indirect
	github.com/hashicorp/go-rootcerts v1.0.2 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
	github.com/hashicorp/serf v0.10.1 // indirect
	github.com/mattn/go-colorable v0.1.13 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/mitchellh/go-homedir v1.1.0 // indirect
	golang.org/x/exp v0.0.0-20260908205506-85c1c2202aba // indirect
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue v1.10.43 // indirect
	github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression v1.4.71 // indirect
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.5.12 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.8.12 // indirect
	github.com/aws/aws-sdk-go-v2/service/dynamodbstreams v1.15.7 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.25 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/endpoint-discovery v1.13.12 // indirect
	github.com/aws/smithy-go v1.28.9 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.31.0 // indirect
	github.com/hashicorp/errwrap v1.1.0 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	github.com/holdfast-go/holdfast/store/consul v0.0.0
	go.etcd.io/etcd/api/v3 v3.7.3 // indirect
	go.etcd.io/etcd/client/pkg/v3 v3.7.3 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20261019180522-ce908d29299b // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261104224025-d1e00e9f33ab // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/holdfast-go/holdfast => ../../../../..

replace github.com/holdfast-go/holdfast/cmd/holdfast => ../../..

replace github.com/holdfast-go/holdfast/otel => ../../../../../otel

replace github.com/holdfast-go/holdfast/store/dynamodb => ../../../../../store/dynamodb

replace github.com/holdfast-go/holdfast/store/etcd => ../../../../../store/etcd

replace github.com/holdfast-go/holdfast/store/gcs => ../../../../../store/gcs

replace github.com/holdfast-go/holdfast/store/mysql => ../../../../../store/mysql

replace github.com/holdfast-go/holdfast/store/nats => ../../../../../store/nats

replace github.com/holdfast-go/holdfast/store/postgres => ../../../../../store/postgres

replace github.com/holdfast-go/holdfast/store/redis => ../../../../../store/redis

replace github.com/holdfast-go/holdfast/store/s3 => ../../../../../store/s3

replace github.com/holdfast-go/holdfast/store/zookeeper => ../../../../../store/zookeeper

replace github.com/holdfast-go/holdfast/store/azure => ../../../../../store/azure

replace github.com/holdfast-go/holdfast/store/consul => ../../../../../store/consul

replace github.com/holdfast-go/holdfast/store/kubernetes => ../../../../../store/kubernetes
