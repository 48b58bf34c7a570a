//! What is counted before and after a load, and which of it did not come back.

use std::fmt;

use crate::bed::Outcome;

/// How much more memory may be in use than at the baseline.
pub(super) const GROWTH_BYTES_MAX: i64 = 5 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It may differ from the baseline by the limit: allocators and buffers keep some.
    Bytes,
    /// It has to be what it was.
    Count,
}

#[derive(Debug, Clone)]
struct Figure {
    name: &'static str,
    kind: Kind,
    value: i64,
}

/// Everything that is measured at one moment, in the order in which it is told.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures(Vec<Figure>);

impl Figures {
    pub(super) fn bytes(&mut self, name: &'static str, value: u64) -> Outcome<()> {
        self.0.push(Figure { name, kind: Kind::Bytes, value: value.try_into()? });
        Ok(())
    }

    pub(super) fn count(&mut self, name: &'static str, value: u64) -> Outcome<()> {
        self.0.push(Figure { name, kind: Kind::Count, value: value.try_into()? });
        Ok(())
    }

    /// Whether all that has to come back exactly is the same.
    pub(super) fn counts_as(&self, other: &Figures) -> bool {
        let counts = |figures: &Figures| -> Vec<i64> {
            let counts = figures.0.iter().filter(|figure| figure.kind == Kind::Count);
            counts.map(|figure| figure.value).collect()
        };
        counts(self) == counts(other)
    }

    /// Whether nothing is left over from the baseline.
    pub(super) fn is_back(&self, baseline: &Figures) -> bool {
        self.0.iter().zip(&baseline.0).all(|(now, before)| !now.strays_from(before))
    }
}

impl Figure {
    fn strays_from(&self, baseline: &Figure) -> bool {
        match self.kind {
            Kind::Bytes => self.value - baseline.value > GROWTH_BYTES_MAX,
            Kind::Count => self.value != baseline.value,
        }
    }
}

/// A load in parts: what there was before, and after each part.
pub(super) struct Course {
    pub(super) before: Figures,
    pub(super) after: Vec<Figures>,
}

impl Course {
    fn last(&self) -> &Figures {
        self.after.last().unwrap_or(&self.before)
    }

    /// The names of what did not come back.
    pub(super) fn strays(&self) -> Vec<&'static str> {
        let pairs = self.last().0.iter().zip(&self.before.0);
        pairs.filter(|(now, before)| now.strays_from(before)).map(|(now, _)| now.name).collect()
    }

    /// The growth of one figure since the baseline, after each part.
    fn growth(&self, at: usize) -> Vec<i64> {
        self.after.iter().map(|figures| figures.0[at].value - self.before.0[at].value).collect()
    }
}

/// By how much a figure would grow over as many parts as there are, if it went on as in the second half. What is set aside once
/// shows in the first parts only; what leaks goes on.
fn slope(growth: &[i64]) -> i64 {
    let half = growth.len() / 2;
    match (growth.get(half.wrapping_sub(1)), growth.last()) {
        (Some(middle), Some(last)) => (last - middle) * growth.len() as i64 / (growth.len() - half) as i64,
        _ => 0,
    }
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:<26} {:>12} {:>12} {:>11} {:>11}", "", "before", "after", "growth", "slope")?;
        for (at, (now, before)) in self.last().0.iter().zip(&self.before.0).enumerate() {
            let growth = self.growth(at);
            write!(
                f,
                "  {:<26} {:>12} {:>12} {:>+11} {:>+11}",
                now.name,
                before.value,
                now.value,
                now.value - before.value,
                slope(&growth)
            )?;
            if now.kind == Kind::Bytes {
                let parts: Vec<String> = growth.iter().map(|bytes| format!("{:+}", bytes / 1024)).collect();
                write!(f, "   KiB by part: {}", parts.join(" "))?;
            }
            writeln!(f, "{}", if now.strays_from(before) { "   RED" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(bytes: u64, count: u64) -> Figures {
        let mut figures = Figures::default();
        figures.bytes("memory", bytes).unwrap();
        figures.count("keys", count).unwrap();
        figures
    }

    #[test]
    fn memory_may_grow_to_the_limit_and_shrink_and_counts_may_do_neither() {
        let limit = GROWTH_BYTES_MAX.unsigned_abs();
        let strays = |after| Course { before: figures(10 * limit, 7), after: vec![after] }.strays();
        assert_eq!(strays(figures(11 * limit, 7)), [""; 0]);
        assert_eq!(strays(figures(0, 7)), [""; 0]);
        assert_eq!(strays(figures(11 * limit + 1, 7)), ["memory"]);
        assert_eq!(strays(figures(0, 6)), ["keys"]);
        assert_eq!(strays(figures(11 * limit + 1, 8)), ["memory", "keys"]);
    }

    #[test]
    fn only_the_last_part_decides() {
        let course = Course { before: figures(0, 7), after: vec![figures(0, 8), figures(0, 7)] };
        assert_eq!(course.strays(), [""; 0]);
    }

    #[test]
    fn what_is_set_aside_once_has_no_slope_and_what_goes_on_has_that_of_all_parts() {
        assert_eq!(slope(&[90, 100, 100, 100]), 0);
        assert_eq!(slope(&[10, 20, 30, 40]), 40);
        assert_eq!(slope(&[10, 20, 30, 40, 50]), 50);
        assert_eq!(slope(&[10]), 0);
        assert_eq!(slope(&[]), 0);
    }
}
