//! How long responses took: one histogram for each class of statuses, in the cells of the counters' page.
//!
//! A response is timed from the moment its request's head was complete to the moment its last byte was
//! handed to the kernel, by the time of the worker's turns: the clock is not asked for it. Buckets are
//! log-linear: each doubling of time is two buckets, so that any quantile is known to within a third. The
//! bounds are whole microseconds and include what equals them, as `le` of Prometheus does. Bounds that
//! are finer, or adapt, would cost every scrape more series than anybody looks at.

use std::time::Duration;

/// Classes of statuses that are timed: 2xx to 5xx. Interim responses end nothing.
pub const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// The first bound is 2 to the power of this, in microseconds: faster than any answer over a network.
const FIRST_EXPONENT: u32 = 4;

/// The last bound, likewise: 67 seconds, beyond the patience of people and most deadlines.
const LAST_EXPONENT: u32 = 26;

/// Buckets of a histogram that have an upper bound.
pub const BOUNDED: usize = 2 * (LAST_EXPONENT - FIRST_EXPONENT) as usize + 1;

/// Cells of a histogram: its buckets, one for all that took longer, and the sum in nanoseconds.
const WIDTH: usize = BOUNDED + 2;

/// Cells of all histograms.
pub const CELLS: usize = CLASSES.len() * WIDTH;

/// The upper bound of a bucket in microseconds; `None`: it has none.
pub fn bound(bucket: usize) -> Option<u64> {
    let exponent = FIRST_EXPONENT + u32::try_from(bucket / 2).unwrap_or(u32::MAX);
    match bucket {
        BOUNDED.. => None,
        _ if bucket.is_multiple_of(2) => Some(1 << exponent),
        _ => Some(3 << (exponent - 1)),
    }
}

/// Where a response of this class (0: 2xx) is counted that took so long.
#[inline]
pub fn bucket_cell(class: usize, took: Duration) -> usize {
    class * WIDTH + bucket(took)
}

/// Where the time of the responses of this class is added up.
#[inline]
pub fn sum_cell(class: usize) -> usize {
    class * WIDTH + BOUNDED + 1
}

/// The first bucket whose bound is not below `took`.
#[inline]
fn bucket(took: Duration) -> usize {
    // Rounded up, and one less, so that a time that equals a bound is on its inner side.
    let below = u64::try_from(took.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX).saturating_sub(1);
    let Some(exponent @ FIRST_EXPONENT..) = below.checked_ilog2() else { return 0 };
    let upper_half = below >> (exponent - 1) & 1;
    (1 + 2 * (exponent - FIRST_EXPONENT) as usize + upper_half as usize).min(BOUNDED)
}

/// A histogram taken out of its cells.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Histogram {
    /// How many responses there were.
    pub count: u64,
    /// How long they took together, in microseconds.
    pub sum: u64,
    /// The buckets in which any are: upper bound in microseconds (`None`: it has none) and how many.
    pub buckets: Vec<(Option<u64>, u64)>,
}

impl Histogram {
    /// That of a class, from the cells of all.
    pub fn of(class: usize, cell: impl Fn(usize) -> u64) -> Self {
        let counts = (0..=BOUNDED).map(|bucket| (bound(bucket), cell(class * WIDTH + bucket)));
        let buckets: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        Self { count, sum: cell(sum_cell(class)) / 1000, buckets }
    }

    /// The cells that hold it as that of a class, and what they hold. A bucket that is none of ours is left out.
    pub fn cells(&self, class: usize) -> impl Iterator<Item = (usize, u64)> {
        let cell = move |&(upper, count): &(Option<u64>, u64)| {
            let bucket = (0..=BOUNDED).find(|bucket| bound(*bucket) == upper)?;
            Some((class * WIDTH + bucket, count))
        };
        self.buckets.iter().filter_map(cell).chain([(sum_cell(class), self.sum.saturating_mul(1000))])
    }

    /// How many took at most as long as the bound of this bucket.
    pub fn at_most(&self, bucket: usize) -> u64 {
        let bound = bound(bucket).unwrap_or(u64::MAX);
        let within = self.buckets.iter().filter(|(upper, _)| upper.unwrap_or(u64::MAX) <= bound);
        within.map(|(_, count)| count).sum()
    }

    /// The bound that so many of a thousand responses kept; `None` where there was none, or the bucket has
    /// no bound.
    pub fn quantile(&self, of_thousand: u64) -> Option<Duration> {
        let rank = (self.count * of_thousand).div_ceil(1000).max(1);
        let mut passed = 0;
        let holds = |(_, count): &&(Option<u64>, u64)| {
            passed += count;
            passed >= rank
        };
        self.buckets.iter().find(holds).and_then(|(bound, _)| bound.map(Duration::from_micros))
    }

    /// What was added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let count_before = |bound| before.buckets.iter().find(|(other, _)| *other == bound);
        let gained = |&(bound, count): &(Option<u64>, u64)| {
            (bound, count.saturating_sub(count_before(bound).map_or(0, |(_, count)| *count)))
        };
        Self {
            count: self.count.saturating_sub(before.count),
            sum: self.sum.saturating_sub(before.sum),
            buckets: self.buckets.iter().map(gained).filter(|(_, count)| *count > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_double_in_two_steps() {
        let bounds: Vec<_> = (0..=BOUNDED).map(bound).collect();
        assert_eq!(bounds[..6], [Some(16), Some(24), Some(32), Some(48), Some(64), Some(96)]);
        assert_eq!(bounds[BOUNDED - 1..], [Some(67_108_864), None]);
        assert!(bounds[..BOUNDED].is_sorted());
    }

    #[test]
    fn every_time_is_in_the_first_bucket_that_holds_it() {
        let mut nanoseconds: Vec<u64> = (0..40).flat_map(|bits| [1 << bits, (1 << bits) + 1]).collect();
        let bounds = (0..BOUNDED).filter_map(bound);
        nanoseconds.extend(bounds.flat_map(|bound| [bound * 1000 - 1, bound * 1000, bound * 1000 + 1]));
        for nanos in nanoseconds.into_iter().chain([0, u64::MAX]) {
            let took = Duration::from_nanos(nanos);
            let holds =
                |&bucket: &usize| bound(bucket).is_none_or(|bound| took <= Duration::from_micros(bound));
            assert_eq!(Some(bucket(took)), (0..=BOUNDED).find(holds), "{took:?}");
        }
        assert_eq!(bucket(Duration::MAX), BOUNDED);
    }

    #[test]
    fn cells_do_not_overlap() {
        let mut cells: Vec<usize> = (0..CLASSES.len()).map(sum_cell).collect();
        for class in 0..CLASSES.len() {
            let times = (0..BOUNDED).filter_map(bound).map(Duration::from_micros).chain([Duration::MAX]);
            cells.extend(times.map(|took| bucket_cell(class, took)));
        }
        cells.sort_unstable();
        assert_eq!(cells, (0..CELLS).collect::<Vec<_>>());
    }

    #[test]
    fn a_histogram_tells_quantiles_and_what_was_gained() {
        let mut cells = vec![0; CELLS];
        for (micros, count) in [(10, 90), (300, 9), (100_000_000, 1)] {
            cells[bucket_cell(1, Duration::from_micros(micros))] += count;
            cells[sum_cell(1)] += micros * count * 1000;
        }
        let histogram = Histogram::of(1, |cell| cells[cell]);
        assert_eq!((histogram.count, histogram.sum), (100, 100_003_600));
        assert_eq!(histogram.buckets, [(Some(16), 90), (Some(384), 9), (None, 1)]);
        assert_eq!([0, 8, 9, BOUNDED].map(|bucket| histogram.at_most(bucket)), [90, 90, 99, 100]);
        let millis = |of_thousand| histogram.quantile(of_thousand).map(|time| time.as_micros());
        assert_eq!([0, 900, 901, 990, 991].map(millis), [Some(16), Some(16), Some(384), Some(384), None]);
        assert_eq!(Histogram::default().quantile(500), None);
        cells[bucket_cell(1, Duration::from_micros(10))] += 1;
        let later = Histogram::of(1, |cell| cells[cell]);
        assert_eq!(later.since(&histogram).buckets, [(Some(16), 1)]);
        assert_eq!(Histogram::of(0, |cell| cells[cell]), Histogram::default());
    }
}
