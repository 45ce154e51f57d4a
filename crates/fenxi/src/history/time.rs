//! Times that people write: `yesterday`, `7d`, `2026-11-26 14:00`, in local time.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

const HOUR_S: i64 = 3600;

/// The time that `text` means; it is the beginning of the day that it names.
pub fn parse(text: &str, now: &Zoned) -> Result<Zoned, String> {
    let start = |day: Result<Zoned, jiff::Error>| day.and_then(|day| day.start_of_day());
    let zone = now.time_zone().clone();
    let time = match text {
        "now" => Ok(now.clone()),
        "today" => now.start_of_day(),
        "yesterday" => start(now.yesterday()),
        _ => match ago(text) {
            Some(span) => now.checked_sub(span),
            None => match (text.parse::<Date>(), text.replacen(' ', "T", 1).parse::<DateTime>()) {
                (Ok(date), _) if text.len() <= "2026-11-26".len() => date.to_zoned(zone),
                (_, Ok(time)) => time.to_zoned(zone),
                _ => return Err(expected(text)),
            },
        },
    };
    time.map_err(|_| expected(text))
}

fn expected(text: &str) -> String {
    format!(
        "{text:?} is no time; write now, today, yesterday, 24h, 7d, 2026-11-26 or \
         \"2026-11-26 14:00\""
    )
}

/// `24h`, `7d`.
fn ago(text: &str) -> Option<Span> {
    // Zeros in front would make a link of the page long.
    let number = |number: &str| match number.len() {
        ..=10 => number.parse::<u32>().ok().map(i64::from),
        _ => None,
    };
    match (text.strip_suffix('h'), text.strip_suffix('d')) {
        (Some(hours), _) => Span::new().try_hours(number(hours)?).ok(),
        (_, Some(days)) => Span::new().try_days(number(days)?).ok(),
        _ => None,
    }
}

/// The hour in which a time lies, since the epoch.
pub fn hour(time: &Zoned) -> i64 {
    time.timestamp().as_second().div_euclid(HOUR_S)
}

/// The end of the hour in which a time lies; a time at which an hour begins is the end of the one
/// before.
pub fn hour_end(time: &Zoned) -> i64 {
    let timestamp = time.timestamp();
    let is_within = timestamp.subsec_nanosecond() > 0 || timestamp.as_second() % HOUR_S != 0;
    hour(time) + i64::from(is_within)
}

/// The beginning of an hour, as people read it: `2026-11-26 14:00 +01:00`.
pub fn shown(hour: i64, zone: &TimeZone) -> String {
    let time = Timestamp::from_second(hour.saturating_mul(HOUR_S)).unwrap_or(Timestamp::MAX);
    time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M %:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, now: &str) -> String {
        let now: Zoned = now.parse().unwrap();
        let time = parse(text, &now);
        time.map_or_else(|why| why, |time| time.strftime("%F %T %:z").to_string())
    }

    const NOW: &str = "2026-11-27T19:12:30+01:00[+01:00]";

    #[test]
    fn days_begin_at_midnight_here() {
        for (text, time) in [
            ("now", "2026-11-27 19:12:30 +01:00"),
            ("today", "2026-11-27 00:00:00 +01:00"),
            ("yesterday", "2026-11-26 00:00:00 +01:00"),
            ("24h", "2026-11-26 19:12:30 +01:00"),
            ("7d", "2026-11-20 19:12:30 +01:00"),
            ("2026-03-01", "2026-03-01 00:00:00 +01:00"),
            ("2026-03-01 14:00", "2026-03-01 14:00:00 +01:00"),
            ("2026-03-01T14:30", "2026-03-01 14:30:00 +01:00"),
        ] {
            assert_eq!(parsed(text, NOW), time, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "tomorrow",
            "7w",
            "-1d",
            "99999999999d",
            "00000000007d",
            "4294967295d",
            "2026-13-01",
        ] {
            assert!(parsed(text, NOW).contains("is no time; write now"), "{text}");
        }
    }

    #[test]
    fn an_hour_ends_where_the_next_begins() {
        let at = |text: &str| parse(text, &NOW.parse().unwrap()).unwrap();
        let (sharp, later) = (at("2026-11-26 14:00"), at("2026-11-26 14:01"));
        assert_eq!((hour(&sharp), hour_end(&sharp)), (hour(&later), hour(&sharp)));
        assert_eq!(hour_end(&later), hour(&later) + 1);
        let zone = sharp.time_zone();
        assert_eq!(shown(hour(&later), zone), "2026-11-26 14:00 +01:00");
    }
}
