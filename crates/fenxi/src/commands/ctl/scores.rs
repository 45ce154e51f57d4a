//! The answer of `fenxi ctl model scores` as text.

use super::{or_dash, table};
use crate::figures::{counted, grouped, scaled};
use crate::protocol::{ScoredBand, ScoredModel, ScoredTask};

pub fn page(tasks: &[ScoredTask]) -> String {
    if tasks.is_empty() {
        return "no task's labels are bands of what flows will do: no bundle has a [target]\n"
            .to_owned();
    }
    tasks.iter().map(of_task).collect()
}

fn of_task(task: &ScoredTask) -> String {
    let edges: Vec<String> = task.edges.iter().map(|edge| grouped(*edge)).collect();
    let mut page = format!("{}: {}, edges {}\n", task.task, task.of, edges.join("; "));
    if task.models.is_empty() {
        page += "no flow with a band has ended yet\n";
    }
    page + &task.models.iter().map(of_model).collect::<String>()
}

fn of_model(model: &ScoredModel) -> String {
    let error = model.calibration_error.map_or("-".to_owned(), |it| format!("{it:.3}"));
    let head = format!(
        "model generation {}: {}, {} more cut; calibration error {error}\n",
        model.model_generation,
        counted(model.flows, "flow"),
        grouped(model.cut)
    );
    head + &table(
        "label|said|proved|precision|recall|bytes to come|share",
        model.bands.iter().map(band_row),
    )
}

fn band_row(band: &ScoredBand) -> Vec<String> {
    let share = |share: Option<f64>| or_dash(&share.map(|it| format!("{it:.3}")));
    vec![
        band.label.clone(),
        grouped(band.said),
        grouped(band.proved),
        share(band.precision),
        share(band.recall),
        scaled(band.bytes as f64).trim_end().to_owned(),
        share(band.bytes_share),
    ]
}
