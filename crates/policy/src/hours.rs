//! Hours of the week at which a rule counts, in local time.

use std::fmt;
use std::str::FromStr;

/// Days from Monday, as rules write them.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// Minutes of a day.
pub const DAY_MINUTES: u16 = 24 * 60;

/// From a minute to another one, on some days. It ends on the next day if it does not end later
/// than it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hours {
    /// Days on which it begins: bit 0 for Monday.
    pub days: u8,
    /// First minute of the day.
    pub from: u16,
    /// The first minute that is no longer in it; [`DAY_MINUTES`] for the end of the day.
    pub to: u16,
}

/// A minute of the week in local time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalTime {
    /// Days since Monday.
    pub day: u8,
    /// Minutes since midnight.
    pub minute: u16,
}

impl Hours {
    /// All days.
    pub const ALL_DAYS: u8 = 0x7f;

    /// Whether a minute is in it.
    pub fn has(&self, time: LocalTime) -> bool {
        let begins_on = |day: u8| self.days >> (day % 7) & 1 != 0;
        let has_begun = begins_on(time.day) && time.minute >= self.from;
        match self.from < self.to {
            true => has_begun && time.minute < self.to,
            false => has_begun || begins_on(time.day + 6) && time.minute < self.to,
        }
    }
}

/// As rules write it: `mon-fri 21:00-06:30`.
impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_daily = self.days == Hours::ALL_DAYS;
        let is_whole = (self.from, self.to) == (0, DAY_MINUTES);
        if !is_daily || is_whole {
            f.write_str(&days_text(self.days))?;
        }
        if !is_daily && !is_whole {
            f.write_str(" ")?;
        }
        let clock = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        match is_whole {
            true => Ok(()),
            false => write!(f, "{}-{}", clock(self.from), clock(self.to)),
        }
    }
}

/// A text is neither hours nor a minute of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected days and hours such as \"mon-fri 21:00-06:30\", \"sat,sun\" or \"08:00-17:00\"")]
pub struct NotHours;

/// `mon-fri 21:00-06:30`, `sat,sun`, `08:00-17:00`.
impl FromStr for Hours {
    type Err = NotHours;

    fn from_str(text: &str) -> Result<Hours, NotHours> {
        let mut parts = text.split_whitespace();
        let (first, second, third) = (parts.next(), parts.next(), parts.next());
        let (days, clock) = match (first, second, third) {
            (Some(clock), None, None) if clock.contains(':') => (None, Some(clock)),
            (Some(days), clock, None) => (Some(days), clock),
            _ => return Err(NotHours),
        };
        let days = days.map_or(Some(Hours::ALL_DAYS), days_of).ok_or(NotHours)?;
        let (from, to) = clock.map_or(Some((0, DAY_MINUTES)), clock_of).ok_or(NotHours)?;
        Ok(Hours { days, from, to })
    }
}

/// `fri 22:30`.
impl FromStr for LocalTime {
    type Err = NotHours;

    fn from_str(text: &str) -> Result<LocalTime, NotHours> {
        let (day, clock) = text.split_once(' ').ok_or(NotHours)?;
        let day = day_of(day).ok_or(NotHours)?;
        let minute = minute_of(clock.trim()).filter(|minute| *minute < DAY_MINUTES);
        Ok(LocalTime { day: day as u8, minute: minute.ok_or(NotHours)? })
    }
}

fn day_of(text: &str) -> Option<usize> {
    DAYS.iter().position(|day| day.eq_ignore_ascii_case(text))
}

/// Days and runs of days, which may go over Sunday: `fri-mon,wed`.
fn days_of(text: &str) -> Option<u8> {
    let mut days = 0;
    for run in text.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last) = (day_of(first)?, day_of(last)?);
        let length = (last + DAYS.len() - first) % DAYS.len();
        (first..=first + length).for_each(|day| days |= 1 << (day % DAYS.len()));
    }
    Some(days)
}

/// The first minute and the end. Equal ones are refused: they might mean all day or nothing.
fn clock_of(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-')?;
    let (from, to) = (minute_of(from)?, minute_of(to)?);
    let to = if to == 0 { DAY_MINUTES } else { to };
    (from < DAY_MINUTES && from != to).then_some((from, to))
}

/// `06:30`, up to `24:00`.
fn minute_of(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str| {
        let is_plain = matches!(text.len(), 1 | 2) && text.bytes().all(|it| it.is_ascii_digit());
        is_plain.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hour, minute) = (number(hour)?, number(minute).filter(|it| *it < 60)?);
    Some(60 * hour + minute).filter(|minute| *minute <= DAY_MINUTES)
}

/// Runs of days: `mon-fri`, `mon,wed`.
fn days_text(days: u8) -> String {
    let has = |day: usize| days >> day & 1 != 0;
    let mut runs = Vec::new();
    let mut day = 0;
    while day < DAYS.len() {
        let end = (day..DAYS.len()).find(|day| !has(*day)).unwrap_or(DAYS.len());
        match end - day {
            0 => {}
            1 => runs.push(DAYS[day].to_owned()),
            _ => runs.push(format!("{}-{}", DAYS[day], DAYS[end - 1])),
        }
        day = end + 1;
    }
    runs.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u8, hour: u16, minute: u16) -> LocalTime {
        LocalTime { day, minute: 60 * hour + minute }
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        let nights = Hours { days: 0b001_1111, from: 21 * 60, to: 6 * 60 + 30 };
        assert_eq!(nights.to_string(), "mon-fri 21:00-06:30");
        let inside = [at(0, 21, 0), at(4, 23, 59), at(5, 0, 0), at(5, 6, 29), at(1, 6, 0)];
        let outside = [at(0, 6, 0), at(0, 20, 59), at(5, 6, 30), at(5, 21, 0), at(6, 3, 0)];
        assert!(inside.into_iter().all(|time| nights.has(time)));
        assert!(!outside.into_iter().any(|time| nights.has(time)));
        let sundays = Hours { days: 1 << 6, ..nights };
        assert!(sundays.has(at(0, 6, 0)), "Monday morning");
        assert!(!sundays.has(at(0, 21, 0)));
    }

    #[test]
    fn hours_within_a_day_and_whole_days() {
        let office = Hours { days: Hours::ALL_DAYS, from: 8 * 60, to: 17 * 60 };
        assert_eq!(office.to_string(), "08:00-17:00");
        assert!(office.has(at(6, 8, 0)) && !office.has(at(6, 17, 0)));
        let days = Hours { days: 0b110_0101, from: 0, to: DAY_MINUTES };
        assert_eq!(days.to_string(), "mon,wed,sat-sun");
        assert!(days.has(at(6, 23, 59)) && !days.has(at(1, 0, 0)));
    }

    #[test]
    fn hours_are_read_as_they_are_shown() {
        for (text, shown) in [
            ("mon-fri 21:00-06:30", "mon-fri 21:00-06:30"),
            ("Sun-Tue,fri 8:00-24:00", "mon-tue,fri,sun 08:00-24:00"),
            ("22:00-0:00", "22:00-24:00"),
            ("sat,sun", "sat-sun"),
            ("00:00-24:00", "mon-sun"),
        ] {
            let hours: Hours = text.parse().unwrap();
            assert_eq!(hours.to_string(), shown);
            assert_eq!(shown.parse(), Ok(hours));
        }
        for wrong in [
            "",
            "monday",
            "mon-",
            "mon 21:00",
            "21:00-21:00",
            "24:00-06:00",
            "06:60-07:00",
            "06:00-25:00",
            "mon fri 06:00-07:00",
            "-06:00",
            "fri,,sat",
        ] {
            assert_eq!(wrong.parse::<Hours>(), Err(NotHours), "{wrong}");
        }
        assert_eq!("fri 22:30".parse(), Ok(at(4, 22, 30)));
        assert_eq!("fri 24:00".parse::<LocalTime>(), Err(NotHours));
    }
}
