//! Labels that are bands of what flows will do: how they have held, and what they mean in words.

use accel::Target;
use dataplane::tasks::TaskNames;
use flowmgr::{ModelScore, Score, TaskScores};

use crate::figures::{duration, scaled};
use crate::protocol::{ScoredBand, ScoredModel, ScoredTask};

/// The scores of all tasks whose labels are bands.
pub fn of_tasks(names: &[TaskNames], scores: &[TaskScores]) -> Vec<ScoredTask> {
    let of = |(names, scores): (&TaskNames, &TaskScores)| {
        let target = names.target.as_ref()?;
        let models = scores.by_model().into_iter().map(|it| of_model(it, &names.classes));
        Some(ScoredTask {
            task: names.name.to_string(),
            of: target.of.name().to_owned(),
            edges: target.edges.clone(),
            models: models.collect(),
        })
    };
    names.iter().zip(scores).filter_map(of).collect()
}

fn of_model(ModelScore { model, score }: &ModelScore, classes: &[String]) -> ScoredModel {
    let all_bytes = score.bytes.iter().sum();
    let bands = classes.iter().zip(&score.bytes).enumerate();
    let bands = bands.filter_map(|(class, (label, &bytes))| {
        let said = score.flows_of(class).iter().sum();
        if said == 0 && class == score.bands() {
            return None; // Nothing was unknown.
        }
        let (proved, hits) = (proved(score, class), score.flows_of(class).get(class));
        let hits = hits.copied().unwrap_or(0);
        Some(ScoredBand {
            label: label.clone(),
            said,
            proved,
            hits,
            precision: share(hits, said),
            recall: share(hits, proved),
            bytes,
            bytes_share: share(bytes, all_bytes),
        })
    });
    ScoredModel {
        model_generation: *model,
        flows: score.judged(),
        cut: score.cut,
        calibration_error: score.calibration_error(),
        bands: bands.collect(),
    }
}

/// Flows that proved to be of a band, whatever was said; none for `unknown`.
fn proved(score: &Score, band: usize) -> u64 {
    (0..score.bytes.len()).filter_map(|said| score.flows_of(said).get(band)).sum()
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// A band in words; `None` for `unknown`.
pub fn band(target: &Target, class: usize) -> Option<String> {
    let shown = |edge: u64| match target.of.as_str() {
        "duration" => duration(edge as f64 / 1e6),
        "rate" => format!("{}B/s", scaled(edge as f64)),
        _ => format!("{}B", scaled(edge as f64)),
    };
    let from = class.checked_sub(1).map(|below| target.edges.get(below).copied());
    Some(match (from, target.edges.get(class)) {
        (None, to) => format!("less than {} to come", shown(*to?)),
        (Some(from), Some(&to)) => format!("{} to {} to come", shown(from?), shown(to)),
        (Some(from), None) => format!("{} or more to come", shown(from?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_are_said_with_their_edges() {
        let said = |of: &str, edges: [u64; 2]| {
            let target = Target { of: of.to_owned(), edges: edges.into() };
            [0, 1, 2, 3].map(|class| band(&target, class).unwrap_or_default())
        };
        assert_eq!(
            said("volume", [10_000, 1_000_000]),
            [
                "less than 10.0 kB to come",
                "10.0 kB to 1.00 MB to come",
                "1.00 MB or more to come",
                ""
            ]
        );
        let [_, duration, ..] = said("duration", [2_000_000, 187_000_000]);
        assert_eq!(duration, "2.0s to 3m07s to come");
        assert_eq!(said("rate", [500, 20_000])[2], "20.0 kB/s or more to come");
    }
}
