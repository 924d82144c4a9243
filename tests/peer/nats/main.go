// nats-peer: a NATS server with JetStream on this machine, and a publisher that sends one record at a time, as the other
// side of the row "one-at-a-time" of tests/show/bench/2.
//
//	nats-peer serve --dir DIR --port PORT    in the foreground; every publish is synced before its acknowledgement
//	nats-peer publish --port PORT --bytes N --warm-up-s S --length-s S
//	    One stream on files; each record is sent when the one before is acknowledged. One line of JSON, times in
//	    microseconds from the call that publishes to its acknowledgement.
//
// Only the loopback is listened on.
package main

import (
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	host    = "127.0.0.1"
	subject = "bench.records"
	// Of the records that are kept; a publish of an hour stays below it.
	largest = 64 << 30
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("serve or publish"))
	}
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(os.Args[2:])
	case "publish":
		err = publish(os.Args[2:])
	default:
		err = fmt.Errorf("%q: serve or publish", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "nats-peer:", err)
	os.Exit(1)
}

func serve(args []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	dir := flags.String("dir", "", "where its data goes")
	port := flags.Int("port", 4222, "")
	flags.Parse(args)
	s, err := server.NewServer(&server.Options{
		Host: host, Port: *port, JetStream: true, StoreDir: *dir, JetStreamMaxStore: largest,
		// What `sync_interval: always` is in its configuration file.
		SyncAlways: true, NoSigs: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		return fmt.Errorf("it isn't ready within 30 s")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

type result struct {
	Server string  `json:"server"`
	Client string  `json:"client"`
	Count  int     `json:"count"`
	PerS   float64 `json:"records_per_s"`
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`
	P999   float64 `json:"p99_9"`
	Max    float64 `json:"max"`
}

func publish(args []string) error {
	flags := flag.NewFlagSet("publish", flag.ExitOnError)
	port := flags.Int("port", 4222, "")
	bytes := flags.Int("bytes", 1024, "of a record")
	warmUp := flags.Float64("warm-up-s", 10, "")
	length := flags.Float64("length-s", 30, "")
	flags.Parse(args)
	nc, err := nats.Connect(fmt.Sprintf("nats://%s:%d", host, *port), nats.RetryOnFailedConnect(true), nats.MaxReconnects(100),
		nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		return err
	}
	begun := time.Now()
	for {
		_, err = js.AddStream(&nats.StreamConfig{Name: "BENCH", Subjects: []string{subject}, Storage: nats.FileStorage, MaxBytes: largest})
		if err == nil {
			break
		}
		if time.Since(begun) > 30*time.Second {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	// Nothing that a disk could leave out; a record is a piece of it, so that no two are alike.
	pool := make([]byte, 4<<20+*bytes)
	if _, err := rand.Read(pool); err != nil {
		return err
	}
	times := make([]int64, 0, 1<<20)
	from := time.Now().Add(time.Duration(*warmUp * float64(time.Second)))
	to := from.Add(time.Duration(*length * float64(time.Second)))
	for n := 0; ; n++ {
		at := (n * 4099) % (4 << 20)
		before := time.Now()
		if before.After(to) {
			break
		}
		if _, err := js.Publish(subject, pool[at:at+*bytes]); err != nil {
			return err
		}
		if before.After(from) {
			times = append(times, int64(time.Since(before)))
		}
	}
	if len(times) == 0 {
		return fmt.Errorf("nothing was measured")
	}
	slices.Sort(times)
	quantile := func(q float64) float64 {
		return float64(times[min(int(q*float64(len(times))), len(times)-1)]) / 1e3
	}
	return json.NewEncoder(os.Stdout).Encode(result{
		Server: nc.ConnectedServerVersion(), Client: nats.Version, Count: len(times), PerS: float64(len(times)) / *length,
		P50: quantile(0.5), P99: quantile(0.99), P999: quantile(0.999), Max: quantile(1),
	})
}
