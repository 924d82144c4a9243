//! Where a reset goes: a decision over plain numbers.

use crate::cli::ResetArgs;
use crate::client::{ClientError, when};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Earliest,
    Latest,
    Offset(i64),
    ShiftBy(i64),
    /// The first record at or after it, in milliseconds since 1970.
    Time(i64),
}

impl Goal {
    /// The one that is set among the arguments; `now_ms` is what durations count back from.
    pub fn of(args: &ResetArgs, now_ms: i64) -> Result<Goal, ClientError> {
        let goal = &args.goal;
        if goal.to_earliest {
            return Ok(Goal::Earliest);
        }
        if goal.to_latest {
            return Ok(Goal::Latest);
        }
        if let Some(offset) = goal.to_offset {
            return Ok(Goal::Offset(offset));
        }
        if let Some(by) = goal.shift_by {
            return Ok(Goal::ShiftBy(by));
        }
        if let Some(text) = &goal.to_datetime {
            return when::timestamp(text).map(Goal::Time).ok_or_else(|| {
                ClientError::Usage(format!(
                    "--to-datetime can't be '{text}': it takes for instance 2026-11-30T12:00, 2026-11-30T12:00:00.000+01:00 (UTC without a zone), or @MILLISECONDS"
                ))
            });
        }
        let text = goal.by_duration.as_deref().unwrap_or_default();
        when::duration(text)
            .map(|back| Goal::Time(now_ms.saturating_sub(back).max(0)))
            .ok_or_else(|| {
                ClientError::Usage(format!(
                    "--by-duration can't be '{text}': it takes for instance 90s, 1h30m, 7d or PT1H30M"
                ))
            })
    }
}

/// What is known of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub committed: Option<i64>,
    pub start: i64,
    pub end: i64,
    /// The first record at or after the goal's time; nothing if there is none, or no time was asked for.
    pub at_time: Option<i64>,
}

/// The new offset, and what there is to say about it.
pub fn target(goal: Goal, known: Known) -> Result<(i64, Option<&'static str>), &'static str> {
    let wanted = match goal {
        Goal::Earliest => known.start,
        Goal::Latest => known.end,
        Goal::Offset(offset) => offset,
        Goal::ShiftBy(by) => known
            .committed
            .ok_or("there is no committed offset to shift")?
            .saturating_add(by),
        Goal::Time(_) => match known.at_time {
            Some(offset) => offset,
            None => return Ok((known.end, Some("no record since then: the end"))),
        },
    };
    Ok(if wanted < known.start {
        (known.start, Some("before the first record: the start"))
    } else if wanted > known.end {
        (known.end, Some("behind the last record: the end"))
    } else {
        (wanted, None)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: Known = Known {
        committed: Some(50),
        start: 10,
        end: 100,
        at_time: Some(70),
    };

    #[test]
    fn every_goal_has_its_offset() {
        let to = |goal| target(goal, KNOWN).unwrap();
        assert_eq!(to(Goal::Earliest), (10, None));
        assert_eq!(to(Goal::Latest), (100, None));
        assert_eq!(to(Goal::Offset(42)), (42, None));
        assert_eq!(to(Goal::ShiftBy(-7)), (43, None));
        assert_eq!(to(Goal::Time(0)), (70, None));
    }

    #[test]
    fn what_is_out_of_range_is_moved_into_it_and_said() {
        let to = |goal| target(goal, KNOWN).unwrap();
        assert!(matches!(to(Goal::Offset(9)), (10, Some(_))));
        assert!(matches!(to(Goal::Offset(101)), (100, Some(_))));
        assert!(matches!(to(Goal::ShiftBy(-1000)), (10, Some(_))));
        assert!(matches!(to(Goal::ShiftBy(i64::MAX)), (100, Some(_))));
        let nothing_since = Known {
            at_time: None,
            ..KNOWN
        };
        assert!(matches!(
            target(Goal::Time(0), nothing_since),
            Ok((100, Some(_)))
        ));
    }

    #[test]
    fn nothing_is_shifted_from_nowhere() {
        let known = Known {
            committed: None,
            ..KNOWN
        };
        assert!(target(Goal::ShiftBy(1), known).is_err());
        assert_eq!(target(Goal::Offset(42), known), Ok((42, None)));
    }

    proptest! {
        #[test]
        fn the_new_offset_is_one_that_there_is(
            goal in prop_oneof![
                Just(Goal::Earliest),
                Just(Goal::Latest),
                any::<i64>().prop_map(Goal::Offset),
                any::<i64>().prop_map(Goal::ShiftBy),
                any::<i64>().prop_map(Goal::Time),
            ],
            committed in 0..i64::MAX,
            start in 0..1000_i64,
            records in 0..1000_i64,
            at_time in proptest::option::of(0..2000_i64),
        ) {
            let known = Known { committed: Some(committed), start, end: start + records, at_time };
            let (offset, _) = target(goal, known).expect("there is a committed offset");
            prop_assert!((start..=start + records).contains(&offset));
        }
    }
}
