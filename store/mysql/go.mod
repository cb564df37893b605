module github.com/holdfast-go/holdfast/store/mysql

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/holdfast-go/holdfast v0.0.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/holdfast-go/holdfast => ../..
