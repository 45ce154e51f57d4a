//! The time in the place where the router stands, for the hours of rules and of reports.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use policy::hours::LocalTime;
use tracing::warn;

/// Files of time zones are a few kB.
const FILE_MAX: u64 = 1 << 20;

/// The machine's time zone.
#[derive(Clone, Debug)]
pub struct LocalClock(TimeZone);

impl LocalClock {
    /// The zone of `TZ`, else of /etc/localtime, else of /etc/TZ (OpenWrt), else UTC.
    pub fn of_machine() -> LocalClock {
        let clock = match std::env::var("TZ") {
            Ok(name) if !name.is_empty() => {
                let named = LocalClock::named(&name);
                if named.is_none() {
                    warn!("TZ={name:?} is no time zone: hours are in UTC");
                }
                named
            }
            _ => of_file(Path::new("/etc/localtime")).map(LocalClock).or_else(|| {
                let text = read(Path::new("/etc/TZ"))?;
                LocalClock::named(std::str::from_utf8(&text).ok()?.trim())
            }),
        };
        clock.unwrap_or(LocalClock(TimeZone::UTC))
    }

    /// The clock of a zone by its name (`Europe/Berlin`), its file, or its rules
    /// (`CET-1CEST,M3.5.0,M10.5.0/3`).
    pub fn named(name: &str) -> Option<LocalClock> {
        let name = name.strip_prefix(':').unwrap_or(name);
        let zone = of_file(&Path::new("/usr/share/zoneinfo").join(name));
        zone.or_else(|| TimeZone::posix(name).ok()).map(LocalClock)
    }

    /// The zone itself.
    #[cfg(feature = "history")]
    pub fn zone(self) -> TimeZone {
        self.0
    }

    /// Local time now.
    pub fn now(&self) -> LocalTime {
        self.at(Timestamp::now().as_microsecond())
    }

    /// Local time at a time, µs since the epoch.
    pub fn at(&self, time_us: i64) -> LocalTime {
        let time = Timestamp::from_microsecond(time_us).unwrap_or(Timestamp::UNIX_EPOCH);
        let local = self.0.to_datetime(time);
        LocalTime {
            day: local.weekday().to_monday_zero_offset() as u8,
            minute: 60 * local.hour() as u16 + local.minute() as u16,
        }
    }
}

fn of_file(path: &Path) -> Option<TimeZone> {
    TimeZone::tzif("", &read(path)?).ok()
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok().filter(|it| it.metadata().is_ok_and(|it| it.is_file()))?;
    file.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(clock: &LocalClock, text: &str) -> (u8, u16, u16) {
        let time: Timestamp = text.parse().unwrap();
        let LocalTime { day, minute } = clock.at(time.as_microsecond());
        (day, minute / 60, minute % 60)
    }

    /// On 29 March 2026 clocks in Berlin went from 2 to 3, on 25 October from 3 back to 2.
    #[test]
    fn local_time_follows_summer_time() {
        let clock = LocalClock::named("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        assert_eq!(minutes(&clock, "2026-03-29T00:59:59Z"), (6, 1, 59));
        assert_eq!(minutes(&clock, "2026-03-29T01:00:00Z"), (6, 3, 0));
        assert_eq!(minutes(&clock, "2026-10-25T00:30:00Z"), (6, 2, 30));
        assert_eq!(minutes(&clock, "2026-10-25T01:30:00Z"), (6, 2, 30));
        assert_eq!(minutes(&clock, "2026-10-25T23:00:00Z"), (0, 0, 0));
        assert!(LocalClock::named("no/such/zone").is_none());
    }
}
