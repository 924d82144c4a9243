'use strict';
// The driver of kafkajs. It brings gzip; the other codecs are packages that are plugged in, as its documentation says.

const readline = require('node:readline');
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require('kafkajs');
const SnappyCodec = require('kafkajs-snappy');
const lz4 = require('lz4-napi');
const { ZstdCodec } = require('zstd-codec');

const LIMIT_MS = 60000;
const kafka = new Kafka({
  brokers: [process.argv[2]],
  logLevel: logLevel.ERROR,
  logCreator: () => ({ log }) => process.stderr.write(`${log.message} ${log.error || ''}\n`),
  retry: { initialRetryTime: 200, maxRetryTime: 2000, retries: 20 },
});

const zstd = new Promise((resolve) => ZstdCodec.run((binding) => resolve(new binding.Streaming())));
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from((await zstd).decompress(buffer)),
});
const CODECS = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD,
};

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const bytes = (text) => (text === null ? null : Buffer.from(text, 'base64'));
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'));

// What is waited for, within a bound.
function within(what, work) {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`not in time: ${what}`)), LIMIT_MS); });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

async function produce({ topic, partition, codec, records }) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  try {
    // One send is one batch, which must not be larger than a broker takes.
    for (let from = 0; from < records.length; from += 200) {
      const messages = records.slice(from, from + 200).map((r) => {
        const headers = {};
        for (const [name, data] of r.h) {
          const value = bytes(data);
          headers[name] = name in headers ? [].concat(headers[name], [value]) : value;
        }
        return { key: bytes(r.k), value: bytes(r.v), partition, timestamp: String(r.t), headers };
      });
      await producer.send({ topic, acks: -1, compression: CODECS[codec], messages });
    }
  } finally {
    await producer.disconnect();
  }
  return {};
}

function consumer(groupId, more = {}) {
  return kafka.consumer({ groupId, maxWaitTimeInMs: 200, heartbeatInterval: 500, maxBytesPerPartition: 16 << 20, ...more });
}

// Hands out messages as they are asked for: `take(count, from)` are those from an offset on, one after the other.
class Taken {
  constructor() { this.want = null; }

  take(count, from) {
    return within(`${count} records`, new Promise((resolve) => {
      this.want = { count, next: BigInt(from), found: [], resolve };
    }));
  }

  give(message) {
    const { want } = this;
    // What was on its way when another place was sought is passed over.
    if (!want || BigInt(message.offset) !== want.next) return;
    want.next += 1n;
    want.found.push(message);
    if (want.found.length === want.count) {
      this.want = null;
      want.resolve(want.found);
    }
  }
}

let readers = 0;

// It can't read but in a group, so that each reading has a group of its own.
async function read({ topic, partition, count, offset, time_ms: timeMs }) {
  let start = offset;
  if (timeMs !== undefined && timeMs !== null) {
    start = await withAdmin(async (admin) => {
      const found = await admin.fetchTopicOffsetsByTimestamp(topic, timeMs);
      return found.find((one) => one.partition === partition).offset;
    });
  }
  readers += 1;
  const reader = consumer(`reader-${process.pid}-${readers}`);
  const taken = new Taken();
  await reader.connect();
  try {
    await reader.subscribe({ topic, fromBeginning: true });
    await reader.run({ autoCommit: false, eachMessage: async ({ message }) => taken.give(message) });
    const found = taken.take(count, start);
    reader.seek({ topic, partition, offset: String(start) });
    for (const m of await found) {
      const headers = Object.entries(m.headers || {}).flatMap(([name, data]) => (
        Array.isArray(data) ? data.map((one) => [name, text(one)]) : [[name, text(data)]]));
      say({ record: { o: Number(m.offset), p: partition, k: text(m.key), v: text(m.value), t: Number(m.timestamp), h: headers } });
    }
  } finally {
    await reader.disconnect();
  }
  return {};
}

async function replay({ topic, group, count }) {
  const reader = consumer(group);
  const taken = new Taken();
  await reader.connect();
  try {
    await reader.subscribe({ topic, fromBeginning: true });
    let found = taken.take(count, 0);
    await reader.run({ autoCommit: false, eachMessage: async ({ message }) => taken.give(message) });
    const first = (await found).map((m) => Number(m.offset));
    await reader.commitOffsets([{ topic, partition: 0, offset: String(count) }]);
    found = taken.take(count, 0);
    reader.seek({ topic, partition: 0, offset: '0' });
    const second = (await found).map((m) => Number(m.offset));
    return { first, second };
  } finally {
    await reader.disconnect();
  }
}

const me = {};

async function member({ topic, group, session_ms: sessionTimeout, instance }) {
  if (instance) throw new Error('unsupported');
  Object.assign(me, { topic, position: new Map(), owned: [], consumer: consumer(group, { sessionTimeout, rebalanceTimeout: 20000 }) });
  me.consumer.on(me.consumer.events.GROUP_JOIN, ({ payload }) => {
    me.owned = (payload.memberAssignment[topic] || []).slice().sort((a, b) => a - b);
    say({ assigned: me.owned });
  });
  await me.consumer.connect();
  await me.consumer.subscribe({ topic, fromBeginning: true });
  me.consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      me.position.set(partition, BigInt(message.offset) + 1n);
      say({ got: [partition, Number(message.offset)] });
    },
  }).catch((error) => process.stderr.write(`run: ${error}\n`));
  return {};
}

async function commit() {
  const offsets = [...me.position].filter(([partition]) => me.owned.includes(partition))
    .map(([partition, offset]) => ({ topic: me.topic, partition, offset: String(offset) }));
  if (offsets.length) await me.consumer.commitOffsets(offsets);
  return {};
}

async function leave() {
  await me.consumer.disconnect();
  return {};
}

async function withAdmin(work) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await work(admin);
  } finally {
    await admin.disconnect();
  }
}

const ADMIN = {
  create_topic: (admin, { topic, partitions, config }) => admin.createTopics({
    waitForLeaders: false,
    topics: [{
      topic, numPartitions: partitions, replicationFactor: 1, configEntries: Object.entries(config).map(([name, value]) => ({ name, value })),
    }],
  }),
  delete_topic: (admin, { topic }) => admin.deleteTopics({ topics: [topic] }),
  list_topics: (admin) => admin.listTopics(),
  describe_topic: async (admin, { topic }) => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length,
  create_partitions: (admin, { topic, partitions }) => admin.createPartitions({ topicPartitions: [{ topic, count: partitions }] }),
  get_config: async (admin, { topic, name }) => {
    const found = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: [name] }] });
    return found.resources[0].configEntries[0].configValue;
  },
  set_config: (admin, { topic, name, value }) => admin.alterConfigs({
    validateOnly: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name, value }] }],
  }),
  list_offsets: async (admin, { topic, partition }) => {
    const found = (await admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition);
    return [Number(found.low), Number(found.high)];
  },
  delete_records: async (admin, { topic, partition, before }) => {
    // Without this it doesn't know the topic's leaders.
    await admin.fetchTopicOffsets(topic);
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] });
    return null;
  },
  describe_cluster: async (admin) => (await admin.describeCluster()).brokers.length,
  list_groups: async (admin) => (await admin.listGroups()).groups.map((one) => one.groupId),
  describe_group: async (admin, { group }) => {
    const [found] = (await admin.describeGroups([group])).groups;
    return [found.state, found.members.length];
  },
  group_offsets: async (admin, { group, topic }) => {
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
    return Object.fromEntries(found.partitions.map((one) => [one.partition, Number(one.offset)]));
  },
  set_group_offset: (admin, { group, topic, partition, offset }) => admin.setOffsets({
    groupId: group, topic, partitions: [{ partition, offset: String(offset) }],
  }),
  delete_group: (admin, { group }) => admin.deleteGroups([group]),
};

async function administer(command) {
  const call = ADMIN[command.call];
  if (!call) throw new Error('unsupported');
  const answer = await withAdmin((admin) => call(admin, command));
  return { answer: answer === undefined ? null : answer };
}

const COMMANDS = {
  hello: async () => ({ version: require('kafkajs/package.json').version, admin: Object.keys(ADMIN).sort() }),
  produce, read, replay, member, commit, leave, admin: administer,
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    const command = JSON.parse(line);
    try {
      say({ done: command.do, ...await COMMANDS[command.do](command) });
    } catch (error) {
      say({ error: error.message === 'unsupported' ? 'unsupported' : `${error.name}: ${error.message}` });
    }
  }
  process.exit(0);
}

main();
