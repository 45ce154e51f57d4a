//! Numbers as people read them.

/// Three digits or so, with the prefix of the unit that follows: `12.3 k`.
pub fn scaled(value: f64) -> String {
    let (value, prefix) = match value {
        v if v >= 999.5e6 => (v / 1e9, "G"),
        v if v >= 999.5e3 => (v / 1e6, "M"),
        v if v >= 999.5 => (v / 1e3, "k"),
        v => return format!("{v:.0} "),
    };
    let digits = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {prefix}")
}

/// A count with its thousands apart: `1,234`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A time in its two largest units: `4.2s`, `3m07s`, `2h05m`, `6d04h`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

/// The noun as it stands behind a number: `rule`, `rules`.
pub fn plural(count: u64, noun: &str) -> String {
    match count {
        1 => noun.to_owned(),
        _ => format!("{noun}s"),
    }
}

/// A count with its noun: `1,234 rules`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {}", grouped(count), plural(count, noun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        let counts = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let times = [0.04, 9.9, 59.0, 187.0, 7500.0, 532_800.0].map(duration);
        assert_eq!(times, ["0.0s", "9.9s", "59s", "3m07s", "2h05m", "6d04h"]);
        let rates = [0.0, 12.4, 999.4, 999.6, 12_345.0, 123_456.0, 1.5e6, 2.0e9].map(scaled);
        assert_eq!(rates, ["0 ", "12 ", "999 ", "1.00 k", "12.3 k", "123 k", "1.50 M", "2.00 G"]);
    }
}
