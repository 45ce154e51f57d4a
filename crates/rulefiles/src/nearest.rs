//! Suggests what a wrong word was meant to be.

/// `; did you mean NAME?` if a candidate is near, otherwise `; there are ...`.
pub fn suggest<'a>(wrong: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let candidates: Vec<&str> = candidates.collect();
    match policy::nearest(&wrong.replace('-', "_"), candidates.iter().copied()) {
        Some(name) => format!("; did you mean {name}?"),
        None if candidates.is_empty() => "; there are none".to_owned(),
        None => format!("; there are {}", candidates[..candidates.len().min(24)].join(", ")),
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
