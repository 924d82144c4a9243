//! The client commands: a small blocking Kafka client, for people at a terminal. It works with any broker that speaks the protocol.
//!
//! One connection per broker, one request at a time. [`connection`] speaks to one broker, [`cluster`] knows who leads what and tries again,
//! [`records`] is the record batch format, the rest are the commands.

mod cluster;
mod connection;
pub mod consume;
pub mod produce;
mod records;
pub mod topics;

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
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
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
}

impl From<ClientError> for Fatal {
    fn from(e: ClientError) -> Fatal {
        let exit = match e {
            ClientError::Usage(_) => Exit::Usage,
            _ => Exit::Failure,
        };
        Fatal::new(exit, e.to_string())
    }
}

/// `Ok` for Kafka's error code 0.
fn check(code: i16, message: Option<&str>) -> Result<(), ClientError> {
    match code {
        0 => Ok(()),
        _ => Err(ClientError::refused(code, message)),
    }
}

/// An error code in words: the broker's own if it sent any, else ours, and what to do about it where that is known.
fn explain(code: i16, message: Option<&str>) -> String {
    let what = match message.filter(|m| !m.is_empty()) {
        Some(message) => message.to_string(),
        None => match ResponseError::try_from_code(code) {
            Some(ResponseError::UnknownTopicOrPartition) => "there is no such topic or partition".into(),
            Some(ResponseError::UnknownTopicId) => "there is no topic with this id".into(),
            Some(ResponseError::TopicAlreadyExists) => "the topic exists already".into(),
            Some(ResponseError::OffsetOutOfRange) => {
                "the offset is before the beginning or after the end of the partition".into()
            }
            Some(ResponseError::MessageTooLarge) => {
                "the batch is larger than the topic's max.message.bytes; send fewer or smaller records".into()
            }
            Some(ResponseError::LeaderNotAvailable) => "the partition has no leader at the moment".into(),
            Some(ResponseError::NotLeaderOrFollower) => "the partition has another leader by now".into(),
            Some(ResponseError::RequestTimedOut) => "the broker was not done in time".into(),
            Some(ResponseError::InvalidTopicException) => "the topic's name is not allowed".into(),
            Some(ResponseError::KafkaStorageError) => "the broker's disk failed; see its log".into(),
            Some(ResponseError::NotEnoughReplicas) => {
                "fewer replicas are in sync than the topic's min.insync.replicas".into()
            }
            Some(ResponseError::TopicAuthorizationFailed) => "you may not do this with the topic".into(),
            _ => "the broker refused".into(),
        },
    };
    match ResponseError::try_from_code(code) {
        Some(ResponseError::Unknown(code)) => format!("{what} (error {code})"),
        Some(error) => format!("{what} ({error}, error {code})"),
        None => what,
    }
}
