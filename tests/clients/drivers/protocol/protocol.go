// Package protocol is what the drivers in Go speak with the script that leads them: see README.md beside this folder.
package protocol

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"sync"
	"time"
)

// Limit bounds whatever a command waits for.
const Limit = 60 * time.Second

// A Record as the script writes and reads it. Bytes are base64 in JSON, and null is nil.
type Record struct {
	Offset    int64      `json:"o"`
	Partition int32      `json:"p"`
	Key       []byte     `json:"k"`
	Value     []byte     `json:"v"`
	Headers   [][2]Datum `json:"h"`
	Time      int64      `json:"t"`
}

// A Datum is a header's name (text) or its value (bytes or null).
type Datum = json.RawMessage

// Header is a pair as clients have it.
type Header struct {
	Name  string
	Value []byte
}

// Pairs are a record's headers.
func (r Record) Pairs() []Header {
	var out []Header
	for _, pair := range r.Headers {
		var h Header
		must(json.Unmarshal(pair[0], &h.Name))
		must(json.Unmarshal(pair[1], &h.Value))
		out = append(out, h)
	}
	return out
}

// Arguments of every command; a command uses some of them.
type Arguments struct {
	Do         string            `json:"do"`
	Call       string            `json:"call"`
	Topic      string            `json:"topic"`
	Partition  int32             `json:"partition"`
	Partitions int               `json:"partitions"`
	Codec      string            `json:"codec"`
	Records    []Record          `json:"records"`
	Count      int               `json:"count"`
	Offset     *int64            `json:"offset"`
	TimeMs     *int64            `json:"time_ms"`
	Group      string            `json:"group"`
	Instance   string            `json:"instance"`
	SessionMs  int64             `json:"session_ms"`
	Config     map[string]string `json:"config"`
	Name       string            `json:"name"`
	Value      string            `json:"value"`
	Before     int64             `json:"before"`
}

// Answer is what a line tells.
type Answer map[string]any

// A Call is one of the administrative calls.
type Call func(context.Context, Arguments) (any, error)

// A Driver is a client.
type Driver interface {
	Produce(context.Context, Arguments) ([]int64, error)
	Read(context.Context, Arguments) ([]Record, error)
	Replay(context.Context, Arguments) (first, second []int64, err error)
	Member(context.Context, Arguments) error
	Commit(context.Context) error
	Leave(context.Context) error
	Admin() map[string]Call
}

var lines sync.Mutex

// Say writes one line to the script.
func Say(answer Answer) {
	text, err := json.Marshal(answer)
	must(err)
	lines.Lock()
	defer lines.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

// Assigned tells which partitions a member has.
func Assigned(partitions []int32) {
	sorted := append([]int32{}, partitions...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i] < sorted[j] })
	Say(Answer{"assigned": sorted})
}

// Got tells of a record that a member was given.
func Got(partition int32, offset int64) { Say(Answer{"got": []int64{int64(partition), offset}}) }

// Make is a record from what a client has.
func Make(partition int32, offset int64, key, value []byte, headers []Header, time int64) Record {
	pairs := [][2]Datum{}
	for _, h := range headers {
		name, err := json.Marshal(h.Name)
		must(err)
		value, err := json.Marshal(h.Value)
		must(err)
		pairs = append(pairs, [2]Datum{name, value})
	}
	return Record{offset, partition, key, value, pairs, time}
}

// Serve carries out commands until standard input ends.
func Serve(driver Driver, module string) {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	decoder := json.NewDecoder(in)
	for {
		var a Arguments
		if decoder.Decode(&a) != nil {
			os.Exit(0)
		}
		answer, err := carryOut(driver, module, a)
		if err != nil {
			Say(Answer{"error": err.Error()})
			continue
		}
		answer["done"] = a.Do
		Say(answer)
	}
}

func carryOut(driver Driver, module string, a Arguments) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	switch a.Do {
	case "hello":
		var calls []string
		for name := range driver.Admin() {
			calls = append(calls, name)
		}
		sort.Strings(calls)
		return Answer{"version": version(module), "admin": calls}, nil
	case "produce":
		offsets, err := driver.Produce(ctx, a)
		return Answer{"offsets": offsets}, err
	case "read":
		records, err := driver.Read(ctx, a)
		for _, r := range records {
			Say(Answer{"record": r})
		}
		return Answer{}, err
	case "replay":
		first, second, err := driver.Replay(ctx, a)
		return Answer{"first": first, "second": second}, err
	case "member":
		return Answer{}, driver.Member(ctx, a)
	case "commit":
		return Answer{}, driver.Commit(ctx)
	case "leave":
		return Answer{}, driver.Leave(ctx)
	case "admin":
		call := driver.Admin()[a.Call]
		if call == nil {
			return nil, errors.New("unsupported")
		}
		answer, err := call(ctx, a)
		return Answer{"answer": answer}, err
	}
	return nil, fmt.Errorf("no such command: %q", a.Do)
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version
		}
	}
	return "?"
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
