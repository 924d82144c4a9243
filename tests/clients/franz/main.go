// franz: what a franz-go producer with a transactional id gets from a broker that has no transactions yet.
// Prints "refused MILLISECONDS ERROR", "accepted" or "hangs".
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.TransactionalID("transactional-franz"),
		kgo.DefaultProduceTopic(os.Args[2]),
	)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	defer client.Close()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err = client.BeginTransaction(); err == nil {
		err = client.ProduceSync(ctx, kgo.StringRecord("never")).FirstErr()
	}
	switch {
	case ctx.Err() != nil:
		fmt.Println("hangs")
	case err != nil:
		fmt.Println("refused", time.Since(began).Milliseconds(), err)
	default:
		fmt.Println("accepted")
	}
}
