// Package database starts a PostgreSQL for an example.
package database

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/store/postgres"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// Start starts a server, makes the tables of Holdfast in it, which are those of the fence and of locks, and executes
// more statements. The server and the pool end with the story.
func Start(ctx context.Context, s *story.Story, statements string) (url string, db *pgxpool.Pool, err error) {
	server, err := pgtest.Start("fsync=off")
	if err != nil {
		return "", nil, err
	}
	s.AtEnd(server.Stop)
	url = "postgres://test@" + server.Addr + "/postgres?sslmode=disable"
	if db, err = pgxpool.New(ctx, url); err != nil {
		return "", nil, err
	}
	s.AtEnd(db.Close)
	if err = postgres.Migrate(ctx, db, nil); err == nil {
		_, err = db.Exec(ctx, statements)
	}
	return url, db, err
}
