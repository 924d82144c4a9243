//! `--topic orders`, `--topic orders:0,4-7`: topics, or some of their partitions.

use std::collections::BTreeSet;

use crate::client::ClientError;
use crate::client::cluster::Cluster;
use crate::client::offsets::Place;

/// Partitions that one argument may name.
const PARTITIONS: usize = 100_000;

/// A topic, and which of its partitions; all of them when none is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub topic: String,
    pub partitions: BTreeSet<i32>,
}

impl Target {
    pub fn takes(&self, (topic, partition): &Place) -> bool {
        *topic == self.topic && (self.partitions.is_empty() || self.partitions.contains(partition))
    }
}

pub fn parse(given: &[String]) -> Result<Vec<Target>, ClientError> {
    given.iter().map(|text| parse_one(text)).collect()
}

fn parse_one(text: &str) -> Result<Target, ClientError> {
    let (topic, list) = match text.split_once(':') {
        Some((topic, list)) => (topic, Some(list)),
        None => (text, None),
    };
    let partitions = match list {
        None => Some(BTreeSet::new()),
        Some(list) => numbers(list),
    };
    match partitions {
        Some(partitions) if !topic.is_empty() => Ok(Target {
            topic: topic.into(),
            partitions,
        }),
        _ => Err(ClientError::Usage(format!(
            "--topic can't be '{text}': it takes a topic, or a topic and partitions as in orders:0,4-7"
        ))),
    }
}

fn numbers(list: &str) -> Option<BTreeSet<i32>> {
    let number = |text: &str| text.parse::<i32>().ok().filter(|n| *n >= 0);
    let mut all = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        let many = usize::try_from(last.checked_sub(first)?).ok()?;
        if all.len() + many >= PARTITIONS {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Every partition that is meant; all of them must be there.
pub fn places(cluster: &mut Cluster, targets: &[Target]) -> Result<BTreeSet<Place>, ClientError> {
    let mut places = BTreeSet::new();
    for target in targets {
        let topic = cluster.topic(&target.topic, false)?;
        let there: BTreeSet<i32> = topic.partitions.iter().map(|p| p.partition_index).collect();
        if let Some(missing) = target.partitions.iter().find(|p| !there.contains(p)) {
            return Err(ClientError::Missing(format!(
                "there is no partition {missing}: topic '{}' has partitions 0 to {}",
                target.topic,
                there.len() as i64 - 1
            )));
        }
        let taken = there
            .into_iter()
            .map(|p| (target.topic.clone(), p))
            .filter(|place| target.takes(place));
        places.extend(taken);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let read = |text| parse_one(text).map(|t| (t.topic, t.partitions.into_iter().collect()));
        assert_eq!(read("orders").unwrap(), ("orders".into(), vec![]));
        assert_eq!(read("o:0,4-6,5").unwrap(), ("o".into(), vec![0, 4, 5, 6]));
        for text in [
            "",
            ":0",
            "o:",
            "o:x",
            "o:-1",
            "o:3-1",
            "o:0-2000000000",
            "o:0,,1",
        ] {
            assert!(parse_one(text).is_err(), "{text}");
        }
    }
}
