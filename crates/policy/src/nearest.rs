//! What a word that is wrong was most likely meant to be.

/// The candidate that `wrong` was most likely meant to be, if any is near.
///
/// Slips in the whole path count, the right name in the wrong section (`k`, `tag.k` for `flow.k`),
/// and a name cut short (`flow.idle` for `flow.idle_timeout_s`).
pub fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Three quarters lets one slip pass in a word of four letters.
    const NEAR: f64 = 0.75;
    const CUT_SHORT: f64 = 0.8;
    // The right name elsewhere ranks below an equal likeness of the whole path.
    const ELSEWHERE: f64 = 0.95;
    let wrong = wrong.to_ascii_lowercase();
    let wrong_name = wrong.rsplit('.').next().unwrap_or(&wrong);
    let likeness = |candidate: &str| {
        let candidate = candidate.to_ascii_lowercase();
        let name = candidate.rsplit('.').next().unwrap_or(&candidate);
        let whole = strsim::normalized_damerau_levenshtein(&wrong, &candidate);
        let elsewhere = ELSEWHERE * strsim::normalized_damerau_levenshtein(wrong_name, name);
        let is_cut_short = wrong_name.len() > 2 && candidate.starts_with(&wrong);
        whole.max(elsewhere).max(if is_cut_short { CUT_SHORT } else { 0.0 })
    };
    candidates
        .into_iter()
        .map(|candidate| (likeness(candidate), candidate))
        .filter(|(likeness, _)| *likeness >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// "; did you mean ...?", where something is near.
pub fn suggest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, candidates).map_or(String::new(), |near| format!("; did you mean {near}?"))
}
