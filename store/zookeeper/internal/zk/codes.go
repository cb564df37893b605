package zk

import "fmt"

// The numbers of the operations.
const (
	OpCreate          = 1
	OpDelete          = 2
	OpExists          = 3
	OpGetData         = 4
	OpSetData         = 5
	OpGetACL          = 6
	OpSetACL          = 7
	OpPing            = 11
	OpGetChildren     = 12 // with the parent's Stat
	OpCheck           = 13
	OpMulti           = 14
	OpCreate2         = 15 // returns the node's Stat
	OpCreateContainer = 19
	OpAuth            = 100
	OpSetWatches      = 101
	OpCloseSession    = -11
)

// Request ids that do not count requests.
const (
	XidEvent      = -1
	xidPing       = -2
	xidAuth       = -4
	xidSetWatches = -8
)

// The flags of a create request.
const (
	modePersistent = 0
	modeEphemeral  = 1
	modeSequential = 3 // and ephemeral
	modeContainer  = 4
)

// The kinds of watch events.
const (
	eventCreated  = 1
	eventDeleted  = 2
	eventChanged  = 3
	eventChildren = 4
)

// Code is the error code of an answer. All but CodeOK are errors.
type Code int32

// The codes that callers act on.
const (
	CodeOK             Code = 0
	CodeRuntime        Code = -2 // of a step of a multi: another step has failed
	CodeUnimplemented  Code = -6
	CodeNoNode         Code = -101
	CodeNoAuth         Code = -102
	CodeBadVersion     Code = -103
	CodeNoChildren     Code = -108
	CodeNodeExists     Code = -110
	CodeNotEmpty       Code = -111
	CodeSessionExpired Code = -112
	CodeInvalidACL     Code = -114
	CodeAuthFailed     Code = -115
	CodeSessionMoved   Code = -118
	CodeQuota          Code = -125
)

var codeTexts = map[Code]string{
	CodeUnimplemented: "the server does not know this request", CodeNoNode: "no such node", CodeNoAuth: "not permitted",
	CodeBadVersion: "the node has changed", CodeNodeExists: "the node exists", CodeSessionExpired: "the session has ended",
	CodeAuthFailed: "authentication failed", CodeSessionMoved: "the session has moved to another server",
	CodeQuota: "a quota is used up", -1: "system error", -4: "connection loss",
	-5: "marshalling error", -8: "bad arguments",
	CodeNoChildren: "ephemeral nodes have no children", CodeNotEmpty: "the node has children", CodeInvalidACL: "invalid ACL",
}

func (c Code) Error() string {
	if text, ok := codeTexts[c]; ok {
		return fmt.Sprintf("zookeeper: %s (%d)", text, int32(c))
	}
	return fmt.Sprintf("zookeeper: error %d", int32(c))
}
