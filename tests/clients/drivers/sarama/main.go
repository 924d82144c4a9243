// The driver of sarama.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"tailrace.dev/tests/drivers/protocol"
)

type driver struct {
	bootstrap []string
	group     sarama.ConsumerGroup
	member    *member
}

func main() {
	protocol.Serve(&driver{bootstrap: []string{os.Args[1]}}, "github.com/IBM/sarama")
}

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	return c
}

func (d *driver) Produce(_ context.Context, a protocol.Arguments) ([]int64, error) {
	c := config()
	c.Producer.Compression = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[a.Codec]
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.Return.Successes = true
	c.Producer.Flush.Frequency = 100 * time.Millisecond
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(d.bootstrap, c)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for _, r := range a.Records {
		m := &sarama.ProducerMessage{Topic: a.Topic, Partition: a.Partition, Timestamp: time.UnixMilli(r.Time)}
		if r.Key != nil {
			m.Key = sarama.ByteEncoder(r.Key)
		}
		if r.Value != nil {
			m.Value = sarama.ByteEncoder(r.Value)
		}
		for _, h := range r.Pairs() {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value})
		}
		messages = append(messages, m)
	}
	if err := producer.SendMessages(messages); err != nil {
		return nil, err
	}
	var offsets []int64
	for _, m := range messages {
		offsets = append(offsets, m.Offset)
	}
	return offsets, nil
}

func (d *driver) Read(ctx context.Context, a protocol.Arguments) ([]protocol.Record, error) {
	client, err := sarama.NewClient(d.bootstrap, config())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var offset int64
	if a.TimeMs != nil {
		if offset, err = client.GetOffset(a.Topic, a.Partition, *a.TimeMs); err != nil {
			return nil, err
		}
	} else {
		offset = *a.Offset
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(a.Topic, a.Partition, offset)
	if err != nil {
		return nil, err
	}
	defer partition.Close()
	var out []protocol.Record
	for len(out) < a.Count {
		select {
		case m := <-partition.Messages():
			var headers []protocol.Header
			for _, h := range m.Headers {
				headers = append(headers, protocol.Header{Name: string(h.Key), Value: h.Value})
			}
			out = append(out, protocol.Make(m.Partition, m.Offset, m.Key, m.Value, headers, m.Timestamp.UnixMilli()))
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d records came", len(out), a.Count)
		}
	}
	return out, nil
}

// replay reads so many records of a group's partition and commits; from 0, if it is to begin there again.
type replay struct {
	topic string
	count int
	again bool
	read  []int64
	done  context.CancelFunc
}

func (r *replay) Setup(session sarama.ConsumerGroupSession) error {
	if r.again {
		session.ResetOffset(r.topic, 0, 0, "")
	}
	return nil
}

func (r *replay) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *replay) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		if len(r.read) == r.count {
			continue
		}
		r.read = append(r.read, m.Offset)
		session.MarkMessage(m, "")
		if len(r.read) == r.count {
			session.Commit()
			r.done()
		}
	}
	return nil
}

func (d *driver) Replay(ctx context.Context, a protocol.Arguments) (first, second []int64, err error) {
	group, err := sarama.NewConsumerGroup(d.bootstrap, a.Group, config())
	if err != nil {
		return nil, nil, err
	}
	defer group.Close()
	read := func(again bool) ([]int64, error) {
		within, done := context.WithCancel(ctx)
		defer done()
		r := &replay{topic: a.Topic, count: a.Count, again: again, done: done}
		for within.Err() == nil {
			if err := group.Consume(within, []string{a.Topic}, r); err != nil && within.Err() == nil {
				return nil, err
			}
		}
		return r.read, nil
	}
	if first, err = read(false); err != nil {
		return nil, nil, err
	}
	second, err = read(true)
	return first, second, err
}

// member tells what it is assigned and given; a session's marks are committed when it is asked to.
type member struct {
	sync.Mutex
	topic   string
	session sarama.ConsumerGroupSession
	end     context.CancelFunc
	ended   chan struct{}
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.Lock()
	m.session = session
	m.Unlock()
	protocol.Assigned(session.Claims()[m.topic])
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for one := range claim.Messages() {
		session.MarkMessage(one, "")
		protocol.Got(one.Partition, one.Offset)
	}
	return nil
}

func (d *driver) Member(_ context.Context, a protocol.Arguments) error {
	c := config()
	c.Consumer.Group.Session.Timeout = time.Duration(a.SessionMs) * time.Millisecond
	c.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	c.Consumer.Group.InstanceId = a.Instance
	group, err := sarama.NewConsumerGroup(d.bootstrap, a.Group, c)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	d.group, d.member = group, &member{topic: a.Topic, end: end, ended: make(chan struct{})}
	go func() {
		defer close(d.member.ended)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{a.Topic}, d.member); err != nil {
				fmt.Fprintln(os.Stderr, err)
				time.Sleep(200 * time.Millisecond)
			}
		}
	}()
	return nil
}

func (d *driver) Commit(context.Context) error {
	d.member.Lock()
	defer d.member.Unlock()
	d.member.session.Commit()
	return nil
}

func (d *driver) Leave(context.Context) error {
	d.member.end()
	<-d.member.ended
	return d.group.Close()
}

func (d *driver) Admin() map[string]protocol.Call {
	calls := map[string]protocol.Call{}
	for name, call := range admin {
		calls[name] = func(_ context.Context, a protocol.Arguments) (any, error) {
			client, err := sarama.NewClusterAdmin(d.bootstrap, config())
			if err != nil {
				return nil, err
			}
			defer client.Close()
			return call(client, a)
		}
	}
	return calls
}

var admin = map[string]func(sarama.ClusterAdmin, protocol.Arguments) (any, error){
	"create_topic": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		config := map[string]*string{}
		for name, value := range a.Config {
			config[name] = &value
		}
		return nil, c.CreateTopic(a.Topic, &sarama.TopicDetail{NumPartitions: int32(a.Partitions), ReplicationFactor: 1, ConfigEntries: config}, false)
	},
	"delete_topic": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) { return nil, c.DeleteTopic(a.Topic) },
	"list_topics": func(c sarama.ClusterAdmin, _ protocol.Arguments) (any, error) {
		found, err := c.ListTopics()
		return names(found), err
	},
	"describe_topic": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		found, err := c.DescribeTopics([]string{a.Topic})
		if err != nil {
			return nil, err
		}
		return len(found[0].Partitions), coded(found[0].Err)
	},
	"create_partitions": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		return nil, c.CreatePartitions(a.Topic, int32(a.Partitions), nil, false)
	},
	"get_config": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		found, err := c.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: a.Topic, ConfigNames: []string{a.Name}})
		if err != nil {
			return nil, err
		}
		return found[0].Value, nil
	},
	"set_config": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		return nil, c.IncrementalAlterConfig(sarama.TopicResource, a.Topic, map[string]sarama.IncrementalAlterConfigsEntry{
			a.Name: {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &a.Value}}, false)
	},
	"list_offsets": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		var offsets []int64
		for _, at := range []int64{sarama.OffsetOldest, sarama.OffsetNewest} {
			found, err := c.ListOffsets(map[string]map[int32]int64{a.Topic: {a.Partition: at}}, nil)
			if err != nil {
				return nil, err
			}
			offsets = append(offsets, found[a.Topic][a.Partition].Offset)
		}
		return offsets, nil
	},
	"delete_records": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		return nil, c.DeleteRecords(a.Topic, map[int32]int64{a.Partition: a.Before})
	},
	"describe_cluster": func(c sarama.ClusterAdmin, _ protocol.Arguments) (any, error) {
		found, _, err := c.DescribeCluster()
		return len(found), err
	},
	"describe_log_dirs": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		brokers, _, err := c.DescribeCluster()
		if err != nil {
			return nil, err
		}
		found, err := c.DescribeLogDirs([]int32{brokers[0].ID()})
		partitions := 0
		for _, dir := range found[brokers[0].ID()] {
			for _, topic := range dir.Topics {
				if topic.Topic == a.Topic {
					partitions += len(topic.Partitions)
				}
			}
		}
		return partitions, err
	},
	"elect_leader": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		found, err := c.ElectLeaders(sarama.PreferredElection, map[string][]int32{a.Topic: {a.Partition}})
		if err != nil {
			return nil, err
		}
		if err := coded(found[a.Topic][a.Partition].ErrorCode); err != nil {
			return err.Error(), nil
		}
		return "done", nil
	},
	"list_groups": func(c sarama.ClusterAdmin, _ protocol.Arguments) (any, error) {
		found, err := c.ListConsumerGroups()
		return names(found), err
	},
	"describe_group": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		found, err := c.DescribeConsumerGroups([]string{a.Group})
		if err != nil {
			return nil, err
		}
		return []any{found[0].State, len(found[0].Members)}, coded(found[0].Err)
	},
	"group_offsets": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		found, err := c.ListConsumerGroupOffsetsBatch(map[string]map[string][]int32{a.Group: nil})
		if err != nil {
			return nil, err
		}
		offsets := map[string]int64{}
		for partition, one := range found[a.Group].Blocks[a.Topic] {
			offsets[strconv.Itoa(int(partition))] = one.Offset
		}
		return offsets, nil
	},
	"set_group_offset": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		found, err := c.AlterConsumerGroupOffsets(a.Group, map[string]map[int32]sarama.OffsetAndMetadata{
			a.Topic: {a.Partition: {Offset: *a.Offset, LeaderEpoch: -1}}}, nil)
		if err != nil {
			return nil, err
		}
		return nil, coded(found.Errors[a.Topic][a.Partition])
	},
	"delete_group_offset": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		return nil, c.DeleteConsumerGroupOffset(a.Group, a.Topic, a.Partition)
	},
	"delete_group": func(c sarama.ClusterAdmin, a protocol.Arguments) (any, error) {
		return nil, c.DeleteConsumerGroup(a.Group)
	},
}

// coded is an error only if the code is one.
func coded(code sarama.KError) error {
	if errors.Is(code, sarama.ErrNoError) {
		return nil
	}
	return code
}

func names[V any](found map[string]V) []string {
	var out []string
	for name := range found {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}
