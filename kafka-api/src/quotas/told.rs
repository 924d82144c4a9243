//! Where an answer has its throttle time. Handlers leave it 0; it is known when the answer is made, and written into its bytes then. Produce is written by hand and has it behind its topics.

use bytes::{BufMut, Bytes, BytesMut};

use crate::frame::Request;
use crate::versions::ApiKey;
use crate::wire::Reader;

/// Writes the throttle time into an encoded answer, if its version has one. What is behind it stays the memory that it is.
pub fn tell(request: &Request, pieces: &mut Vec<Bytes>, throttle_ms: u32) {
    let Some(first) = pieces.first_mut() else {
        return;
    };
    let header = 8 + usize::from(request.api.tagged_response_header(request.version));
    let place = first
        .get(header..)
        .and_then(|body| place(request.api.key, request.version, body));
    let Some(at) = place.map(|p| header + p).filter(|p| p + 4 <= first.len()) else {
        return;
    };
    let behind = first.slice(at + 4..);
    let mut told = BytesMut::with_capacity(at + 4);
    told.put_slice(&first[..at]);
    told.put_i32(i32::try_from(throttle_ms).unwrap_or(i32::MAX));
    *first = told.freeze();
    pieces.insert(1, behind);
}

/// Where in the body.
fn place(key: ApiKey, version: i16, body: &[u8]) -> Option<usize> {
    let since = match key {
        ApiKey::Produce => return None,
        ApiKey::ApiVersions if version < 1 => return None,
        ApiKey::ApiVersions => return behind_the_keys(version, body),
        // Behind the error.
        ApiKey::OffsetDelete => return Some(2),
        ApiKey::Metadata | ApiKey::OffsetCommit | ApiKey::OffsetFetch => 3,
        ApiKey::ListOffsets | ApiKey::JoinGroup | ApiKey::OffsetForLeaderEpoch => 2,
        ApiKey::FindCoordinator
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::SyncGroup
        | ApiKey::DescribeGroups
        | ApiKey::ListGroups => 1,
        _ => 0,
    };
    (version >= since).then_some(0)
}

fn behind_the_keys(version: i16, body: &[u8]) -> Option<usize> {
    let flexible = version >= 3;
    let mut r = Reader::new(Bytes::copy_from_slice(body));
    r.skip(2).ok()?;
    let smallest = if flexible { 7 } else { 6 };
    let keys = r.array(flexible, smallest).ok()?;
    r.skip(keys * smallest).ok()?;
    Some(body.len() - r.left())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame, finish};
    use crate::versions::TABLE;
    use kafka_protocol::messages as m;
    use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message};

    /// Tells a time in the default answer of every version and reads it back.
    fn check<T>(key: ApiKey, throttle_ms: impl Fn(&T) -> i32)
    where
        T: Message + Encodable + Decodable + HeaderVersion + Default,
    {
        let api = TABLE.iter().find(|api| api.key == key).unwrap();
        for version in api.min..=api.max.min(T::VERSIONS.max) {
            let frame = crate::testing::frame(key, version);
            let Ok(Frame::Request(request)) = frame::parse(frame) else {
                panic!("{key:?} {version} can be read");
            };
            let mut out = request.answer(0);
            T::default().encode(&mut out, version).unwrap();
            finish(&mut out, 0);
            let length = out.len();
            let mut pieces = vec![out.freeze()];
            tell(&request, &mut pieces, 77);
            let whole = Bytes::from(pieces.concat());
            assert_eq!(whole.len(), length);
            let header = 8 + T::header_version(version).max(0) as usize;
            let mut body = whole.slice(header..);
            let told = T::decode(&mut body, version).unwrap();
            // What a version can't say stays at its default.
            let said = place(key, version, &whole[header..]).is_some();
            let wanted = if said { 77 } else { 0 };
            assert_eq!(throttle_ms(&told), wanted, "{key:?} {version}");
            let newest = version == api.max.min(T::VERSIONS.max);
            assert!(said || !newest, "{key:?}: the newest version says it");
        }
    }

    #[test]
    fn every_answer_has_it_where_its_schema_has_it() {
        macro_rules! all {
            ($($key:ident $message:ident;)*) => {{
                $(check::<m::$message>(ApiKey::$key, |r| r.throttle_time_ms);)*
                [$(ApiKey::$key),*]
            }};
        }
        let checked = all! {
            Fetch FetchResponse;
            ListOffsets ListOffsetsResponse;
            Metadata MetadataResponse;
            OffsetCommit OffsetCommitResponse;
            OffsetFetch OffsetFetchResponse;
            FindCoordinator FindCoordinatorResponse;
            JoinGroup JoinGroupResponse;
            Heartbeat HeartbeatResponse;
            LeaveGroup LeaveGroupResponse;
            SyncGroup SyncGroupResponse;
            DescribeGroups DescribeGroupsResponse;
            ListGroups ListGroupsResponse;
            CreateTopics CreateTopicsResponse;
            DeleteTopics DeleteTopicsResponse;
            DeleteRecords DeleteRecordsResponse;
            InitProducerId InitProducerIdResponse;
            OffsetForLeaderEpoch OffsetForLeaderEpochResponse;
            DescribeConfigs DescribeConfigsResponse;
            AlterConfigs AlterConfigsResponse;
            AlterReplicaLogDirs AlterReplicaLogDirsResponse;
            DescribeLogDirs DescribeLogDirsResponse;
            CreatePartitions CreatePartitionsResponse;
            DeleteGroups DeleteGroupsResponse;
            ElectLeaders ElectLeadersResponse;
            IncrementalAlterConfigs IncrementalAlterConfigsResponse;
            OffsetDelete OffsetDeleteResponse;
            DescribeClientQuotas DescribeClientQuotasResponse;
            AlterClientQuotas AlterClientQuotasResponse;
            DescribeCluster DescribeClusterResponse;
            DescribeProducers DescribeProducersResponse;
            GetTelemetrySubscriptions GetTelemetrySubscriptionsResponse;
            PushTelemetry PushTelemetryResponse;
            ListConfigResources ListConfigResourcesResponse;
            DescribeTopicPartitions DescribeTopicPartitionsResponse;
        };
        // Those two are looked at by themselves.
        let others = [ApiKey::Produce, ApiKey::ApiVersions];
        for api in TABLE {
            assert!(
                checked.contains(&api.key) || others.contains(&api.key),
                "{:?}",
                api.key
            );
        }
    }

    #[test]
    fn api_versions_has_it_behind_its_keys() {
        use m::ApiVersionsResponse;
        use m::api_versions_response::ApiVersion;
        for version in 0..=4 {
            let frame = crate::testing::frame(ApiKey::ApiVersions, version);
            let Ok(Frame::Request(request)) = frame::parse(frame) else {
                panic!("version {version} can be read");
            };
            let keys = vec![ApiVersion::default().with_max_version(3); 200];
            let mut out = request.answer(0);
            let answer = ApiVersionsResponse::default().with_api_keys(keys);
            answer.encode(&mut out, version).unwrap();
            let mut pieces = vec![out.freeze()];
            tell(&request, &mut pieces, 77);
            let mut body = Bytes::from(pieces.concat()).slice(8..);
            let told = ApiVersionsResponse::decode(&mut body, version).unwrap();
            assert_eq!(told.throttle_time_ms, if version >= 1 { 77 } else { 0 });
            assert_eq!(told.api_keys.len(), 200);
        }
    }
}
