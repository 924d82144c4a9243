use super::*;
use proptest::prelude::*;

fn asked(entity: &[(&str, Option<&str>)], ops: &[(&str, Option<f64>)]) -> Asked {
    let entity = entity
        .iter()
        .map(|(k, n)| (k.to_string(), n.map(Into::into)));
    Asked {
        entity: entity.collect(),
        ops: ops.iter().map(|(k, v)| (k.to_string(), *v)).collect(),
    }
}

type Parts<'a> = &'a [(&'a str, Option<&'a str>)];

fn quotas(all: &[(Parts<'_>, f64)]) -> Quotas {
    let changes: Vec<Change> = all
        .iter()
        .map(|(entity, rate)| {
            check(&asked(entity, &[("producer_byte_rate", Some(*rate))])).unwrap()
        })
        .collect();
    after(&Quotas::default(), &changes)
}

fn after(quotas: &Quotas, changes: &[Change]) -> Quotas {
    let mut quotas = quotas.clone();
    quotas.apply(changes);
    quotas
}

#[test]
fn the_most_specific_entry_is_in_force() {
    let order: [&[(&str, Option<&str>)]; 8] = [
        &[("user", Some("u")), ("client-id", Some("c"))],
        &[("user", Some("u")), ("client-id", None)],
        &[("user", Some("u"))],
        &[("user", None), ("client-id", Some("c"))],
        &[("user", None), ("client-id", None)],
        &[("user", None)],
        &[("client-id", Some("c"))],
        &[("client-id", None)],
    ];
    let (u, c) = (Some("u"), Some("c"));
    let shared = [
        (u, c),
        (u, c),
        (u, None),
        (u, c),
        (u, c),
        (u, None),
        (None, c),
        (None, c),
    ];
    for first in 0..order.len() {
        let all: Vec<_> = order[first..]
            .iter()
            .enumerate()
            .map(|(i, e)| (*e, (first + i + 1) as f64))
            .collect();
        let (limit, with) = quotas(&all).limit(Key::ProducerByteRate, "u", "c").unwrap();
        assert_eq!(limit, (first + 1) as f64);
        assert_eq!((with.user, with.client), shared[first], "{first}");
    }
    let q = quotas(&[(&[("client-id", Some("c"))], 5.0)]);
    assert_eq!(q.limit(Key::ProducerByteRate, "u", "d"), None);
    assert_eq!(q.limit(Key::ConsumerByteRate, "u", "c"), None);
    // A user that has only client entries falls back to the default user.
    let q = quotas(&[
        (&[("user", Some("u")), ("client-id", Some("x"))], 1.0),
        (&[("user", None)], 2.0),
    ]);
    assert_eq!(q.limit(Key::ProducerByteRate, "u", "c").unwrap().0, 2.0);
}

#[test]
fn addresses_are_found_however_they_are_written() {
    let rate = |ip| asked(&[("ip", ip)], &[("connection_creation_rate", Some(3.0))]);
    let change = check(&rate(Some("::1"))).unwrap();
    let default = Change {
        ops: vec![(Key::ConnectionCreationRate, Some(9.0.into()))],
        ..check(&rate(None)).unwrap()
    };
    let q = after(&Quotas::default(), &[change]);
    assert_eq!(q.connection_rate("0:0::1".parse().unwrap()), Some(3.0));
    assert_eq!(q.connection_rate("10.0.0.1".parse().unwrap()), None);
    let q = after(&q, &[default]);
    assert_eq!(
        q.connection_rate("::ffff:10.0.0.1".parse().unwrap()),
        Some(9.0)
    );
    assert!(check(&rate(Some("not an address"))).is_err());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let rate = ("producer_byte_rate", Some(10.0));
    for (entity, ops) in [
        (&[][..], &[rate][..]),
        (&[("user", Some(""))], &[rate]),
        (&[("group", Some("g"))], &[rate]),
        (&[("user", Some("a")), ("user", Some("a"))], &[rate]),
        (&[("user", Some("a")), ("ip", None)], &[rate]),
        (&[("user", Some("a"))], &[rate, rate]),
        (&[("user", Some("a"))], &[("consumer_bytes", Some(1.0))]),
        (
            &[("user", Some("a"))],
            &[("connection_creation_rate", Some(1.0))],
        ),
        (&[("ip", Some("::1"))], &[rate]),
        (&[("user", Some("a"))], &[("producer_byte_rate", Some(1.5))]),
        (
            &[("user", Some("a"))],
            &[("producer_byte_rate", Some(f64::NAN))],
        ),
        (
            &[("user", Some("a"))],
            &[("request_percentage", Some(f64::NAN))],
        ),
        (
            &[("user", Some("a"))],
            &[("request_percentage", Some(-0.5))],
        ),
        (&[("user", Some("a"))], &[("producer_byte_rate", Some(0.0))]),
        (&[("ip", None)], &[("connection_creation_rate", Some(3e9))]),
    ] {
        let refused = check(&asked(entity, ops)).unwrap_err();
        assert_eq!(
            refused.refusal,
            Refusal::InvalidRequest,
            "{entity:?}: {refused}"
        );
    }
    let long = "x".repeat(limits::QUOTA_NAME_BYTES + 1);
    let refused = check(&asked(&[("user", Some(&long))], &[rate])).unwrap_err();
    assert_eq!(refused.refusal, Refusal::PolicyViolation);
    check(&asked(
        &[("user", None)],
        &[("request_percentage", Some(0.5))],
    ))
    .unwrap();
    check(&asked(&[("user", None)], &[("no such key", None)])).unwrap();
}

/// A request may name a hundred thousand limits that there aren't, to be removed: none is compared with all before it.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "how long it takes is what it is about"
)]
fn many_limits_are_looked_at_once() {
    let began = std::time::Instant::now();
    let many = Asked {
        entity: vec![("user".into(), Some("u".into()))],
        ops: (0..200_000).map(|n| (n.to_string(), None)).collect(),
    };
    assert!(check(&many).unwrap().ops.is_empty());
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn an_entity_without_limits_is_gone() {
    let q = quotas(&[(&[("user", Some("u"))], 5.0)]);
    let away = check(&asked(
        &[("user", Some("u"))],
        &[("producer_byte_rate", None)],
    ))
    .unwrap();
    assert_eq!(after(&q, &[away]), Quotas::default());
}

proptest! {
    /// The tables that are looked up say what a search through all entities in order says.
    #[test]
    fn lookup_is_a_search(entries in prop::collection::btree_map((0u8..3, 0u8..3), 1u32..100, 0..9)) {
        // 0: not spoken of, 1: the default, 2: "x".
        let part = |n: u8| match n { 0 => None, 1 => Some(None), _ => Some(Some("x".to_string())) };
        let all = entries.iter().filter(|(k, _)| **k != (0, 0)).map(|((u, c), v)| {
            let entity = Entity { user: part(*u), client: part(*c), ip: None };
            (entity, Limits::from([(Key::ConsumerByteRate, Limit::from(f64::from(*v)))]))
        });
        let quotas = Quotas::new(all);
        let order = [(2, 2), (2, 1), (2, 0), (1, 2), (1, 1), (1, 0), (0, 2), (0, 1)];
        let wanted = order.iter().find_map(|k| entries.get(k)).map(|v| f64::from(*v));
        prop_assert_eq!(quotas.limit(Key::ConsumerByteRate, "x", "x").map(|l| l.0), wanted);
    }

    /// Changes one by one come to the same as what they leave, put together anew; and nothing is left of what was removed.
    #[test]
    fn changes_add_up(changes in prop::collection::vec(((0u8..3, 0u8..3), 0usize..3, prop::option::of(1u32..5)), 0..40)) {
        let part = |n: u8| match n { 0 => None, 1 => Some(None), _ => Some(Some("x".to_string())) };
        let mut quotas = Quotas::default();
        for ((u, c), key, limit) in changes {
            let entity = Entity { user: part(u), client: part(c), ip: None };
            let ops = vec![(Key::ALL[key], limit.map(|l| Limit::from(f64::from(l))))];
            let change = [Change { entity, ops }];
            let most = quotas.len() + quotas.added(&change);
            quotas.apply(&change);
            prop_assert!(quotas.len() <= most);
        }
        let entities: Vec<_> = quotas.entities().map(|(e, l)| (e.clone(), l.clone())).collect();
        prop_assert_eq!(&Quotas::new(entities.clone()), &quotas);
        for (entity, limits) in entities {
            let ops = limits.keys().map(|key| (*key, None)).collect();
            quotas.apply(&[Change { entity, ops }]);
        }
        prop_assert_eq!(quotas, Quotas::default());
    }
}
