// The driver of kafka-go: its Reader, Writer and Client.
package main

import (
	"context"
	"errors"
	"net"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tailrace.dev/tests/drivers/protocol"
)

type driver struct {
	bootstrap string
	client    *kafka.Client
	member    *kafka.Reader
	end       context.CancelFunc
	ended     chan struct{}
	last      struct {
		sync.Mutex
		of map[int]kafka.Message
	}
}

func main() {
	address, err := net.ResolveTCPAddr("tcp", os.Args[1])
	if err != nil {
		panic(err)
	}
	client := &kafka.Client{Addr: address, Timeout: 30 * time.Second}
	protocol.Serve(&driver{bootstrap: os.Args[1], client: client}, "github.com/segmentio/kafka-go")
}

func (d *driver) Produce(ctx context.Context, a protocol.Arguments) ([]int64, error) {
	// The default one remembers for seconds which topics there are not.
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{
		Transport: transport, Addr: kafka.TCP(d.bootstrap), Topic: a.Topic, RequiredAcks: kafka.RequireAll, BatchTimeout: 100 * time.Millisecond,
		BatchSize: 1000, Balancer: kafka.BalancerFunc(func(kafka.Message, ...int) int { return int(a.Partition) }),
		Compression: map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}[a.Codec],
	}
	defer writer.Close()
	var messages []kafka.Message
	for _, r := range a.Records {
		m := kafka.Message{Key: r.Key, Value: r.Value, Time: time.UnixMilli(r.Time)}
		for _, h := range r.Pairs() {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Name, Value: h.Value})
		}
		messages = append(messages, m)
	}
	// It tells no offsets.
	return nil, writer.WriteMessages(ctx, messages...)
}

func (d *driver) reader(a protocol.Arguments) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{Brokers: []string{d.bootstrap}, Topic: a.Topic, Partition: int(a.Partition),
		MaxWait: 200 * time.Millisecond, MaxBytes: 16 << 20})
}

func fetch(ctx context.Context, reader *kafka.Reader, count int) ([]kafka.Message, error) {
	var taken []kafka.Message
	for len(taken) < count {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return nil, err
		}
		taken = append(taken, m)
	}
	return taken, nil
}

func (d *driver) Read(ctx context.Context, a protocol.Arguments) ([]protocol.Record, error) {
	reader := d.reader(a)
	defer reader.Close()
	var err error
	if a.TimeMs != nil {
		err = reader.SetOffsetAt(ctx, time.UnixMilli(*a.TimeMs))
	} else {
		err = reader.SetOffset(*a.Offset)
	}
	if err != nil {
		return nil, err
	}
	taken, err := fetch(ctx, reader, a.Count)
	var out []protocol.Record
	for _, m := range taken {
		var headers []protocol.Header
		for _, h := range m.Headers {
			headers = append(headers, protocol.Header{Name: h.Key, Value: h.Value})
		}
		out = append(out, protocol.Make(int32(m.Partition), m.Offset, m.Key, m.Value, headers, m.Time.UnixMilli()))
	}
	return out, err
}

func offsets(messages []kafka.Message) []int64 {
	var out []int64
	for _, m := range messages {
		out = append(out, m.Offset)
	}
	return out
}

func (d *driver) group(a protocol.Arguments) *kafka.Reader {
	config := kafka.ReaderConfig{Brokers: []string{d.bootstrap}, GroupID: a.Group, GroupTopics: []string{a.Topic},
		StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond, HeartbeatInterval: 500 * time.Millisecond, JoinGroupBackoff: 500 * time.Millisecond}
	if a.SessionMs > 0 {
		config.SessionTimeout = time.Duration(a.SessionMs) * time.Millisecond
	}
	return kafka.NewReader(config)
}

// Replay reads as a group first; a group's Reader has no SetOffset, so that it is another one which begins again.
func (d *driver) Replay(ctx context.Context, a protocol.Arguments) (first, second []int64, err error) {
	group := d.group(a)
	defer group.Close()
	one, err := fetch(ctx, group, a.Count)
	if err != nil {
		return nil, nil, err
	}
	if err = group.CommitMessages(ctx, one...); err != nil {
		return nil, nil, err
	}
	reader := d.reader(a)
	defer reader.Close()
	if err = reader.SetOffset(0); err != nil {
		return nil, nil, err
	}
	two, err := fetch(ctx, reader, a.Count)
	return offsets(one), offsets(two), err
}

func (d *driver) Member(_ context.Context, a protocol.Arguments) error {
	if a.Instance != "" {
		return errors.New("unsupported")
	}
	ctx, end := context.WithCancel(context.Background())
	d.member, d.end, d.ended, d.last.of = d.group(a), end, make(chan struct{}), map[int]kafka.Message{}
	go func() {
		defer close(d.ended)
		for ctx.Err() == nil {
			m, err := d.member.FetchMessage(ctx)
			if err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			d.last.Lock()
			d.last.of[m.Partition] = m
			d.last.Unlock()
			protocol.Got(int32(m.Partition), m.Offset)
		}
	}()
	return nil
}

func (d *driver) Commit(ctx context.Context) error {
	d.last.Lock()
	var messages []kafka.Message
	for _, m := range d.last.of {
		messages = append(messages, m)
	}
	clear(d.last.of)
	d.last.Unlock()
	return d.member.CommitMessages(ctx, messages...)
}

func (d *driver) Leave(context.Context) error {
	d.end()
	<-d.ended
	return d.member.Close()
}

func (d *driver) Admin() map[string]protocol.Call {
	c := d.client
	return map[string]protocol.Call{
		"create_topic": func(ctx context.Context, a protocol.Arguments) (any, error) {
			topic := kafka.TopicConfig{Topic: a.Topic, NumPartitions: a.Partitions, ReplicationFactor: 1}
			for name, value := range a.Config {
				topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
			}
			found, err := c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
			if err != nil {
				return nil, err
			}
			return nil, found.Errors[a.Topic]
		},
		"delete_topic": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{a.Topic}})
			if err != nil {
				return nil, err
			}
			return nil, found.Errors[a.Topic]
		},
		"list_topics": func(ctx context.Context, _ protocol.Arguments) (any, error) {
			found, err := c.Metadata(ctx, &kafka.MetadataRequest{})
			if err != nil {
				return nil, err
			}
			var names []string
			for _, topic := range found.Topics {
				names = append(names, topic.Name)
			}
			return names, nil
		},
		"describe_topic": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{a.Topic}})
			if err != nil {
				return nil, err
			}
			return len(found.Topics[0].Partitions), found.Topics[0].Error
		},
		"create_partitions": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
				Topics: []kafka.TopicPartitionsConfig{{Name: a.Topic, Count: int32(a.Partitions)}}})
			if err != nil {
				return nil, err
			}
			return nil, found.Errors[a.Topic]
		},
		"get_config": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
				{ResourceType: kafka.ResourceTypeTopic, ResourceName: a.Topic, ConfigNames: []string{a.Name}}}})
			if err != nil {
				return nil, err
			}
			return found.Resources[0].ConfigEntries[0].ConfigValue, found.Resources[0].Error
		},
		"set_config": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
				Resources: []kafka.IncrementalAlterConfigsRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: a.Topic,
					Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: a.Name, Value: a.Value, ConfigOperation: kafka.ConfigOperationSet}}}}})
			if err != nil {
				return nil, err
			}
			return nil, found.Resources[0].Error
		},
		"list_offsets": func(ctx context.Context, a protocol.Arguments) (any, error) {
			p := int(a.Partition)
			found, err := c.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
				a.Topic: {kafka.FirstOffsetOf(p), kafka.LastOffsetOf(p)}}})
			if err != nil {
				return nil, err
			}
			one := found.Topics[a.Topic][0]
			return []int64{one.FirstOffset, one.LastOffset}, one.Error
		},
		"describe_cluster": func(ctx context.Context, _ protocol.Arguments) (any, error) {
			found, err := c.Metadata(ctx, &kafka.MetadataRequest{})
			if err != nil {
				return nil, err
			}
			return len(found.Brokers), nil
		},
		"elect_leader": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.ElectLeaders(ctx, &kafka.ElectLeadersRequest{Topic: a.Topic, Partitions: []int{int(a.Partition)}, Timeout: 10 * time.Second})
			if err != nil {
				return nil, err
			}
			for _, one := range found.PartitionResults {
				if one.Error != nil {
					return one.Error.Error(), nil
				}
			}
			return "done", found.Error
		},
		"list_groups": func(ctx context.Context, _ protocol.Arguments) (any, error) {
			found, err := c.ListGroups(ctx, &kafka.ListGroupsRequest{})
			if err != nil {
				return nil, err
			}
			names := []string{}
			for _, group := range found.Groups {
				names = append(names, group.GroupID)
			}
			sort.Strings(names)
			return names, found.Error
		},
		"describe_group": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{a.Group}})
			if err != nil {
				return nil, err
			}
			return []any{found.Groups[0].GroupState, len(found.Groups[0].Members)}, found.Groups[0].Error
		},
		"group_offsets": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: a.Group, Topics: map[string][]int{a.Topic: {0, 1}}})
			if err != nil {
				return nil, err
			}
			offsets := map[string]int64{}
			for _, one := range found.Topics[a.Topic] {
				offsets[strconv.Itoa(one.Partition)] = one.CommittedOffset
			}
			return offsets, found.Error
		},
		"set_group_offset": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: a.Group, GenerationID: -1,
				Topics: map[string][]kafka.OffsetCommit{a.Topic: {{Partition: int(a.Partition), Offset: *a.Offset}}}})
			if err != nil {
				return nil, err
			}
			return nil, found.Topics[a.Topic][0].Error
		},
		"delete_group_offset": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: a.Group, Topics: map[string][]int{a.Topic: {int(a.Partition)}}})
			if err != nil {
				return nil, err
			}
			return nil, errors.Join(found.Error, found.Topics[a.Topic][0].Error)
		},
		"delete_group": func(ctx context.Context, a protocol.Arguments) (any, error) {
			found, err := c.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{a.Group}})
			if err != nil {
				return nil, err
			}
			return nil, found.Errors[a.Group]
		},
	}
}
