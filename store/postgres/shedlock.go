package postgres

import "github.com/holdfast-go/holdfast/driver"

const shedlockText = `create table %s (
	name varchar(64) not null primary key,
	lock_until timestamp not null,
	locked_at timestamp not null,
	locked_by varchar(255) not null
);
`

func newShedlock(t *table) driver.Store { panic("later") }
