// The driver of franz-go: kgo and kadm.
package main

import (
	"context"
	"errors"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tests/drivers/protocol"
)

type driver struct {
	bootstrap string
	// The client as a member of a group, what it was given last of each partition, and the end of its reading.
	member   *kgo.Client
	position struct {
		sync.Mutex
		at map[int32]*kgo.Record
	}
	ended chan struct{}
}

func main() {
	protocol.Serve(&driver{bootstrap: os.Args[1]}, "github.com/twmb/franz-go")
}

func (d *driver) client(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(d.bootstrap)}, more...)...)
}

func (d *driver) Produce(ctx context.Context, a protocol.Arguments) ([]int64, error) {
	codec := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[a.Codec]
	client, err := d.client(kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(100*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for _, r := range a.Records {
		one := &kgo.Record{Topic: a.Topic, Partition: a.Partition, Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Time)}
		for _, h := range r.Pairs() {
			one.Headers = append(one.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
		records = append(records, one)
	}
	var offsets []int64
	for _, result := range client.ProduceSync(ctx, records...) {
		if result.Err != nil {
			return nil, result.Err
		}
		offsets = append(offsets, result.Record.Offset)
	}
	return offsets, nil
}

func take(ctx context.Context, client *kgo.Client, count int) ([]*kgo.Record, error) {
	var taken []*kgo.Record
	for len(taken) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		taken = append(taken, fetches.Records()...)
	}
	return taken, nil
}

func (d *driver) Read(ctx context.Context, a protocol.Arguments) ([]protocol.Record, error) {
	var at kgo.Offset
	if a.TimeMs != nil {
		at = kgo.NewOffset().AfterMilli(*a.TimeMs)
	} else {
		at = kgo.NewOffset().At(*a.Offset)
	}
	client, err := d.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a.Topic: {a.Partition: at}}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	taken, err := take(ctx, client, a.Count)
	if err != nil {
		return nil, err
	}
	var out []protocol.Record
	for _, r := range taken[:a.Count] {
		var headers []protocol.Header
		for _, h := range r.Headers {
			headers = append(headers, protocol.Header{Name: h.Key, Value: h.Value})
		}
		out = append(out, protocol.Make(r.Partition, r.Offset, r.Key, r.Value, headers, r.Timestamp.UnixMilli()))
	}
	return out, nil
}

func offsets(records []*kgo.Record) []int64 {
	var out []int64
	for _, r := range records {
		out = append(out, r.Offset)
	}
	return out
}

func (d *driver) Replay(ctx context.Context, a protocol.Arguments) (first, second []int64, err error) {
	client, err := d.client(kgo.ConsumerGroup(a.Group), kgo.ConsumeTopics(a.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	one, err := take(ctx, client, a.Count)
	if err != nil {
		return nil, nil, err
	}
	if err = client.CommitUncommittedOffsets(ctx); err != nil {
		return nil, nil, err
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{a.Topic: {0: {Epoch: -1, Offset: 0}}})
	two, err := take(ctx, client, a.Count)
	return offsets(one), offsets(two), err
}

func (d *driver) Member(_ context.Context, a protocol.Arguments) error {
	var mine sync.Mutex
	owned := map[int32]bool{}
	tell := func(changed map[string][]int32, here bool) {
		mine.Lock()
		defer mine.Unlock()
		for _, p := range changed[a.Topic] {
			owned[p] = here
			if !here {
				d.position.Lock()
				delete(d.position.at, p)
				d.position.Unlock()
			}
		}
		var now []int32
		for p, here := range owned {
			if here {
				now = append(now, p)
			}
		}
		protocol.Assigned(now)
	}
	opts := []kgo.Opt{
		kgo.ConsumerGroup(a.Group), kgo.ConsumeTopics(a.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.SessionTimeout(time.Duration(a.SessionMs) * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, more map[string][]int32) { tell(more, true) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, less map[string][]int32) { tell(less, false) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, less map[string][]int32) { tell(less, false) }),
	}
	if a.Instance != "" {
		opts = append(opts, kgo.InstanceID(a.Instance))
	}
	client, err := d.client(opts...)
	if err != nil {
		return err
	}
	d.member, d.ended = client, make(chan struct{})
	d.position.at = map[int32]*kgo.Record{}
	go func() {
		defer close(d.ended)
		for {
			fetches := client.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			d.position.Lock()
			for _, r := range fetches.Records() {
				d.position.at[r.Partition] = r
				protocol.Got(r.Partition, r.Offset)
			}
			d.position.Unlock()
		}
	}()
	return nil
}

func (d *driver) Commit(ctx context.Context) error {
	d.position.Lock()
	var records []*kgo.Record
	for _, r := range d.position.at {
		records = append(records, r)
	}
	d.position.Unlock()
	return d.member.CommitRecords(ctx, records...)
}

func (d *driver) Leave(context.Context) error {
	d.member.Close()
	<-d.ended
	return nil
}

func (d *driver) Admin() map[string]protocol.Call {
	with := func(call func(context.Context, *kadm.Client, protocol.Arguments) (any, error)) protocol.Call {
		return func(ctx context.Context, a protocol.Arguments) (any, error) {
			client, err := d.client()
			if err != nil {
				return nil, err
			}
			defer client.Close()
			return call(ctx, kadm.NewClient(client), a)
		}
	}
	calls := map[string]protocol.Call{}
	for name, call := range admin {
		calls[name] = with(call)
	}
	return calls
}

var admin = map[string]func(context.Context, *kadm.Client, protocol.Arguments) (any, error){
	"create_topic": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		config := map[string]*string{}
		for name, value := range a.Config {
			config[name] = kadm.StringPtr(value)
		}
		_, err := c.CreateTopic(ctx, int32(a.Partitions), 1, config, a.Topic)
		return nil, err
	},
	"delete_topic": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		_, err := c.DeleteTopic(ctx, a.Topic)
		return nil, err
	},
	"list_topics": func(ctx context.Context, c *kadm.Client, _ protocol.Arguments) (any, error) {
		found, err := c.ListTopics(ctx)
		return found.Names(), err
	},
	"describe_topic": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		found, err := c.ListTopics(ctx, a.Topic)
		return len(found[a.Topic].Partitions), errors.Join(err, found.Error())
	},
	"create_partitions": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		found, err := c.UpdatePartitions(ctx, a.Partitions, a.Topic)
		return nil, errors.Join(err, found.Error())
	},
	"get_config": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		found, err := c.DescribeTopicConfigs(ctx, a.Topic)
		for _, one := range found {
			for _, config := range one.Configs {
				if config.Key == a.Name {
					return config.MaybeValue(), errors.Join(err, one.Err)
				}
			}
		}
		return nil, err
	},
	"set_config": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		found, err := c.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: a.Name, Value: &a.Value}}, a.Topic)
		for _, one := range found {
			err = errors.Join(err, one.Err)
		}
		return nil, err
	},
	"list_offsets": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		start, err := c.ListStartOffsets(ctx, a.Topic)
		end, err2 := c.ListEndOffsets(ctx, a.Topic)
		return []int64{start[a.Topic][a.Partition].Offset, end[a.Topic][a.Partition].Offset}, errors.Join(err, err2)
	},
	"delete_records": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		var at kadm.Offsets
		at.AddOffset(a.Topic, a.Partition, a.Before, -1)
		found, err := c.DeleteRecords(ctx, at)
		return found[a.Topic][a.Partition].LowWatermark, errors.Join(err, found.Error())
	},
	"describe_cluster": func(ctx context.Context, c *kadm.Client, _ protocol.Arguments) (any, error) {
		found, err := c.ListBrokers(ctx)
		return len(found), err
	},
	"describe_log_dirs": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		found, err := c.DescribeAllLogDirs(ctx, nil)
		partitions := 0
		found.Each(func(dir kadm.DescribedLogDir) {
			err = errors.Join(err, dir.Err)
			partitions += len(dir.Topics[a.Topic])
		})
		return partitions, err
	},
	"describe_producers": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		var set kadm.TopicsSet
		set.Add(a.Topic, a.Partition)
		found, err := c.DescribeProducers(ctx, set)
		return len(found[a.Topic].Partitions[a.Partition].ActiveProducers), errors.Join(err, found[a.Topic].Partitions[a.Partition].Err)
	},
	"elect_leader": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		var set kadm.TopicsSet
		set.Add(a.Topic, a.Partition)
		found, err := c.ElectLeaders(ctx, kadm.ElectPreferredReplica, set)
		if err != nil {
			return nil, err
		}
		if err := found[a.Topic][a.Partition].Err; err != nil {
			return err.Error(), nil
		}
		return "done", nil
	},
	"list_groups": func(ctx context.Context, c *kadm.Client, _ protocol.Arguments) (any, error) {
		found, err := c.ListGroups(ctx)
		names := found.Groups()
		sort.Strings(names)
		return names, err
	},
	"describe_group": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		found, err := c.DescribeGroups(ctx, a.Group)
		return []any{found[a.Group].State, len(found[a.Group].Members)}, errors.Join(err, found.Error())
	},
	"group_offsets": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		found, err := c.FetchOffsets(ctx, a.Group)
		offsets := map[string]int64{}
		for partition, one := range found[a.Topic] {
			offsets[strconv.Itoa(int(partition))] = one.At
		}
		return offsets, errors.Join(err, found.Error())
	},
	"set_group_offset": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		var at kadm.Offsets
		at.AddOffset(a.Topic, a.Partition, *a.Offset, -1)
		return nil, c.CommitAllOffsets(ctx, a.Group, at)
	},
	"delete_group_offset": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		var set kadm.TopicsSet
		set.Add(a.Topic, a.Partition)
		found, err := c.DeleteOffsets(ctx, a.Group, set)
		return nil, errors.Join(err, found.Error())
	},
	"delete_group": func(ctx context.Context, c *kadm.Client, a protocol.Arguments) (any, error) {
		_, err := c.DeleteGroup(ctx, a.Group)
		return nil, err
	},
}
