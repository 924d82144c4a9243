//! A walk over a request before `kafka-protocol` decodes it.
//!
//! The library reserves memory for as many elements as an array announces, and collects any number of tagged fields. So each request
//! that it decodes is first walked by its schema with a [`Reader`], which bounds both; only what passes is decoded. The walk also says how many elements there are, for which memory is taken before
//! they are decoded ([`crate::handlers::work`]): so Produce, Fetch, OffsetCommit and OffsetFetch, which are read by hand ([`is_by_hand`]), are here as well.

use kafka_protocol::protocol::Decodable;

use crate::error::Malformed;
use crate::frame::Request;
use crate::versions::ApiKey;
use crate::wire::Reader;

/// A field and the versions that have it.
struct Field {
    from: i16,
    to: i16,
    kind: Kind,
}

enum Kind {
    /// That many bytes.
    Fixed(usize),
    /// A string, nullable or not.
    Str,
    /// An array of structures, nullable or not.
    Array(&'static [Field]),
    /// An array of values of that many bytes each.
    FixedArray(usize),
    /// An array of strings.
    StrArray,
    /// Bytes, nullable or not.
    Blob,
    /// A structure behind a byte that says whether it is there.
    Maybe(&'static [Field]),
}

const fn all(kind: Kind) -> Field {
    since(0, kind)
}

const fn since(from: i16, kind: Kind) -> Field {
    Field {
        from,
        to: i16::MAX,
        kind,
    }
}

const fn between(from: i16, to: i16, kind: Kind) -> Field {
    Field { from, to, kind }
}

use Kind::{Array, Blob, Fixed, FixedArray, Maybe, Str, StrArray};

const PRODUCE: &[Field] = &[
    all(Str),
    all(Fixed(2)),
    all(Fixed(4)),
    all(Array(&[
        between(0, 12, Str),
        since(13, Fixed(16)),
        all(Array(&[all(Fixed(4)), all(Blob)])),
    ])),
];

const FETCH: &[Field] = &[
    between(0, 14, Fixed(4)),
    all(Fixed(4 + 4 + 4 + 1)),
    since(7, Fixed(8)),
    all(Array(&[
        between(0, 12, Str),
        since(13, Fixed(16)),
        all(Array(&[
            all(Fixed(4)),
            since(9, Fixed(4)),
            all(Fixed(8)),
            since(12, Fixed(4)),
            since(5, Fixed(8)),
            all(Fixed(4)),
        ])),
    ])),
    since(
        7,
        Array(&[
            between(0, 12, Str),
            since(13, Fixed(16)),
            all(FixedArray(4)),
        ]),
    ),
    since(11, Str),
];

const OFFSET_COMMIT: &[Field] = &[
    all(Str),
    all(Fixed(4)),
    all(Str),
    since(7, Str),
    between(2, 4, Fixed(8)),
    all(Array(&[
        between(0, 9, Str),
        since(10, Fixed(16)),
        all(Array(&[
            all(Fixed(4)),
            all(Fixed(8)),
            since(6, Fixed(4)),
            all(Str),
        ])),
    ])),
];

const OFFSET_FETCH: &[Field] = &[
    between(0, 7, Str),
    between(0, 7, Array(&[all(Str), all(FixedArray(4))])),
    since(
        8,
        Array(&[
            all(Str),
            since(9, Str),
            since(9, Fixed(4)),
            all(Array(&[
                between(0, 9, Str),
                since(10, Fixed(16)),
                all(FixedArray(4)),
            ])),
        ]),
    ),
    since(7, Fixed(1)),
];

const LIST_OFFSETS: &[Field] = &[
    all(Fixed(4)),
    since(2, Fixed(1)),
    all(Array(&[
        all(Str),
        all(Array(&[all(Fixed(4)), since(4, Fixed(4)), all(Fixed(8))])),
    ])),
    since(10, Fixed(4)),
];

const METADATA: &[Field] = &[
    all(Array(&[since(10, Fixed(16)), all(Str)])),
    since(4, Fixed(1)),
    between(8, 10, Fixed(1)),
    since(8, Fixed(1)),
];

const API_VERSIONS: &[Field] = &[
    since(3, Str),
    since(3, Str),
    since(5, Str),
    since(5, Fixed(4)),
];

const CREATE_TOPICS: &[Field] = &[
    all(Array(&[
        all(Str),
        all(Fixed(4)),
        all(Fixed(2)),
        all(Array(&[all(Fixed(4)), all(FixedArray(4))])),
        all(Array(&[all(Str), all(Str)])),
    ])),
    all(Fixed(4)),
    all(Fixed(1)),
];

const DELETE_TOPICS: &[Field] = &[
    since(6, Array(&[all(Str), all(Fixed(16))])),
    between(0, 5, StrArray),
    all(Fixed(4)),
];

const INIT_PRODUCER_ID: &[Field] = &[
    all(Str),
    all(Fixed(4)),
    since(3, Fixed(8)),
    since(3, Fixed(2)),
];

const OFFSET_FOR_LEADER_EPOCH: &[Field] = &[
    since(3, Fixed(4)),
    all(Array(&[
        all(Str),
        all(Array(&[all(Fixed(4)), all(Fixed(4)), all(Fixed(4))])),
    ])),
];

const DESCRIBE_CONFIGS: &[Field] = &[
    all(Array(&[all(Fixed(1)), all(Str), all(StrArray)])),
    all(Fixed(1)),
    since(3, Fixed(1)),
];

const INCREMENTAL_ALTER_CONFIGS: &[Field] = &[
    all(Array(&[
        all(Fixed(1)),
        all(Str),
        all(Array(&[all(Str), all(Fixed(1)), all(Str)])),
    ])),
    all(Fixed(1)),
];

const ALTER_CONFIGS: &[Field] = &[
    all(Array(&[
        all(Fixed(1)),
        all(Str),
        all(Array(&[all(Str), all(Str)])),
    ])),
    all(Fixed(1)),
];

const DESCRIBE_LOG_DIRS: &[Field] = &[all(Array(&[all(Str), all(FixedArray(4))]))];

const ELECT_LEADERS: &[Field] = &[
    since(1, Fixed(1)),
    all(Array(&[all(Str), all(FixedArray(4))])),
    all(Fixed(4)),
];

const DESCRIBE_PRODUCERS: &[Field] = &[all(Array(&[all(Str), all(FixedArray(4))]))];

const GET_TELEMETRY_SUBSCRIPTIONS: &[Field] = &[all(Fixed(16))];

const PUSH_TELEMETRY: &[Field] = &[
    all(Fixed(16)),
    all(Fixed(4)),
    all(Fixed(1)),
    all(Fixed(1)),
    all(Blob),
];

const DELETE_RECORDS: &[Field] = &[
    all(Array(&[
        all(Str),
        all(Array(&[all(Fixed(4)), all(Fixed(8))])),
    ])),
    all(Fixed(4)),
];

const CREATE_PARTITIONS: &[Field] = &[
    all(Array(&[
        all(Str),
        all(Fixed(4)),
        all(Array(&[all(FixedArray(4))])),
    ])),
    all(Fixed(4)),
    all(Fixed(1)),
];

const DESCRIBE_CLUSTER: &[Field] = &[all(Fixed(1)), since(1, Fixed(1)), since(2, Fixed(1))];

const DESCRIBE_TOPIC_PARTITIONS: &[Field] = &[
    all(Array(&[all(Str)])),
    all(Fixed(4)),
    all(Maybe(&[all(Str), all(Fixed(4))])),
];

const FIND_COORDINATOR: &[Field] = &[between(0, 3, Str), since(1, Fixed(1)), since(4, StrArray)];

const JOIN_GROUP: &[Field] = &[
    all(Str),
    all(Fixed(4)),
    since(1, Fixed(4)),
    all(Str),
    since(5, Str),
    all(Str),
    all(Array(&[all(Str), all(Blob)])),
    since(8, Str),
];

const HEARTBEAT: &[Field] = &[all(Str), all(Fixed(4)), all(Str), since(3, Str)];

const LEAVE_GROUP: &[Field] = &[
    all(Str),
    between(0, 2, Str),
    since(3, Array(&[all(Str), all(Str), since(5, Str)])),
];

const SYNC_GROUP: &[Field] = &[
    all(Str),
    all(Fixed(4)),
    all(Str),
    since(3, Str),
    since(5, Str),
    since(5, Str),
    all(Array(&[all(Str), all(Blob)])),
];

const DESCRIBE_GROUPS: &[Field] = &[all(StrArray), since(3, Fixed(1))];

const LIST_GROUPS: &[Field] = &[since(4, StrArray), since(5, StrArray)];

const DELETE_GROUPS: &[Field] = &[all(StrArray)];

const OFFSET_DELETE: &[Field] = &[
    all(Str),
    all(Array(&[all(Str), all(Array(&[all(Fixed(4))]))])),
];

const DESCRIBE_CLIENT_QUOTAS: &[Field] = &[
    all(Array(&[all(Str), all(Fixed(1)), all(Str)])),
    all(Fixed(1)),
];

const ALTER_CLIENT_QUOTAS: &[Field] = &[
    all(Array(&[
        all(Array(&[all(Str), all(Str)])),
        all(Array(&[all(Str), all(Fixed(8)), all(Fixed(1))])),
    ])),
    all(Fixed(1)),
];

const ALTER_REPLICA_LOG_DIRS: &[Field] = &[all(Array(&[
    all(Str),
    all(Array(&[all(Str), all(FixedArray(4))])),
]))];

const LIST_CONFIG_RESOURCES: &[Field] = &[since(1, FixedArray(1))];

fn schema(key: ApiKey) -> &'static [Field] {
    match key {
        ApiKey::ListOffsets => LIST_OFFSETS,
        ApiKey::Metadata => METADATA,
        ApiKey::ApiVersions => API_VERSIONS,
        ApiKey::CreateTopics => CREATE_TOPICS,
        ApiKey::DeleteTopics => DELETE_TOPICS,
        ApiKey::InitProducerId => INIT_PRODUCER_ID,
        ApiKey::OffsetForLeaderEpoch => OFFSET_FOR_LEADER_EPOCH,
        ApiKey::DescribeConfigs => DESCRIBE_CONFIGS,
        ApiKey::IncrementalAlterConfigs => INCREMENTAL_ALTER_CONFIGS,
        ApiKey::AlterConfigs => ALTER_CONFIGS,
        ApiKey::AlterReplicaLogDirs => ALTER_REPLICA_LOG_DIRS,
        ApiKey::ListConfigResources => LIST_CONFIG_RESOURCES,
        ApiKey::DescribeLogDirs => DESCRIBE_LOG_DIRS,
        ApiKey::ElectLeaders => ELECT_LEADERS,
        ApiKey::DescribeProducers => DESCRIBE_PRODUCERS,
        ApiKey::GetTelemetrySubscriptions => GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey::PushTelemetry => PUSH_TELEMETRY,
        ApiKey::DeleteRecords => DELETE_RECORDS,
        ApiKey::CreatePartitions => CREATE_PARTITIONS,
        ApiKey::DescribeCluster => DESCRIBE_CLUSTER,
        ApiKey::DescribeTopicPartitions => DESCRIBE_TOPIC_PARTITIONS,
        ApiKey::FindCoordinator => FIND_COORDINATOR,
        ApiKey::JoinGroup => JOIN_GROUP,
        ApiKey::Heartbeat => HEARTBEAT,
        ApiKey::LeaveGroup => LEAVE_GROUP,
        ApiKey::SyncGroup => SYNC_GROUP,
        ApiKey::DescribeGroups => DESCRIBE_GROUPS,
        ApiKey::ListGroups => LIST_GROUPS,
        ApiKey::DeleteGroups => DELETE_GROUPS,
        ApiKey::OffsetDelete => OFFSET_DELETE,
        ApiKey::DescribeClientQuotas => DESCRIBE_CLIENT_QUOTAS,
        ApiKey::AlterClientQuotas => ALTER_CLIENT_QUOTAS,
        ApiKey::Produce => PRODUCE,
        ApiKey::Fetch => FETCH,
        ApiKey::OffsetCommit => OFFSET_COMMIT,
        ApiKey::OffsetFetch => OFFSET_FETCH,
    }
}

/// Whether the library has no part in reading it.
pub fn is_by_hand(key: ApiKey) -> bool {
    matches!(
        key,
        ApiKey::Produce | ApiKey::Fetch | ApiKey::OffsetCommit | ApiKey::OffsetFetch
    )
}

/// Fewest bytes that a structure takes.
fn smallest(fields: &[Field], version: i16, flexible: bool) -> usize {
    let mut bytes = usize::from(flexible);
    for field in fields {
        if !(field.from..=field.to).contains(&version) {
            continue;
        }
        bytes += match field.kind {
            Fixed(n) => n,
            Maybe(_) => 1,
            _ if flexible => 1,
            Str => 2,
            _ => 4,
        };
    }
    bytes
}

fn walk(r: &mut Reader, fields: &[Field], version: i16, flexible: bool) -> Result<(), Malformed> {
    for field in fields {
        if !(field.from..=field.to).contains(&version) {
            continue;
        }
        match field.kind {
            Fixed(n) => r.skip(n)?,
            Str => r.skip_string(flexible)?,
            Array(fields) => {
                let smallest = smallest(fields, version, flexible);
                for _ in 0..r.nullable_array(flexible, smallest)?.unwrap_or(0) {
                    walk(r, fields, version, flexible)?;
                }
            }
            FixedArray(n) => {
                let count = r.nullable_array(flexible, n)?.unwrap_or(0);
                r.skip(count * n)?;
            }
            StrArray => {
                let smallest = if flexible { 1 } else { 2 };
                for _ in 0..r.nullable_array(flexible, smallest)?.unwrap_or(0) {
                    r.skip_string(flexible)?;
                }
            }
            Blob => r.skip_bytes(flexible)?,
            Maybe(fields) => match r.i8()? {
                -1 => {}
                1 => walk(r, fields, version, flexible)?,
                _ => return Err(Malformed::Schema),
            },
        }
    }
    r.skip_tags(flexible)
}

/// Walks the body of `request`; gives the number of array elements in it.
pub fn check(request: &Request) -> Result<usize, Malformed> {
    let mut r = request.body.clone();
    walk(
        &mut r,
        schema(request.api.key),
        request.version,
        request.flexible(),
    )?;
    Ok(r.elements_seen())
}

/// Decodes the body of `request`, and checks it before unless that was done, in the schema of `version`, which is the request's own unless that is one that
/// `kafka-protocol` doesn't know.
pub fn decode<T: Decodable>(request: &Request, version: i16) -> Result<T, Malformed> {
    if !request.checked {
        check(request)?;
    }
    T::decode(&mut request.body.rest(), version).map_err(|_| Malformed::Schema)
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
