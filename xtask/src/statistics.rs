//! Few rounds, and no assumption of how they are distributed: order statistics for times, exact binomial bounds for shares.

use crate::picture::float;

/// The rounds from which on a p99 is given.
const P99: usize = 100;
/// A value of what did not happen within the time that it was given: more than any other.
pub(crate) const NEVER: u64 = u64::MAX;
/// What an interval or a bound may miss.
const ERROR: f64 = 0.05;
/// How often the search for a bound is halved: more digits than are printed.
const HALVINGS: u32 = 50;

/// Some values of one figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// How many there are.
    pub(crate) n: usize,
    pub(crate) median: u64,
    /// Has the median of all possible rounds within it in 95 of 100 benches, however they are distributed. Absent with
    /// fewer than six.
    pub(crate) interval: Option<(u64, u64)>,
    /// The nearest rank, where there are values enough for one, and its interval, likewise, where there are enough for one:
    /// from 368 on.
    pub(crate) p99: Option<u64>,
    pub(crate) p99_interval: Option<(u64, u64)>,
    pub(crate) least: u64,
    pub(crate) most: u64,
}

/// How a median stands to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    First,
    /// Their intervals overlap.
    Tied,
    Behind,
}

impl Summary {
    /// Of all these values. Absent where there are none.
    pub(crate) fn of(values: impl Iterator<Item = u64>) -> Option<Self> {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let (n, least, most) = (values.len(), *values.first()?, *values.last()?);
        Some(Self {
            n,
            // Between any value and what never happened there is nothing but that.
            median: if values[n / 2] == NEVER { NEVER } else { values[(n - 1) / 2].midpoint(values[n / 2]) },
            interval: outside(n).map(|outside| (values[outside], values[n - 1 - outside])),
            p99: (n >= P99).then(|| values[(n * 99).div_ceil(100) - 1]),
            p99_interval: outside_p99(n).map(|(below, above)| (values[below], values[n - 1 - above])),
            least,
            most,
        })
    }

    /// The median with its interval, each value as `text` has it.
    pub(crate) fn text(&self, text: impl Fn(u64) -> String) -> String {
        let interval = self.interval.map(|(low, high)| format!(" [{}, {}]", text(low), text(high)));
        text(self.median) + &interval.unwrap_or_default()
    }

    /// How it stands to the other. Where one of the two has too few values for an interval, all of its values have to be on one
    /// side of all of the other's, and that has to be no chance; absent where it is not so.
    pub(crate) fn order(&self, other: &Self) -> Option<Order> {
        let (own, others) = match (self.interval, other.interval) {
            (Some(own), Some(others)) => (own, others),
            _ if by_chance(self.n, other.n) > ERROR => return None,
            _ => ((self.least, self.most), (other.least, other.most)),
        };
        if own.1 < others.0 {
            Some(Order::First)
        } else if others.1 < own.0 {
            Some(Order::Behind)
        } else {
            self.interval.and(other.interval).and(Some(Order::Tied))
        }
    }
}

/// How many times as much one median, or p99, is as another, and between what that is: with 95 % certainty not above the upper end,
/// and with as much not below the lower one, because each is of two ends, each of which is missed on one side
/// in 2.5 of 100 benches. No interval where one of the two has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    pub(crate) interval: Option<(f64, f64)>,
}

impl Summary {
    /// Whether the median is at most so much; absent where that is within its interval, or there is none.
    pub(crate) fn is_at_most(&self, most: u64) -> Option<bool> {
        let (low, high) = self.interval?;
        if high <= most { Some(true) } else { (low > most).then_some(false) }
    }
}

impl Ratio {
    pub(crate) fn of(own: &Summary, other: &Summary) -> Self {
        Self::between((own.median, own.interval), (other.median, other.interval))
    }

    /// The same of p99s. Absent where one of the two has none.
    pub(crate) fn of_p99s(own: &Summary, other: &Summary) -> Option<Self> {
        Some(Self::between((own.p99?, own.p99_interval), (other.p99?, other.p99_interval)))
    }

    fn between(own: (u64, Option<(u64, u64)>), other: (u64, Option<(u64, u64)>)) -> Self {
        let by = |own: u64, other: u64| float(own) / float(other.max(1));
        let ends = |((low, high), (other_low, other_high))| (by(low, other_high), by(high, other_low));
        Self { value: by(own.0, other.0), interval: own.1.zip(other.1).map(ends) }
    }

    /// Whether it is at most so much; absent where that is within the interval, or there is none.
    pub(crate) fn is_at_most(&self, most: f64) -> Option<bool> {
        let (low, high) = self.interval?;
        if high <= most { Some(true) } else { (low > most).then_some(false) }
    }
}

/// How many of `n` sorted values are left out at each end of the interval for their median. A value is above the median
/// as often as a coin shows heads. Absent where even all of them are not enough.
fn outside(n: usize) -> Option<usize> {
    (0..n.div_ceil(2)).take_while(|outside| 2.0 * at_most(*outside, n, 0.5) <= ERROR).last()
}

/// How many of `n` sorted values are left out below and above the interval for their p99. Absent where even all of them are
/// not enough. A value is above the p99 as often as one of a hundred is drawn.
fn outside_p99(n: usize) -> Option<(usize, usize)> {
    const SHARE: f64 = 0.01;
    let above = (0..n).take_while(|above| at_most(*above, n, SHARE) <= ERROR / 2.0).last()?;
    let below = (1..=n).find(|above| 1.0 - at_most(above - 1, n, SHARE) <= ERROR / 2.0)?;
    Some((n - below, above))
}

/// How probable it is that all of `n` values are below all of `m` others that are distributed alike.
fn by_chance(n: usize, m: usize) -> f64 {
    (1..=n).map(|index| count(index) / count(m + index)).product()
}

/// The share that all possible rounds have at most, where it was seen in `seen` of `n`, with 95 % certainty: the
/// one-sided bound of Clopper and Pearson, which with none seen is close to 3/n. Absent without rounds.
pub(crate) fn share_at_most(seen: usize, n: usize) -> Option<f64> {
    if seen >= n {
        return (n > 0).then_some(1.0);
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if at_most(seen, n, middle) > ERROR { low = middle } else { high = middle }
    }
    Some(high)
}

/// How probable it is to see something at most so often in `n` rounds, if it has this share of all; between 0 and 1.
fn at_most(seen: usize, n: usize, share: f64) -> f64 {
    // Logarithms, because the single terms may be smaller than any number.
    let mut term = count(n) * (1.0 - share).ln();
    let mut sum = term.exp();
    for index in 1..=seen {
        term += (count(n - index + 1) / count(index)).ln() + (share / (1.0 - share)).ln();
        sum += term.exp();
    }
    sum
}

fn count(n: usize) -> f64 {
    float(n as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(values: &[u64]) -> Summary {
        Summary::of(values.iter().copied()).expect("values")
    }

    #[test]
    fn a_median_is_the_middle_and_a_p99_takes_a_hundred() {
        assert_eq!(Summary::of(std::iter::empty()), None);
        let one = Summary { n: 1, median: 7, interval: None, p99: None, p99_interval: None, least: 7, most: 7 };
        assert_eq!(summary(&[7]), one);
        assert_eq!(summary(&[9, 1, 4, 2]).median, 3);
        let ninety_nine: Vec<u64> = (1..=99).collect();
        assert_eq!((summary(&ninety_nine).p99, summary(&ninety_nine).median), (None, 50));
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!((summary(&hundred).p99, summary(&hundred).most), (Some(99), 100));
        let many: Vec<u64> = (1..=250).collect();
        assert_eq!(summary(&many).p99, Some(248));
    }

    #[test]
    fn what_never_happened_is_more_than_any_value() {
        assert_eq!(summary(&[1, NEVER, 3]).median, 3);
        assert_eq!(summary(&[1, NEVER]).median, NEVER);
        let half = summary(&[1, 2, 3, NEVER, NEVER, NEVER]);
        assert_eq!((half.median, half.interval, half.most), (NEVER, Some((1, NEVER)), NEVER));
    }

    /// The ranks are those of the tables for the sign test.
    #[test]
    fn an_interval_has_the_ranks_of_the_sign_test() {
        for (n, expected) in
            [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (10, Some(1)), (20, Some(5)), (100, Some(39))]
        {
            assert_eq!(outside(n), expected, "{n}");
        }
        let values: Vec<u64> = (1..=20).collect();
        assert_eq!(summary(&values).interval, Some((6, 15)));
        assert!(outside(5000).is_some_and(|outside| (2400..2500).contains(&outside)));
    }

    /// The number of values above the p99 is binomial: of 3,000 it is within 20 to 41, and as improbable beside it on each
    /// side (quantiles 0.025 and 0.975 of Bin(3000, 0.01)).
    #[test]
    fn the_interval_of_a_p99_has_the_ranks_of_the_binomial_distribution() {
        assert_eq!(outside_p99(367), None);
        assert_eq!(outside_p99(368).map(|(_, above)| above), Some(0));
        let values: Vec<u64> = (1..=3000).collect();
        let summary = summary(&values);
        assert_eq!((summary.p99, summary.p99_interval), (Some(2970), Some((2959, 2981))));
        let doubled = self::summary(&values.iter().map(|value| value * 2).collect::<Vec<_>>());
        let ratio = Ratio::of_p99s(&doubled, &summary).expect("values enough");
        assert!((ratio.value - 2.0).abs() < 1e-9);
        assert_eq!(ratio.interval, Some((5918.0 / 2981.0, 5962.0 / 2959.0)));
        assert_eq!(Ratio::of_p99s(&doubled, &self::summary(&[7])), None);
    }

    #[test]
    fn a_tie_takes_intervals_that_overlap_and_few_values_have_to_be_apart() {
        let of = |n: u64, from: u64| summary(&(from..from + n).collect::<Vec<_>>());
        for (own, other, expected) in [
            (of(6, 10), of(6, 16), Some(Order::First)),
            (of(6, 15), of(6, 10), Some(Order::Tied)),
            (of(6, 16), of(6, 10), Some(Order::Behind)),
            // One of ten pairs of three and two is so by chance, and one of twenty of three and three.
            (of(3, 10), of(2, 20), None),
            (of(3, 10), of(3, 20), Some(Order::First)),
            (of(3, 20), of(3, 10), Some(Order::Behind)),
            (of(3, 10), of(3, 12), None),
            (of(3, 12), of(3, 10), None),
            (of(20, 10), of(1, 9), Some(Order::Behind)),
            (of(20, 10), of(1, 30), Some(Order::First)),
            (of(20, 10), of(1, 29), None),
            (of(18, 10), of(1, 9), None),
        ] {
            assert_eq!(own.order(&other), expected, "{own:?} {other:?}");
        }
    }

    #[test]
    fn a_ratio_is_undecided_within_its_interval() {
        let own = summary(&[30, 32, 34, 36, 38, 40]);
        let other = summary(&[20, 20, 20, 20, 25, 25]);
        let ratio = Ratio::of(&own, &other);
        assert_eq!(ratio, Ratio { value: 1.75, interval: Some((1.2, 2.0)) });
        for (most, expected) in [(2.0, Some(true)), (1.9, None), (1.2, None), (1.1, Some(false))] {
            assert_eq!(ratio.is_at_most(most), expected, "{most}");
        }
        let few = Ratio::of(&summary(&[30]), &other);
        assert_eq!((few.value, few.interval, few.is_at_most(9.0)), (1.5, None, None));
    }

    #[test]
    fn bounds_are_those_of_clopper_and_pearson() {
        // None seen: 1 - 0.05^(1/n).
        for (seen, n, expected) in
            [(0, 20, 0.139), (0, 100, 0.0295), (0, 620, 0.00482), (1, 20, 0.2161), (5, 100, 0.1023), (19, 20, 0.9974)]
        {
            let found = share_at_most(seen, n).expect("rounds");
            assert!((found - expected).abs() < 0.001 * expected.max(0.1), "{seen} of {n}: {found}");
        }
        assert_eq!((share_at_most(0, 0), share_at_most(3, 3)), (None, Some(1.0)));
        // Smaller than any number where it is multiplied out.
        assert!(share_at_most(0, 5000).is_some_and(|share| (0.0005..0.0007).contains(&share)));
    }
}
