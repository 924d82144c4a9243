"""The driver of confluent-kafka (Python)."""

import pathlib
import queue
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import protocol  # noqa: E402
from confluent_kafka import (  # noqa: E402
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    libversion,
    version,
)
from confluent_kafka.admin import (  # noqa: E402
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

LIMIT_S = 60


class Driver:
    def __init__(self, bootstrap):
        self.config = {"bootstrap.servers": bootstrap, "broker.address.family": "v4"}
        self.admin = AdminClient(self.config)
        self.asked = queue.Queue()

    def do_hello(self):
        return {"version": f"{version()}, librdkafka {libversion()[0]}", "admin": protocol.admin_calls(self)}

    def do_produce(self, topic, partition, codec, records):
        producer = Producer(self.config | {"compression.type": codec, "linger.ms": 100, "enable.idempotence": True})
        offsets, errors = [], []

        def told(error, message):
            errors.append(str(error)) if error else offsets.append(message.offset())
        for r in records:
            producer.produce(topic, protocol.bytes_of(r["v"]), protocol.bytes_of(r["k"]), partition, on_delivery=told, timestamp=r["t"],
                             headers=[(name, protocol.bytes_of(data)) for name, data in r["h"]])
        producer.flush(LIMIT_S)
        if errors or len(offsets) != len(records):
            raise RuntimeError(f"{len(offsets)} of {len(records)} were acknowledged: {errors[:1]}")
        return {"offsets": offsets}

    def consumer(self, group, **more):
        return Consumer(self.config | {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
                                       "group.protocol": "classic"} | more)

    def take(self, consumer, count):
        taken, end = [], time.monotonic() + LIMIT_S
        while len(taken) < count:
            message = consumer.poll(0.2)
            if message is None:
                if time.monotonic() > end:
                    raise RuntimeError(f"{len(taken)} of {count} records came")
                continue
            if message.error():
                raise KafkaException(message.error())
            taken.append(message)
        return taken

    def do_read(self, topic, partition, count, offset=None, time_ms=None):
        consumer = self.consumer("nobody")
        if time_ms is not None:
            [found] = consumer.offsets_for_times([TopicPartition(topic, partition, time_ms)], LIMIT_S)
            offset = found.offset
        consumer.assign([TopicPartition(topic, partition, offset)])
        for m in self.take(consumer, count):
            protocol.record(m.offset(), m.key(), m.value(), m.headers(), m.timestamp()[1])
        consumer.close()

    def do_replay(self, topic, group, count):
        consumer = self.consumer(group)
        consumer.subscribe([topic])
        first = [m.offset() for m in self.take(consumer, count)]
        consumer.commit(asynchronous=False)
        consumer.seek(TopicPartition(topic, 0, 0))
        second = [m.offset() for m in self.take(consumer, count)]
        consumer.close()
        return {"first": first, "second": second}

    def do_member(self, topic, group, session_ms, instance=None):
        consumer = self.consumer(group, **{"session.timeout.ms": session_ms, "heartbeat.interval.ms": 500},
                                 **({"group.instance.id": instance} if instance else {}))

        def assigned(consumer, partitions):
            protocol.say(assigned=sorted(p.partition for p in partitions))
        consumer.subscribe([topic], on_assign=assigned)
        self.told = queue.Queue()
        threading.Thread(target=self.run, args=(consumer,), daemon=True).start()

    def run(self, consumer):
        """The member's thread: reads, and does in between what it is asked."""
        position = {}
        while True:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                position[message.topic(), message.partition()] = message.offset() + 1
                protocol.say(got=[message.partition(), message.offset()])
            if self.asked.empty():
                continue
            what = self.asked.get()
            try:
                if what == "commit" and position:
                    mine = {(p.topic, p.partition) for p in consumer.assignment()}
                    consumer.commit(offsets=[TopicPartition(*at, offset) for at, offset in position.items() if at in mine],
                                    asynchronous=False)
                elif what == "leave":
                    consumer.close()
                self.told.put(None)
            except Exception as error:  # noqa: BLE001
                self.told.put(error)
            if what == "leave":
                return

    def ask(self, what):
        self.asked.put(what)
        error = self.told.get(timeout=LIMIT_S)
        if error:
            raise error

    def do_commit(self):
        self.ask("commit")

    def do_leave(self):
        self.ask("leave")

    # --- administration -------------------------------------------------------

    def one(self, futures):
        [future] = futures.values()
        return future.result(LIMIT_S)

    def admin_create_topic(self, topic, partitions, config):
        self.one(self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)]))

    def admin_delete_topic(self, topic):
        self.one(self.admin.delete_topics([topic]))

    def admin_list_topics(self):
        return sorted(self.admin.list_topics(timeout=LIMIT_S).topics)

    def admin_describe_topic(self, topic):
        return len(self.one(self.admin.describe_topics(TopicCollection([topic]))).partitions)

    def admin_create_partitions(self, topic, partitions):
        self.one(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def admin_get_config(self, topic, name):
        return self.one(self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))[name].value

    def admin_set_config(self, topic, name, value):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        self.one(self.admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]))

    def admin_list_offsets(self, topic, partition):
        def at(spec):
            return self.one(self.admin.list_offsets({TopicPartition(topic, partition): spec})).offset
        return [at(OffsetSpec.earliest()), at(OffsetSpec.latest())]

    def admin_delete_records(self, topic, partition, before):
        return self.one(self.admin.delete_records([TopicPartition(topic, partition, before)])).low_watermark

    def admin_describe_cluster(self):
        return len(self.admin.describe_cluster().result(LIMIT_S).nodes)

    def admin_list_groups(self):
        return sorted(g.group_id for g in self.admin.list_consumer_groups().result(LIMIT_S).valid)

    def admin_describe_group(self, group):
        found = self.one(self.admin.describe_consumer_groups([group]))
        return [found.state.name.title(), len(found.members)]

    def admin_group_offsets(self, group, topic):
        asked = ConsumerGroupTopicPartitions(group)
        found = self.one(self.admin.list_consumer_group_offsets([asked]))
        return {str(p.partition): p.offset for p in found.topic_partitions if p.topic == topic}

    def admin_set_group_offset(self, group, topic, partition, offset):
        self.one(self.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])]))

    def admin_delete_group(self, group):
        self.one(self.admin.delete_consumer_groups([group]))

    def admin_elect_leader(self, topic, partition):
        found = self.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, partition)]).result(LIMIT_S)
        [error] = found.values()
        return error.name() if error else "done"


protocol.serve(Driver(sys.argv[1]))
