//! Every bound of the Kafka side, with its unit, in one place (design §8.2).

use std::time::Duration;

/// Largest request frame by default, in bytes, without the four length bytes (Kafka's `socket.request.max.bytes`).
pub const FRAME_BYTES: usize = 100 << 20;
const _: () = assert!(
    cluster::limits::MESSAGE_BYTES < FRAME_BYTES as i64,
    "the largest batch that a topic may allow fits a request"
);
/// Elements of all arrays of one request together: ten times what a client of the largest node asks for at once. Kafka 4.4 refuses single arrays above a million.
pub const ARRAY_ELEMENTS: usize = 250_000;
/// Memory that an element is counted with while its request is carried out, in bytes: what it is decoded into, and its row of the answer.
pub const ELEMENT_BYTES: usize = 256;
/// Of requests that are read by hand those with a body up to this are not counted, in bytes; none has more than a few hundred elements.
pub const UNWEIGHED_REQUEST_BYTES: usize = 8 << 10;
/// Bytes that a request may take without a lease while it is carried out.
pub const UNLEASED_WORK_BYTES: u64 = 128 << 10;
/// Requests above this part of the class are very large: one at a time is carried out, and charged half of the class at most.
pub const SHARE_OF_WORK: u64 = 4;
/// What is gathered for an answer is leased in pieces of this many bytes, or larger ones.
pub const WORK_PIECE_BYTES: u64 = 256 << 10;
/// Tagged fields of one request together.
pub const TAGGED_FIELDS: usize = 10_000;
/// Bytes of a client id that a log line shows.
pub const CLIENT_ID_SHOWN_BYTES: usize = 64;
/// Produce requests of one connection that were read and not answered yet; of others one at a time is read.
pub const REQUESTS_IN_FLIGHT: usize = 100;
/// Their bytes, as a part of their class of memory: that of one request alone may be larger.
pub const SHARE_OF_REQUESTS: u64 = 4;
/// Bytes that are kept of what a client sends behind a request whose answer it awaits. More, which came with the request itself, is counted, for all
/// connections of a shard at most a quarter of the cache's class; who would pass that for longer than [`LEASE_PATIENCE`] is cut off.
pub const READ_AHEAD_BYTES: usize = 4 << 10;
/// Parts (buffers) that one vectored write carries at most.
pub const WRITE_PARTS: usize = 256;
/// Bytes that one vectored write carries, beyond its first part; the clock of a stalled reader restarts with every write.
pub const WRITE_BYTES: usize = 1 << 20;
/// A client that takes longer than this to take one write of [`WRITE_BYTES`] is cut off.
pub const WRITE_STALL: Duration = Duration::from_secs(120);
/// The same while others wait for the memory that answers hold.
pub const WRITE_STALL_PRESSED: Duration = Duration::from_secs(10);
/// A connection without a request for this long is closed (Kafka's `connections.max.idle.ms`).
pub const IDLE: Duration = Duration::from_secs(600);
/// A frame that has begun must have arrived whole after this long.
pub const PARTIAL_FRAME: Duration = Duration::from_secs(30);
/// How often a shard looks for connections that are past one of the deadlines above.
pub const SWEEP: Duration = Duration::from_secs(5);
/// Free space that a read from a socket starts with, in bytes; it doubles while reads fill it.
pub const READ_MIN_BYTES: usize = 4 << 10;
/// Free space that a read from a socket is given at most, in bytes.
pub const READ_MAX_BYTES: usize = 64 << 10;
/// Frames above this get a buffer of their own, in bytes.
pub const OWN_BUFFER_BYTES: usize = 64 << 10;
/// Frames above this are large: they have a class of memory of their own until they are answered, in bytes; at most half of the class for the others.
pub const LARGE_FRAME_BYTES: u64 = 4 << 20;
/// Memory that an idle connection is counted with, in bytes (measured: tests/show/spine/8).
pub const CONNECTION_BYTES: u64 = 5 << 10;
/// A large frame is leased in pieces of this many bytes, each before it is read: what its buffer grows by in memory.
pub const LARGE_LEASE_BYTES: usize = 2 << 20;
/// What is kept of a Produce request that is larger than its class of memory, so that it can be answered: all but its records, in bytes.
pub const SIFTED_BYTES: usize = 64 << 10;
/// A frame that waits this long for memory has the most incomplete one cut off.
pub const LEASE_PATIENCE: Duration = Duration::from_millis(250);
/// A frame of which nothing arrived for this long may be cut off for others that want its memory.
pub const STALLED: Duration = Duration::from_secs(1);
/// Idle read buffers that a shard keeps for its next connection with bytes.
pub const SPARE_BUFFERS: usize = 16;
/// Connections of one shard that were refused and are closed a little later.
pub const CONNECTIONS_CLOSING: usize = 1_000;
/// Lines that a shard writes in a second about connections that it closes, and as many about requests that it refuses, whoever provokes them.
pub const LINES_OF_CLIENTS: u32 = 10;
/// How often a shard says what it has kept back of them.
pub const LAST_WORD: Duration = Duration::from_secs(1);
/// Connections of one shard; fewer where the process may have few descriptors ([`engine::descriptors`]).
pub const CONNECTIONS: usize = 100_000;

/// Bytes of a batch that are checked before other tasks get a turn; also the window of the decompressors.
pub const CHECK_SLICE_BYTES: usize = 64 << 10;
/// Rows of `RecordErrors` that one partition's answer carries.
pub const RECORD_ERRORS: usize = 1_000;

/// Bytes of a Fetch answer, whatever the client asks for (Kafka's `fetch.max.bytes`); the first batch may pass it.
pub const FETCH_BYTES: usize = 55 << 20;
/// Partitions of a fetch that are looked at before other tasks get a turn: some 10 µs.
pub const FETCH_SLICE: usize = 64;
/// A long poll waits at most this long, whatever the client asks for.
pub const FETCH_WAIT: Duration = Duration::from_secs(600);
/// Partitions of all long polls of one shard's connections together: beyond that a fetch is answered with what there is.
pub const LONG_POLL_PARTITIONS: usize = 100_000;
/// Memory that a partition of a long poll is counted with, in bytes.
pub const LONG_POLL_PARTITION_BYTES: usize = 400;
/// A produce request waits at most this long for its commit, whatever the client asks for.
pub const PRODUCE_WAIT: Duration = Duration::from_secs(600);
/// How full a journal is (0 to 1) above which answers to producers are held back, and how long they are when it is full (L6).
pub const SLOW_ABOVE_PRESSURE: f32 = 0.5;
pub const SLOWEST_ANSWER: Duration = Duration::from_millis(50);
/// Bytes of the log's memory that an answer may hold without a lease.
pub const UNLEASED_FETCH_BYTES: usize = 16 << 10;
/// Bytes besides records that a Fetch answer may take without a lease: those of some ten thousand partitions.
pub const UNLEASED_PARTITIONS_BYTES: usize = 1 << 20;
/// Bytes of any other answer that need no lease.
pub const UNLEASED_ANSWER_BYTES: usize = 16 << 10;
/// Answers above this part of their class of memory are very large: one at a time is made and written, and charged half of the class at most.
pub const SHARE_OF_ANSWERS: u64 = 4;
/// Bytes of an answer, at most: what would be larger is a defect of ours.
pub const ANSWER_BYTES: usize = 1 << 30;
/// A fetch waits this long for memory, then it is answered with nothing; the shorter time when it touches several shards, because it may hold memory of one while it
/// waits for that of another.
pub const FETCH_MEMORY_WAIT: Duration = Duration::from_secs(10);
pub const FETCH_MEMORY_WAIT_OF_SEVERAL: Duration = Duration::from_millis(500);
/// A fetch at another shard is given up this long after its time is up.
pub const FETCH_ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Waits for the metadata group (create, delete, alter, producer ids) end after this, unless the client asks for less.
pub const CONTROLLER_WAIT: Duration = Duration::from_secs(30);
/// Producer ids that a shard takes from the metadata group at a time.
pub const PRODUCER_ID_BLOCK: u32 = 1_000;
/// Topics that one CreateTopics request may have: of each it tells every setting. Kafka takes as many partitions at a time.
pub const CREATED_TOPICS: usize = 10_000;
/// Topics that one Metadata request may create, and a shard for all of them at a time.
pub const AUTO_CREATE_TOPICS: usize = 100;
/// Bytes of a topic name.
pub const TOPIC_NAME_BYTES: usize = 249;
/// Partitions of one DescribeTopicPartitions answer (Kafka's `max.request.partition.size.limit`).
pub const DESCRIBED_PARTITIONS: usize = 2_000;
/// A fetch session that wasn't used for this long makes room for others, and so may one that is older than this (Kafka's `min.incremental.fetch.session.eviction.ms`).
pub const SESSION_KEPT: Duration = Duration::from_secs(120);
/// Partitions of all fetch sessions of one shard together.
pub const SESSION_PARTITIONS: usize = 100_000;
/// Memory that a partition of a fetch session is counted with, in bytes.
pub const SESSION_PARTITION_BYTES: usize = 256;
/// Bytes of a push of a client's metrics, compressed or not (Kafka's `telemetry.max.bytes`).
pub const TELEMETRY_BYTES: usize = 1 << 20;
/// Producers of one shard in a DescribeProducers answer; the last partition may pass it by what a partition remembers.
pub const DESCRIBED_PRODUCERS: usize = 100_000;
/// What is kept of a partition, of a topic and of a client's limits while all of them are gathered for an answer, in bytes.
pub const GATHERED_PARTITION_BYTES: usize = 100;
pub const GATHERED_TOPIC_BYTES: usize = 200;
pub const GATHERED_QUOTA_BYTES: usize = 500;
/// What a partition of a DescribeTopicPartitions answer takes while it is made, and the settings of a topic in that of CreateTopics, in bytes.
pub const DESCRIBED_PARTITION_BYTES: usize = 400;
pub const CREATED_TOPIC_BYTES: usize = 6 << 10;
/// What a producer takes in such an answer while it is made, in bytes.
pub const PRODUCER_BYTES: usize = 150;
/// Bytes of a DescribeConfigs answer; the last resource may pass it.
pub const DESCRIBED_CONFIGS_BYTES: usize = 64 << 20;
/// Bytes of members, or of offsets, in one answer about groups; the last group may pass it.
pub const DESCRIBED_GROUPS_BYTES: usize = 32 << 20;
/// Coordinators that are asked at a time for one request.
pub const COORDINATORS_AT_A_TIME: usize = 64;
/// Partitions of `__consumer_offsets` whose groups are listed at a time for one request.
pub const LISTED_AT_A_TIME: usize = 8;
/// What a group takes in the answer to ListGroups while it is made, besides its names, in bytes.
pub const LISTED_GROUP_BYTES: usize = 250;
/// Offsets of one commit: a batch of a coordinator holds some ten thousand.
pub const COMMITTED_OFFSETS: usize = 50_000;
/// Protocols of one member.
pub const MEMBER_PROTOCOLS: usize = 1_000;
/// What a member, or an offset, takes in such an answer while it is made, besides its metadata, in bytes.
pub const MEMBER_BYTES: usize = 300;
pub const OFFSET_BYTES: usize = 150;
/// Members of one group, and those who were given an id and have not come back with it.
pub const GROUP_MEMBERS: usize = cluster::broker_config::GroupConfig::MEMBERS as usize;
/// Bytes that one group's members and offsets may take before it takes no new members.
pub const GROUP_BYTES: usize = 64 << 20;
/// Groups of one partition of `__consumer_offsets`.
pub const GROUPS: usize = 100_000;
/// Records of a coordinator's write above this are compressed, in bytes.
pub const GROUP_COMPRESS_BYTES: usize = 256 << 10;
/// A stored batch of a coordinator when it is decompressed, in bytes.
pub const GROUP_BATCH_BYTES: usize = 64 << 20;
/// Bytes of a partition of `__consumer_offsets` that one step of its loading reads.
pub const GROUP_LOAD_BYTES: usize = 256 << 10;
/// A partition of `__consumer_offsets` that could not be loaded is tried again after this.
pub const GROUP_LOAD_AGAIN: Duration = Duration::from_secs(10);
/// Records that are taken over at a start before other tasks get a turn.
pub const GROUP_LOAD_SLICE: usize = 200;
/// A partition of `__consumer_offsets` below this is left as it is, in bytes.
pub const GROUP_REWRITE_BYTES: u64 = 8 << 20;
/// Records in one batch when groups are written anew.
pub const GROUP_REWRITE_RECORDS: usize = 1_000;
/// A question to a coordinator is given up after this, unless it waits for other members.
pub const COORDINATOR_WAIT: Duration = Duration::from_secs(30);
/// How often a shard looks which partitions of `__consumer_offsets` it leads.
pub const COORDINATOR_LOOK: Duration = Duration::from_secs(1);
/// How often offsets that are too old are removed (Kafka's `offsets.retention.check.interval.ms`).
pub const OFFSETS_RETENTION_CHECK: Duration = Duration::from_secs(600);
/// Bytes of a group's id, and of each name that a member brings: what a record's length field holds, with room for what is put behind it.
pub const GROUP_NAME_BYTES: usize = 32_000;
/// Memory of the windows of clients with quotas of which a shard keeps count, in bytes; and the part of what it has for all that it may keep, if that is less.
pub const QUOTA_BYTES: u64 = 8 << 20;
pub const QUOTA_PART_OF_CACHE: u64 = 16;
/// How many of them are looked at for idle ones at a time, and how often when there is no room, in milliseconds.
pub const QUOTA_SWEEP: usize = 1_000;
pub const QUOTA_SWEEP_MS: u64 = 1_000;
/// Entities of one AlterClientQuotas request.
pub const QUOTA_CHANGES: usize = 10_000;
/// Bytes of a client's id that its member's id begins with.
pub const MEMBER_PREFIX_BYTES: usize = 255;
