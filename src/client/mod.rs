//! The client commands: a small blocking Kafka client, for people at a terminal. It works with any broker that speaks the protocol.
//!
//! One connection per broker, one request at a time. [`connection`] speaks to one broker, [`cluster`] knows who leads what and tries again,
//! [`coordinators`] finds who answers for groups, [`offsets`] looks up many offsets at once, [`records`] is the record batch format, [`output`], [`progress`],
//! [`units`] and [`when`] are what people see and type; the rest are the commands.
//!
//! How they end ([`crate::exit::Exit`]): 2 when what was asked for makes no sense, 9 when the broker refuses or doesn't have it, 10 when it can't be reached
//! or doesn't answer as a broker does, 1 when our own output can't be written. Every error says what to do.

pub mod cluster;
pub mod configs;
mod connection;
pub mod consume;
mod coordinators;
pub mod groups;
mod health;
mod lines;
mod offsets;
mod output;
pub mod overview;
mod printer;
pub mod produce;
mod progress;
pub mod quotas;
mod records;
mod sender;
pub mod topics;
mod units;
mod when;

use kafka_protocol::ResponseError;

use crate::exit::{Exit, Fatal};

/// Why a client command failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The broker couldn't be reached, or the connection broke.
    #[error("{0}")]
    Connection(String),
    /// The broker answered something that can't be understood.
    #[error("{0}")]
    Protocol(String),
    /// The broker refused.
    #[error("{}", explain(*.code, .message.as_deref()))]
    Refused { code: i16, message: Option<String> },
    /// The broker doesn't have what was asked for, and won't have it in a moment.
    #[error("{0}")]
    Missing(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Our own output can't be written.
    #[error("can't write to standard output: {0}")]
    Output(std::io::Error),
}

impl ClientError {
    fn refused(code: i16, message: Option<&str>) -> ClientError {
        ClientError::Refused {
            code,
            message: message.map(String::from),
        }
    }

    /// Whether it may go better in a moment, with fresh metadata.
    fn is_retriable(&self) -> bool {
        match self {
            ClientError::Connection(_) => true,
            ClientError::Refused { code, .. } => {
                ResponseError::try_from_code(*code).is_some_and(|e| e.is_retriable())
            }
            _ => false,
        }
    }

    /// The same error once more, for each of those that it concerns.
    fn again(&self) -> ClientError {
        match self {
            ClientError::Connection(text) => ClientError::Connection(text.clone()),
            ClientError::Protocol(text) => ClientError::Protocol(text.clone()),
            ClientError::Refused { code, message } => {
                ClientError::refused(*code, message.as_deref())
            }
            ClientError::Missing(text) => ClientError::Missing(text.clone()),
            ClientError::Usage(text) => ClientError::Usage(text.clone()),
            ClientError::Output(e) => ClientError::Output(e.kind().into()),
        }
    }

    /// What happened, without what to do about it: for what is tried again.
    fn brief(&self) -> String {
        match self {
            ClientError::Refused { code, message } => describe(*code, message.as_deref()),
            e => e.to_string(),
        }
    }

    /// Whether it is about one of several things asked for, so that the others can still be told.
    fn is_about_one(&self) -> bool {
        matches!(self, ClientError::Missing(_) | ClientError::Refused { .. })
    }
}

/// All that failed: the last as the command's result, the others told here.
fn tell(mut failed: Vec<ClientError>) -> Result<(), ClientError> {
    let last = failed.pop();
    for e in failed {
        crate::say(format_args!("tailrace: {e}"));
    }
    last.map_or(Ok(()), Err)
}

/// Something to know that is neither a result nor an error.
fn note(text: impl std::fmt::Display) {
    crate::say(format_args!("note: {text}"));
}

impl From<ClientError> for Fatal {
    fn from(e: ClientError) -> Fatal {
        let exit = match e {
            ClientError::Usage(_) => Exit::Usage,
            ClientError::Refused { .. } | ClientError::Missing(_) => Exit::Refused,
            ClientError::Connection(_) | ClientError::Protocol(_) => Exit::Unreachable,
            ClientError::Output(_) => Exit::Failure,
        };
        Fatal::new(exit, e.to_string())
    }
}

/// Puts where it happened before an error.
fn at(place: &str, e: ClientError) -> ClientError {
    let put = |text: String| format!("{place}: {text}");
    match e {
        ClientError::Refused { code, message } => ClientError::Refused {
            code,
            message: Some(put(describe(code, message.as_deref()))),
        },
        ClientError::Connection(text) => ClientError::Connection(put(text)),
        ClientError::Protocol(text) => ClientError::Protocol(put(text)),
        ClientError::Missing(text) => ClientError::Missing(put(text)),
        ClientError::Usage(text) => ClientError::Usage(put(text)),
        ClientError::Output(e) => ClientError::Output(e),
    }
}

/// Prints a line for those who read our output.
fn print(line: impl std::fmt::Display) -> Result<(), ClientError> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}").map_err(ClientError::Output)
}

/// `Ok` for Kafka's error code 0.
fn check(code: i16, message: Option<&str>) -> Result<(), ClientError> {
    match code {
        0 => Ok(()),
        _ => Err(ClientError::refused(code, message)),
    }
}

/// An error in words, with Kafka's name for it and what to do about it where that is known.
fn explain(code: i16, message: Option<&str>) -> String {
    let what = describe(code, message);
    let what = what.trim_end_matches('.');
    let name = match ResponseError::try_from_code(code) {
        Some(ResponseError::Unknown(_)) | None => String::new(),
        Some(error) => format!("{error:?}, "),
    };
    let advice = advice(code).map(|a| format!(": {a}")).unwrap_or_default();
    format!("{what} ({name}error {code}){advice}")
}

/// The broker's own words if it sent any, else ours.
fn describe(code: i16, message: Option<&str>) -> String {
    if let Some(message) = message.filter(|m| !m.is_empty()) {
        return message.to_string();
    }
    let text = match ResponseError::try_from_code(code) {
        Some(ResponseError::UnknownTopicOrPartition) => "there is no such topic or partition",
        Some(ResponseError::UnknownTopicId) => "there is no topic with this id",
        Some(ResponseError::TopicAlreadyExists) => "the topic exists already",
        Some(ResponseError::OffsetOutOfRange) => {
            "the offset is before the beginning or after the end of the partition"
        }
        Some(ResponseError::MessageTooLarge) => "the record is larger than the topic takes",
        Some(ResponseError::LeaderNotAvailable) => "the partition has no leader at the moment",
        Some(ResponseError::NotLeaderOrFollower) => "the partition has another leader by now",
        Some(ResponseError::RequestTimedOut) => "the broker was not done in time",
        Some(ResponseError::InvalidTopicException) => "the topic's name is not allowed",
        Some(ResponseError::KafkaStorageError) => "the broker can't read or write its disk there",
        Some(ResponseError::NotEnoughReplicas) => {
            "fewer replicas are in sync than the topic's min.insync.replicas"
        }
        Some(ResponseError::TopicAuthorizationFailed) => "you may not do this with the topic",
        Some(ResponseError::ClusterAuthorizationFailed) => "you may not do this with the cluster",
        Some(ResponseError::InvalidPartitions) => "there can't be so many partitions",
        Some(ResponseError::CoordinatorLoadInProgress) => {
            "the coordinator is still reading the group's records"
        }
        Some(ResponseError::CoordinatorNotAvailable) => {
            "the group has no coordinator at the moment"
        }
        Some(ResponseError::NotCoordinator) => "the group has another coordinator by now",
        Some(ResponseError::InvalidGroupId) => "the group's name is not allowed",
        Some(ResponseError::GroupAuthorizationFailed) => "you may not do this with the group",
        Some(ResponseError::NonEmptyGroup) => "the group has members",
        Some(ResponseError::GroupIdNotFound) => "there is no such group",
        Some(ResponseError::GroupSubscribedToTopic) => {
            "the group's members are subscribed to the topic"
        }
        Some(
            ResponseError::UnknownMemberId
            | ResponseError::IllegalGeneration
            | ResponseError::RebalanceInProgress,
        ) => "the group has members by now",
        Some(ResponseError::InvalidConfig) => "a config is not allowed",
        Some(ResponseError::UnsupportedVersion) => "the broker doesn't support this",
        Some(ResponseError::InvalidReplicationFactor) => "there can't be so many replicas",
        _ => "the broker refused",
    };
    text.to_string()
}

/// What to do about an error code.
fn advice(code: i16) -> Option<&'static str> {
    Some(match ResponseError::try_from_code(code)? {
        ResponseError::UnknownTopicOrPartition => {
            "`tailrace topic list` shows what there is, `tailrace topic create` creates it"
        }
        ResponseError::TopicAlreadyExists => "--if-not-exists takes it as it is",
        ResponseError::OffsetOutOfRange => {
            "`tailrace topic describe` shows the offsets that there are"
        }
        ResponseError::MessageTooLarge | ResponseError::RecordListTooLarge => {
            "send smaller records, or give the topic a larger max.message.bytes where that is the limit (`tailrace topic describe` shows it)"
        }
        ResponseError::LeaderNotAvailable
        | ResponseError::NotLeaderOrFollower
        | ResponseError::NotController
        | ResponseError::RequestTimedOut => "try again, or allow more time with --timeout-ms",
        ResponseError::InvalidTopicException => {
            "a name has up to 249 letters, digits, '.', '_' and '-'"
        }
        ResponseError::InvalidReplicationFactor => {
            "--replication-factor is at most the number of brokers"
        }
        ResponseError::InvalidPartitions => {
            "a topic has at least one, and can only get more than it has (`tailrace topic describe`)"
        }
        ResponseError::KafkaStorageError => "see the broker's log and look at its disk",
        ResponseError::CoordinatorLoadInProgress
        | ResponseError::CoordinatorNotAvailable
        | ResponseError::NotCoordinator => {
            "try again, or allow more time with --timeout-ms; `tailrace cluster health` shows whether all brokers are there"
        }
        ResponseError::NonEmptyGroup
        | ResponseError::UnknownMemberId
        | ResponseError::IllegalGeneration
        | ResponseError::RebalanceInProgress
        | ResponseError::GroupSubscribedToTopic => {
            "stop its consumers first; `tailrace group describe` shows who they are"
        }
        ResponseError::GroupIdNotFound => "`tailrace group list` shows what there is",
        ResponseError::NotEnoughReplicas | ResponseError::NotEnoughReplicasAfterAppend => {
            "see which brokers are down, or lower the topic's min.insync.replicas"
        }
        ResponseError::TopicAuthorizationFailed
        | ResponseError::GroupAuthorizationFailed
        | ResponseError::ClusterAuthorizationFailed => "ask whoever runs the broker",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_its_exit_code() {
        let exit = |e: ClientError| Fatal::from(e).exit;
        assert_eq!(exit(ClientError::Usage("".into())), Exit::Usage);
        assert_eq!(exit(ClientError::refused(40, None)), Exit::Refused);
        assert_eq!(exit(ClientError::Missing("".into())), Exit::Refused);
        assert_eq!(exit(ClientError::Connection("".into())), Exit::Unreachable);
        assert_eq!(exit(ClientError::Protocol("".into())), Exit::Unreachable);
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(exit(ClientError::Output(full)), Exit::Failure);
    }

    #[test]
    fn refusals_say_what_where_and_what_to_do() {
        let e = at("topic 'a'", ClientError::refused(36, None)).to_string();
        assert!(
            e.starts_with("topic 'a': the topic exists already (TopicAlreadyExists, error 36)"),
            "{e}"
        );
        assert!(e.ends_with("--if-not-exists takes it as it is"), "{e}");
        let own = ClientError::refused(40, Some("Bad config.")).to_string();
        assert_eq!(own, "Bad config (InvalidConfig, error 40)");
        let strange = ClientError::refused(9999, None).to_string();
        assert_eq!(strange, "the broker refused (error 9999)");
    }
}
