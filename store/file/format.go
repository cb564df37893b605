package file

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/engine/record"
)

// recordContent is the content of one version of a record. On the disk it is one line for people and tools, then the
// name, then the data:
//
//	holdfast/1 <crc32c of what follows> <live|gone> <version> <bytes of name> <bytes of data>\n<name><data>
//
// What follows the data is left over from an earlier use of the file and is ignored.
//
// The lock's name is part of it because a file name can be a hash, and because a file that was copied to another
// place must not be taken for the record of that place.
type recordContent struct {
	deleted bool // the record was deleted: no version follows in this directory
	name    string
	data    []byte
}

const (
	formatMagic   = "holdfast/"
	formatVersion = 1
	maxFileSize   = record.MaxData + 4096 // the largest record with its header
)

// castagnoli is the table by which hash/crc32 computes checksums the fast way. Making it takes as long as computing
// plainChecksums of them the slow way, and a program that runs one command computes fewer.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// plainTable is the same table, but not the one that hash/crc32 knows, which uses it one byte at a time.
var plainTable = sync.OnceValue(func() *crc32.Table {
	t := new(crc32.Table)
	for i := range t {
		t[i] = uint32(i)
		for range 8 {
			t[i] = t[i]>>1 ^ t[i]&1*crc32.Castagnoli
		}
	}
	return t
})

const plainChecksums = 100

var checksums atomic.Int64 // how many this process has computed

// checksum is the CRC-32C of a record.
func checksum(b []byte) uint32 {
	if len(b) <= blockSize && checksums.Load() < plainChecksums {
		checksums.Add(1)
		return crc32.Checksum(b, plainTable())
	}
	return crc32.Checksum(b, castagnoli())
}

var (
	// errTorn says that a file does not contain what was written to it. After a power cut, this is expected of files
	// that were not synced.
	errTorn = errors.New("not a whole record")
	// errFuture says that a file was written by a newer version of this package.
	errFuture = errors.New("written by a newer version of Holdfast: upgrade this one")
)

// encodeFile returns the file of version v.
func (c recordContent) encodeFile(v version) []byte {
	return c.appendFile(make([]byte, 0, 96+len(c.name)+len(c.data)), v)
}

// appendFile appends the file of version v. The version is part of it, so that a recycled file cannot be taken for
// another version.
func (c recordContent) appendFile(b []byte, v version) []byte {
	state := "live"
	if c.deleted {
		state = "gone"
	}
	b = append(b, formatMagic+"1 00000000 "...)
	head := len(b)
	b = v.appendTo(append(append(b, state...), ' '))
	b = strconv.AppendInt(append(b, ' '), int64(len(c.name)), 10)
	b = strconv.AppendInt(append(b, ' '), int64(len(c.data)), 10)
	b = append(append(append(b, '\n'), c.name...), c.data...)
	sum := binary.BigEndian.AppendUint32(nil, checksum(b[head:]))
	hex.Encode(b[head-len("00000000 "):], sum)
	return b
}

// decodeContent parses the file of version v.
func decodeContent(b []byte, v version) (recordContent, error) {
	line, rest, ok := bytes.Cut(b, []byte{'\n'})
	word := strings.Split(string(line), " ")
	if number, ok := strings.CutPrefix(word[0], formatMagic); ok {
		if n, err := strconv.Atoi(number); err == nil && n > formatVersion {
			return recordContent{}, errFuture
		}
	}
	if !ok || len(word) != 6 || word[0] != formatMagic+"1" {
		return recordContent{}, tornError(b)
	}
	crc, err1 := strconv.ParseUint(word[1], 16, 32)
	names, err2 := strconv.ParseUint(word[4], 10, 31)
	size, err3 := strconv.ParseUint(word[5], 10, 31)
	if err1 != nil || err2 != nil || err3 != nil || names+size > uint64(len(rest)) {
		return recordContent{}, tornError(b)
	}
	head, end := len(word[0])+len(word[1])+2, len(b)-len(rest)+int(names+size)
	if checksum(b[head:end]) != uint32(crc) || word[3] != v.String() {
		return recordContent{}, tornError(b)
	}
	return recordContent{deleted: word[2] == "gone", name: string(rest[:names]),
		data: rest[names : names+size : names+size]}, nil
}

// tornError describes a file that decodeContent cannot parse.
func tornError(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: the file is empty", errTorn)
	}
	return fmt.Errorf("%w: %d bytes that begin with %q", errTorn, len(b), b[:min(len(b), 40)])
}
