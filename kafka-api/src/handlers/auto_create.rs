//! Topics that are made because a client asked for their metadata. As in Kafka, who asks first is told that there is no such topic, and finds it when it asks again, as its client library does by itself: clients and their tests
//! count on that a name which isn't there is an error the first time.
//!
//! What can't be made (a name, a replication factor, no memory for the partitions) is told at once, by the controller's own check. The rest is a task of its own: the topic counts as missing until its leaders are known, so
//! that no client meets it half made. Bounds: [`limits::AUTO_CREATE_TOPICS`] a request, and as many being made by a shard at a time.

use std::cell::RefCell;
use std::rc::Rc;

use cluster::Refusal;
use cluster::controller::NewTopic;
use engine::rt::{self, Queue};
use kafka_protocol::messages::TopicName;

use crate::error::ErrorCode;
use crate::groups::topic as offsets;
use crate::handlers::metadata::wait_for_leaders;
use crate::limits;
use crate::request::{ControllerCall, ControllerReply};
use crate::shard::{Map, Shard, map};

/// Topics that are being made for who asked on this shard.
pub(crate) struct Making(RefCell<Map<TopicName, ()>>);

impl Default for Making {
    fn default() -> Making {
        Making(RefCell::new(map()))
    }
}

impl Making {
    pub fn has(&self, name: &TopicName) -> bool {
        self.0.borrow().contains_key(name)
    }

    /// `false` when it is being made already, or too many are.
    fn begin(&self, name: &TopicName) -> bool {
        let mut making = self.0.borrow_mut();
        making.len() < limits::AUTO_CREATE_TOPICS && making.insert(name.clone(), ()).is_none()
    }

    fn end(&self, name: &TopicName) {
        self.0.borrow_mut().swap_remove(name);
    }
}

/// Has a topic made. What its asker is told: that it isn't there (yet), or why it can't be.
pub(crate) async fn make(shard: &Rc<Shard>, name: &TopicName) -> ErrorCode {
    let new = if *name.0 == *offsets::NAME {
        offsets::new()
    } else {
        NewTopic {
            name: name.to_string(),
            partitions: -1,
            replication_factor: -1,
            ..NewTopic::default()
        }
    };
    let sound = NewTopic {
        validate_only: true,
        ..new.clone()
    };
    if let Some(ControllerReply::Created(Err(e))) =
        shard.ask_controller(ControllerCall::Create(sound)).await
    {
        match e.refusal {
            Refusal::InvalidTopic => return ErrorCode::InvalidTopic,
            Refusal::InvalidReplicationFactor => return ErrorCode::InvalidReplicationFactor,
            Refusal::PolicyViolation => return ErrorCode::PolicyViolation,
            // Somebody else was first, or it is tried again when it is asked for again.
            _ => return ErrorCode::UnknownTopicOrPartition,
        }
    }
    if shard.making.begin(name) {
        let (shard, name) = (shard.clone(), name.clone());
        rt::spawn(Queue::Latency, async move {
            let reply = shard.ask_controller(ControllerCall::Create(new)).await;
            if let Some(ControllerReply::Created(Err(e))) = reply
                && e.refusal != Refusal::TopicAlreadyExists
            {
                tracing::warn!(topic = %name.0, why = %e.message, "a topic that a client asked for could not be made");
            } else {
                wait_for_leaders(&shard, &name).await;
            }
            shard.making.end(&name);
        })
        .detach();
    }
    ErrorCode::UnknownTopicOrPartition
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::StrBytes;

    fn name(n: usize) -> TopicName {
        TopicName(StrBytes::from_string(format!("t{n}")))
    }

    #[test]
    fn a_topic_is_made_once_at_a_time_and_not_too_many() {
        let making = Making::default();
        assert!(making.begin(&name(0)) && !making.begin(&name(0)));
        for n in 1..limits::AUTO_CREATE_TOPICS {
            assert!(making.begin(&name(n)));
        }
        assert!(!making.begin(&name(limits::AUTO_CREATE_TOPICS)));
        making.end(&name(0));
        assert!(!making.has(&name(0)));
        assert!(making.begin(&name(limits::AUTO_CREATE_TOPICS)));
    }
}
