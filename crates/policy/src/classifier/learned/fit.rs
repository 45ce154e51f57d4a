//! Fits a net to points: the lines of least error that its neurons allow.
//!
//! The papers train by gradient descent on 4,096 samples. But a net of eight ReLU neurons with one
//! input is eight straight lines, and lines within a corridor around sorted points are found in one
//! pass (Neumann and Michel, Smooth Interpolating Histograms with Error Guarantees, BNCOD 2008;
//! RadixSpline, aiDM 2020). A search over the width finds the narrowest corridor for eight lines.
//! It takes microseconds and bounds the greatest error, which determines the cost of a look-up;
//! descent reduces the mean.

use super::net::{Knot, NEURONS};

/// Maximum points; of more, evenly spaced ones are used (OVS paper, §5.2 and §7.1: 4,096 samples).
pub(super) const SAMPLES_MAX: usize = 4096;

/// Steps of the search for the corridor's width.
const STEPS: usize = 12;

/// Knots of lines close to `points`, which are sorted by x: at most one more than a net's neurons.
pub(super) fn fit(points: &[Knot]) -> Vec<Knot> {
    let highest = points.iter().map(|point| point.y).fold(0.0, f64::max);
    let lowest = points.iter().map(|point| point.y).fold(f64::INFINITY, f64::min);
    let mut found = ends(points);
    let (mut narrow, mut wide) = (0.0, (highest - lowest).max(0.0));
    for step in 0..STEPS {
        // The best width is far closer to 0, so the first steps favour small widths.
        let width = match step {
            0..=5 => narrow + (wide - narrow) / 8.0,
            _ => narrow.midpoint(wide),
        };
        match lines_within(points, width) {
            Some(knots) => {
                found = knots;
                wide = width;
            }
            None => narrow = width,
        }
    }
    found
}

/// The line from the first to the last point.
fn ends(points: &[Knot]) -> Vec<Knot> {
    match points {
        [first, .., last] if first.x < last.x => vec![*first, *last],
        [first, ..] => vec![*first],
        [] => Vec::new(),
    }
}

/// Lines between points that pass every point within `width`; `None` if a net has too few neurons.
fn lines_within(points: &[Knot], width: f64) -> Option<Vec<Knot>> {
    let (&first, rest) = points.split_first()?;
    let mut knots = Vec::with_capacity(NEURONS + 1);
    knots.push(first);
    let mut origin = first;
    let mut before = first;
    let (mut least, mut most) = (f64::NEG_INFINITY, f64::INFINITY);
    for &point in rest {
        let run = point.x - origin.x;
        if run <= 0.0 {
            continue;
        }
        let slope = (point.y - origin.y) / run;
        if before != origin && (slope < least || slope > most) {
            // The corridor ends at the previous point, where the next line starts.
            if knots.len() == NEURONS {
                return None;
            }
            knots.push(before);
            origin = before;
            let run = point.x - origin.x;
            least = (point.y - width - origin.y) / run;
            most = (point.y + width - origin.y) / run;
        } else {
            least = least.max((point.y - width - origin.y) / run);
            most = most.min((point.y + width - origin.y) / run);
        }
        before = point;
    }
    if before != origin {
        knots.push(before);
    }
    Some(knots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_lines_are_found_exactly() {
        // Eight slopes, a hundred points each.
        let mut point = Knot { x: 0.0, y: 0.0 };
        let mut points = vec![point];
        for slope in [1.0, 5.0, 0.5, 9.0, 0.0, 2.0, 30.0, 1.0] {
            for _ in 0..100 {
                point = Knot { x: point.x + 1.0, y: point.y + slope };
                points.push(point);
            }
        }
        let knots = fit(&points);
        assert!(knots.len() <= NEURONS + 1);
        let off = |at: &Knot| {
            let after = knots.iter().position(|knot| knot.x >= at.x).unwrap().max(1);
            let (from, to) = (knots[after - 1], knots[after]);
            (from.y + (to.y - from.y) * (at.x - from.x) / (to.x - from.x) - at.y).abs()
        };
        let worst = points.iter().map(off).fold(0.0, f64::max);
        assert!(worst < 4.0, "{worst}");
    }

    #[test]
    fn few_and_equal_points_are_fitted() {
        let at = |x, y| Knot { x, y };
        assert_eq!(fit(&[]), []);
        assert_eq!(fit(&[at(0.0, 0.5)]), [at(0.0, 0.5)]);
        assert_eq!(fit(&[at(0.0, 0.5), at(0.0, 1.5)]), [at(0.0, 0.5)]);
        let knots = fit(&[at(0.0, 0.5), at(0.4, 1.5), at(1.0, 2.5)]);
        assert_eq!(knots.first(), Some(&at(0.0, 0.5)));
        assert_eq!(knots.last(), Some(&at(1.0, 2.5)));
    }
}
