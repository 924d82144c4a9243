"""The driver of aiokafka."""

import asyncio
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import aiokafka  # noqa: E402
import protocol  # noqa: E402
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # noqa: E402
from aiokafka.abc import ConsumerRebalanceListener  # noqa: E402
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete  # noqa: E402
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType  # noqa: E402

LIMIT_S = 60


class Listener(ConsumerRebalanceListener):
    async def on_partitions_revoked(self, revoked):
        pass

    async def on_partitions_assigned(self, assigned):
        protocol.say(assigned=sorted(p.partition for p in assigned))


class Driver:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(LIMIT_S + 10)

    def do_hello(self):
        return {"version": aiokafka.__version__, "admin": protocol.admin_calls(self)}

    def do_produce(self, topic, partition, codec, records):
        async def produce():
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=100, enable_idempotence=True,
                                        max_request_size=8 << 20, max_batch_size=1 << 19,
                                        compression_type=None if codec == "none" else codec) as producer:
                sent = [await producer.send(topic, protocol.bytes_of(r["v"]), protocol.bytes_of(r["k"]), partition, r["t"],
                                            [(name, protocol.bytes_of(data)) for name, data in r["h"]]) for r in records]
                return [(await one).offset for one in sent]
        return {"offsets": self.wait(produce())}

    def consumer(self, *topics, group=None, **more):
        return AIOKafkaConsumer(*topics, bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False,
                                auto_offset_reset="earliest", **more)

    async def take(self, consumer, count):
        taken = []

        async def all_of_them():
            while len(taken) < count:
                for some in (await consumer.getmany(timeout_ms=200)).values():
                    taken.extend(some)
        try:
            await asyncio.wait_for(all_of_them(), LIMIT_S)
        except TimeoutError:
            raise RuntimeError(f"{len(taken)} of {count} records came") from None
        return taken[:count]

    def do_read(self, topic, partition, count, offset=None, time_ms=None):
        async def read():
            async with self.consumer() as consumer:
                at = TopicPartition(topic, partition)
                consumer.assign([at])
                start = offset
                if time_ms is not None:
                    start = (await consumer.offsets_for_times({at: time_ms}))[at].offset
                consumer.seek(at, start)
                return await self.take(consumer, count)
        for m in self.wait(read()):
            protocol.record(m.offset, m.key, m.value, m.headers, m.timestamp)

    def do_replay(self, topic, group, count):
        async def replay():
            async with self.consumer(topic, group=group) as consumer:
                first = await self.take(consumer, count)
                await consumer.commit()
                consumer.seek(TopicPartition(topic, 0), 0)
                second = await self.take(consumer, count)
                return {"first": [m.offset for m in first], "second": [m.offset for m in second]}
        return self.wait(replay())

    def do_member(self, topic, group, session_ms, instance=None):
        async def begin():
            self.member = self.consumer(group=group, group_instance_id=instance, session_timeout_ms=session_ms,
                                        heartbeat_interval_ms=500)
            self.member.subscribe([topic], listener=Listener())
            await self.member.start()
            self.reading = asyncio.create_task(self.read())
        self.wait(begin())

    async def read(self):
        while True:
            try:
                for some in (await self.member.getmany(timeout_ms=100)).values():
                    for m in some:
                        protocol.say(got=[m.partition, m.offset])
            except aiokafka.errors.KafkaError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.2)

    def do_commit(self):
        self.wait(self.member.commit())

    def do_leave(self):
        async def leave():
            self.reading.cancel()
            await self.member.stop()
        self.wait(leave())

    # --- administration -------------------------------------------------------

    def admin(self, work):
        async def call():
            client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await client.start()
            try:
                return await work(client)
            finally:
                await client.close()
        return self.wait(call())

    @staticmethod
    def good(answer):
        """An answer that tells of no error; aiokafka gives answers as they came."""
        for field in ("topic_errors", "topic_error_codes", "topic_partition_errors", "resources", "results"):
            for row in getattr(answer, field, ()):
                code = next((value for value in row if isinstance(value, int)), 0)
                if code:
                    raise RuntimeError(f"error {code}: {row}")
        return answer

    def admin_create_topic(self, topic, partitions, config):
        async def work(client):
            self.good(await client.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)]))
        self.admin(work)

    def admin_delete_topic(self, topic):
        async def work(client):
            self.good(await client.delete_topics([topic]))
        self.admin(work)

    def admin_list_topics(self):
        async def work(client):
            return sorted(await client.list_topics())
        return self.admin(work)

    def admin_describe_topic(self, topic):
        async def work(client):
            [found] = await client.describe_topics([topic])
            return len(found["partitions"])
        return self.admin(work)

    def admin_create_partitions(self, topic, partitions):
        async def work(client):
            self.good(await client.create_partitions({topic: NewPartitions(partitions)}))
        self.admin(work)

    def admin_get_config(self, topic, name):
        async def work(client):
            [answer] = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            [row] = answer.resources
            return {entry[0]: entry[1] for entry in row[4]}[name]
        return self.admin(work)

    def admin_set_config(self, topic, name, value):
        async def work(client):
            for answer in await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})]):
                self.good(answer)
        self.admin(work)

    def admin_delete_records(self, topic, partition, before):
        async def work(client):
            at = TopicPartition(topic, partition)
            return (await client.delete_records({at: RecordsToDelete(before)}))[at]
        return self.admin(work)

    def admin_describe_cluster(self):
        async def work(client):
            return len((await client.describe_cluster())["brokers"])
        return self.admin(work)

    def admin_list_groups(self):
        async def work(client):
            return sorted(row[0] for row in await client.list_consumer_groups())
        return self.admin(work)

    def admin_describe_group(self, group):
        async def work(client):
            [answer] = await client.describe_consumer_groups([group])
            [row] = answer.groups
            return [row[2], len(row[5])]
        return self.admin(work)

    def admin_group_offsets(self, group, topic):
        async def work(client):
            found = await client.list_consumer_group_offsets(group)
            return {str(at.partition): value.offset for at, value in found.items() if at.topic == topic}
        return self.admin(work)

    def admin_list_offsets(self, topic, partition):
        """Its consumer's: the admin client has none."""
        async def work():
            async with self.consumer() as consumer:
                at = TopicPartition(topic, partition)
                return [(await consumer.beginning_offsets([at]))[at], (await consumer.end_offsets([at]))[at]]
        return self.wait(work())


protocol.serve(Driver(sys.argv[1]))
