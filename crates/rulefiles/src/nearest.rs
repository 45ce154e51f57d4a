//! Suggests what a wrong word was meant to be.

/// `; did you mean NAME?` if a candidate is near, otherwise `; there are ...`.
pub fn suggest<'a>(wrong: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let candidates: Vec<&str> = candidates.collect();
    // Three quarters allows one typo in a word of four letters.
    const NEAR: f64 = 0.75;
    let wrong = wrong.to_ascii_lowercase().replace('-', "_");
    let near = candidates.iter().map(|&name| {
        let likeness = strsim::normalized_damerau_levenshtein(&wrong, &name.to_ascii_lowercase());
        let is_cut_short = wrong.len() > 2 && name.starts_with(&wrong);
        (if is_cut_short { likeness.max(NEAR) } else { likeness }, name)
    });
    let best = near.max_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((likeness, name)) if likeness >= NEAR => format!("; did you mean {name}?"),
        Some(_) => {
            let first: Vec<&str> = candidates.into_iter().take(24).collect();
            format!("; there are {}", first.join(", "))
        }
        None => "; there are none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::suggest;

    #[test]
    fn a_slip_is_recognised() {
        let known = ["source", "destination", "source_port", "dscp"];
        let suggest = |wrong| suggest(wrong, known.iter().copied());
        assert_eq!(suggest("sorce"), "; did you mean source?");
        assert_eq!(suggest("Source-Port"), "; did you mean source_port?");
        assert_eq!(suggest("dest"), "; did you mean destination?");
        assert_eq!(suggest("colour"), "; there are source, destination, source_port, dscp");
    }
}
