//! What the label of a flow says about the class of its host.
//!
//! A host's class is the class with the largest sum of log p over the host's flows. A label comes
//! with the probability p of its own class only, so the rest, 1 - p, is divided among the other
//! classes: in the bundle's shares of flows that wrongly get this label, and equally among classes
//! that the bundle does not list. `docs/model.md` says what this costs, compared with the sum over
//! all of the model's outputs.

use accel::HostLabels;

/// Added to each probability, so that no single flow rules a class out.
const FLOOR: f64 = 1e-4;

#[derive(Debug)]
pub struct Evidence {
    /// For each class, what flows that wrongly get it are: other classes with their shares.
    confusions: Vec<Vec<(u16, f64)>>,
}

impl Evidence {
    /// With the confusions of a bundle; `labels` is the number of its labels without `unknown`.
    pub fn new(hosts: &HostLabels, labels: usize) -> Evidence {
        let mut confusions = vec![Vec::new(); labels];
        for it in &hosts.confusions {
            confusions[it.named].push((it.label as u16, f64::from(it.share)));
        }
        Evidence { confusions }
    }

    /// How many classes there are, without `unknown`.
    pub fn classes(&self) -> usize {
        self.confusions.len()
    }

    /// Adds a flow with this class, which is not `unknown`, and confidence, 0 to 1.
    pub fn add(&self, scores: &mut Scores, class: u16, confidence: f64) {
        let Some(confusions) = self.confusions.get(usize::from(class)) else {
            return;
        };
        let rest = 1.0 - confidence;
        let shared: f64 = confusions.iter().map(|(_, share)| share).sum();
        let others = self.classes().saturating_sub(1 + confusions.len());
        let of_another = rest * (1.0 - shared).max(0.0) / others.max(1) as f64;
        let of_another = (of_another + FLOOR).ln();
        scores.raise(class, (confidence + FLOOR).ln() - of_another);
        for &(other, share) in confusions {
            scores.raise(other, (rest * share + FLOOR).ln() - of_another);
        }
    }

    /// The likeliest class of a host and its probability; `None` before the first flow.
    pub fn likeliest(&self, scores: &Scores) -> Option<(u16, f64)> {
        let best = scores.0.iter().copied();
        // Of equally likely classes the first that was named.
        let (class, _) = best.reduce(|best, it| if it.1 > best.1 { it } else { best })?;
        Some((class, self.probability(scores, class)))
    }

    /// The probability of a class, by the scores of all.
    pub fn probability(&self, scores: &Scores, class: u16) -> f64 {
        let largest = scores.0.iter().fold(0.0_f64, |most, it| most.max(it.1));
        let others = self.classes().saturating_sub(scores.0.len()) as f64;
        let sum: f64 = scores.0.iter().map(|it| (it.1 - largest).exp()).sum();
        let score = scores.get(class);
        (score - largest).exp() / (sum + others * (-largest).exp())
    }
}

/// A host's sums of log p, for each class that some flow has spoken for. All other classes share
/// one sum, which is subtracted.
#[derive(Debug, Default)]
pub struct Scores(Vec<(u16, f64)>);

impl Scores {
    fn raise(&mut self, class: u16, by: f64) {
        match self.0.iter_mut().find(|it| it.0 == class) {
            Some((_, score)) => *score += by,
            None => self.0.push((class, by)),
        }
    }

    fn get(&self, class: u16) -> f64 {
        let found = self.0.iter().find(|it| it.0 == class);
        found.map_or(0.0, |it| it.1)
    }
}

#[cfg(test)]
mod tests {
    use accel::Confusion;

    use super::*;

    const CLASSES: usize = 5;

    fn evidence(confusions: &[(usize, usize, f32)]) -> Evidence {
        let confusions = confusions.iter();
        let confusions = confusions.map(|&(named, label, share)| Confusion { named, label, share });
        let hosts = HostLabels {
            flows: 20,
            min_flows: 1,
            confidence: 0.9,
            confusions: confusions.collect(),
        };
        Evidence::new(&hosts, CLASSES)
    }

    /// The sum as it is defined: of every class, over rows of probabilities.
    fn by_rows(rows: &[[f64; CLASSES]]) -> [f64; CLASSES] {
        let mut sums = [0.0; CLASSES];
        for row in rows {
            for (sum, p) in sums.iter_mut().zip(row) {
                *sum += (p + FLOOR).ln();
            }
        }
        let largest = sums.iter().copied().fold(f64::MIN, f64::max);
        let weights = sums.map(|sum| (sum - largest).exp());
        let all: f64 = weights.iter().sum();
        weights.map(|weight| weight / all)
    }

    #[track_caller]
    fn assert_same(evidence: &Evidence, scores: &Scores, rows: &[[f64; CLASSES]]) {
        for (class, expected) in by_rows(rows).into_iter().enumerate() {
            let found = evidence.probability(scores, class as u16);
            assert!((found - expected).abs() < 1e-9, "{class}: {found}, {expected}");
        }
    }

    #[test]
    fn the_rest_is_shared_equally_where_nothing_else_is_said() {
        let evidence = evidence(&[]);
        let mut scores = Scores::default();
        assert_eq!(evidence.likeliest(&scores), None);
        evidence.add(&mut scores, 2, 0.8);
        assert_same(&evidence, &scores, &[[0.05, 0.05, 0.8, 0.05, 0.05]]);
        evidence.add(&mut scores, 4, 0.6);
        let rows = [[0.05, 0.05, 0.8, 0.05, 0.05], [0.1, 0.1, 0.1, 0.1, 0.6]];
        assert_same(&evidence, &scores, &rows);
        let (class, _) = evidence.likeliest(&scores).unwrap();
        assert_eq!(class, 2);
    }

    #[test]
    fn confusions_say_how_the_rest_is_shared() {
        let evidence = evidence(&[(2, 0, 0.5), (2, 1, 0.25)]);
        let mut scores = Scores::default();
        evidence.add(&mut scores, 2, 0.6);
        evidence.add(&mut scores, 0, 0.8);
        let rows = [[0.2, 0.1, 0.6, 0.05, 0.05], [0.8, 0.05, 0.05, 0.05, 0.05]];
        assert_same(&evidence, &scores, &rows);
    }

    #[test]
    fn a_class_that_is_often_taken_for_another_is_not_ruled_out_by_it() {
        // Flows of class 1 get label 0 now and then; those that get label 1 are right.
        let evidence = evidence(&[(0, 1, 0.9)]);
        let mut scores = Scores::default();
        evidence.add(&mut scores, 0, 0.9);
        evidence.add(&mut scores, 0, 0.9);
        assert_eq!(evidence.likeliest(&scores).map(|it| it.0), Some(0));
        evidence.add(&mut scores, 1, 0.99);
        let (class, confidence) = evidence.likeliest(&scores).unwrap();
        assert!(class == 1 && confidence > 0.5, "{class} {confidence}");
    }

    #[test]
    fn numbers_stay_finite() {
        let evidence = evidence(&[(0, 1, 1.0)]);
        let mut scores = Scores::default();
        for confidence in [0.0, 1.0] {
            for _ in 0..256 {
                evidence.add(&mut scores, 0, confidence);
                evidence.add(&mut scores, 3, confidence);
            }
            let sum: f64 =
                (0..CLASSES as u16).map(|class| evidence.probability(&scores, class)).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        }
        // Unknown is no class of a host.
        evidence.add(&mut scores, CLASSES as u16, 1.0);
        assert_eq!(
            evidence.probability(&scores, CLASSES as u16 + 1),
            evidence.probability(&scores, 4)
        );
    }
}
