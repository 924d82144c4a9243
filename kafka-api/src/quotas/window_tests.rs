use super::*;
use proptest::prelude::*;

impl Shape {
    fn span_of(self, passed: u64) -> f64 {
        let whole = (u64::from(self.samples - 1)).saturating_sub(passed / self.sample_ms);
        (passed + whole * self.sample_ms) as f64
    }
}

const KAFKAS: Shape = Shape {
    samples: 11,
    sample_ms: 1000,
};

#[test]
fn a_young_window_counts_as_one_that_was_silent() {
    let mut w = Window::default();
    w.add(KAFKAS, 100_000.0, 5_000);
    // Ten whole seconds are taken as passed, and nothing of the eleventh.
    assert_eq!(w.rate(KAFKAS, 5_000), 10_000.0);
    assert_eq!(w.throttle_ms(KAFKAS, 10_000.0, 5_000), 0);
    // Twice the bound: as long again as the window.
    assert_eq!(w.throttle_ms(KAFKAS, 5_000.0, 5_000), 10_000);
    assert_eq!(w.throttle_ms(KAFKAS, 5_000.0, 5_500), 9_500);
    w.add(KAFKAS, 50_000.0, 5_500);
    assert_eq!(w.rate(KAFKAS, 5_500), 150_000.0 / 10.5);
}

#[test]
fn samples_go_one_by_one() {
    let mut w = Window::default();
    for second in 0..30u64 {
        w.add(KAFKAS, 1_000.0, second * 1000);
        assert!(w.samples.len() <= 12);
    }
    // Eleven samples, the oldest of which began 10 s ago.
    assert_eq!(w.samples.len(), 11);
    assert_eq!(w.rate(KAFKAS, 29_000), 1_100.0);
    assert!(!w.is_idle(KAFKAS, 39_999));
    assert!(w.is_idle(KAFKAS, 40_000));
    assert_eq!(w.rate(KAFKAS, 40_000), 0.0);
}

#[test]
fn what_is_taken_back_was_never_there() {
    let mut w = Window::default();
    w.add(KAFKAS, 500.0, 0);
    let before = w.clone().rate(KAFKAS, 1_500);
    w.add(KAFKAS, 9_000.0, 1_500);
    w.add(KAFKAS, -9_000.0, 1_500);
    assert_eq!(w.rate(KAFKAS, 1_500), before);
}

#[test]
fn one_sample_and_no_bound_at_all_are_no_division_by_zero() {
    let one = Shape::new(1, 1);
    let mut w = Window::default();
    w.add(one, 10.0, 7);
    assert!(w.rate(one, 7).is_finite());
    assert_eq!(w.throttle_ms(one, 0.0, 7), i32::MAX as u32);
    let mut b = Bucket::new(one, 0.0, 7);
    b.take(one, 0.0, 1.0, 7);
    assert_eq!(b.throttle_ms(one, 0.0, 9), i32::MAX as u32);
    assert_eq!(KAFKAS.most_at_once(1_000.0), 10_000.0);
}

#[test]
fn a_bucket_is_overdrawn_once_and_fills_at_its_rate() {
    let mut b = Bucket::new(KAFKAS, 2.0, 100);
    // 22 tokens are there; the request that passes them is still let through.
    b.take(KAFKAS, 2.0, 20.0, 100);
    assert_eq!(b.throttle_ms(KAFKAS, 2.0, 100), 0);
    b.take(KAFKAS, 2.0, 10.0, 100);
    assert_eq!(b.throttle_ms(KAFKAS, 2.0, 100), 4_000);
    assert_eq!(b.throttle_ms(KAFKAS, 2.0, 2_100), 2_000);
    assert_eq!(b.throttle_ms(KAFKAS, 2.0, 4_100), 0);
    assert!(!b.is_idle(KAFKAS, 2.0, 15_000));
    assert!(b.is_idle(KAFKAS, 2.0, 15_100));
    // It never holds more than its burst.
    b.take(KAFKAS, 2.0, 23.0, 1_000_000);
    assert_eq!(b.throttle_ms(KAFKAS, 2.0, 1_000_000), 500);
}

proptest! {
    /// Against all that came, kept whole: what counts is what came within the window, and what came before it at most by one sample.
    #[test]
    fn the_window_is_what_it_says(
        samples in 1i32..20,
        adds in prop::collection::vec((0u64..1500, 1u32..100_000), 1..60),
        later in 0u64..30_000,
    ) {
        let shape = Shape::new(samples, 1);
        let mut w = Window::default();
        let mut all = Vec::new();
        let mut now = 1_000_000;
        for (pause, amount) in adds {
            now += pause;
            all.push((now, f64::from(amount)));
            w.add(shape, f64::from(amount), now);
            prop_assert!(w.samples.len() <= samples as usize + 1);
        }
        now += later;
        let since = |ms: u64| {
            let came = all.iter().filter(|(at, _)| at + ms > now);
            came.map(|(_, amount)| amount).sum::<f64>()
        };
        let rate = w.rate(shape, now);
        let counted = rate * w.span_ms(shape, now) as f64 / 1000.0;
        prop_assert!(counted >= since(shape.memory_ms()) - 1e-3);
        prop_assert!(counted <= since(shape.memory_ms() + shape.sample_ms) + 1e-3);
        // Reckoned over the window but for one sample, and over one sample more at most.
        let span = w.span_ms(shape, now);
        prop_assert!(span >= (shape.memory_ms() - shape.sample_ms).max(1));
        prop_assert!(span <= shape.memory_ms() + shape.sample_ms);
        prop_assert_eq!(w.is_idle(shape, now), counted == 0.0);
    }

    /// Who is at the bound or below waits for nothing, who is above waits the longer the more.
    #[test]
    fn the_throttle_time_rises_with_the_excess(amount in 1u32..1_000_000, bound in 1u32..50_000, passed in 0u64..11_000) {
        let bound = f64::from(bound);
        let throttle = |amount: u32| {
            let mut w = Window::default();
            w.add(KAFKAS, f64::from(amount), 0);
            (w.throttle_ms(KAFKAS, bound, passed), w.rate(KAFKAS, passed))
        };
        let (ms, rate) = throttle(amount);
        prop_assert_eq!(ms > 0, ((rate - bound) / bound * KAFKAS.span_of(passed)).round() >= 1.0);
        prop_assert!(throttle(amount + 1_000).0 >= ms);
    }

    /// Whoever waits each time as long as he is told gets no more than twice the bound over any long time, but for the first burst. Twice, because who sends as much at once as two windows hold
    /// waits for one of them, and finds it forgotten: so it is in Kafka.
    #[test]
    fn who_obeys_is_bounded(amounts in prop::collection::vec(1u32..20_000, 100..200), bound in 1_000u32..20_000) {
        let bound = f64::from(bound);
        let mut w = Window::default();
        let (mut now, mut total) = (0u64, 0.0);
        for amount in amounts {
            w.add(KAFKAS, f64::from(amount), now);
            total += f64::from(amount);
            now += u64::from(w.throttle_ms(KAFKAS, bound, now)) + 1;
        }
        let burst = KAFKAS.most_at_once(bound) + 20_000.0;
        prop_assert!(total <= burst + 2.0 * bound * now as f64 / 1000.0, "{total} in {now} ms");
    }

    /// The same with requests that are small beside the window: the bound.
    #[test]
    fn who_sends_little_at_a_time_gets_the_bound(amounts in prop::collection::vec(1u32..1_000, 600..900), bound in 1_000u32..5_000) {
        let bound = f64::from(bound);
        let mut w = Window::default();
        let (mut now, mut total) = (0u64, 0.0);
        for amount in amounts {
            w.add(KAFKAS, f64::from(amount), now);
            total += f64::from(amount);
            now += u64::from(w.throttle_ms(KAFKAS, bound, now)) + 1;
        }
        let burst = KAFKAS.most_at_once(bound) + 1_000.0;
        prop_assert!(total <= burst + 1.25 * bound * now as f64 / 1000.0, "{total} in {now} ms");
    }

    #[test]
    fn a_bucket_gives_its_rate_and_one_burst(takes in prop::collection::vec((0u64..3000, 1u32..50), 1..100), rate in 1u32..20) {
        let rate = f64::from(rate);
        let mut b = Bucket::new(KAFKAS, rate, 0);
        let (mut now, mut given) = (0u64, 0.0);
        for (pause, tokens) in takes {
            now += pause;
            if b.throttle_ms(KAFKAS, rate, now) == 0 {
                b.take(KAFKAS, rate, f64::from(tokens), now);
                given += f64::from(tokens);
            }
        }
        prop_assert!(given <= rate * (11.0 + now as f64 / 1000.0) + 50.0);
    }
}
