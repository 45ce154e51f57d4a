//! Draws from what a profile says: lengths of prefixes, protocols, ports.

use policy::Ports;

use super::profile::{Class, Profile, Values, shares};
use crate::rng::{Lot, Rng};
use fenxi::exit::Failure;

/// Bits of an IPv4 address.
const BITS: i32 = 32;
/// By how many bits the lengths of prefixes are spread, source and destination together.
const SPREAD: i32 = 2;

/// Ports of services, used in this order.
const SERVICES: [u16; 40] = [
    80, 443, 53, 22, 25, 123, 161, 110, 143, 445, 139, 135, 389, 636, 993, 995, 587, 21, 20, 23,
    69, 88, 111, 179, 514, 1433, 1521, 3306, 5432, 3389, 5060, 8080, 8443, 1812, 2049, 5900, 6379,
    9200, 11211, 27017,
];

/// One draw: the rule without its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub source_length: u8,
    pub destination_length: u8,
    pub protocol: Option<u8>,
    pub source_ports: Ports,
    pub destination_ports: Ports,
}

/// Which ports a rule has.
#[derive(Clone, Debug)]
enum Side {
    Always(Ports),
    Of(Lot<Ports>),
}

impl Side {
    fn draw(&self, rng: &mut Rng) -> Ports {
        match self {
            Side::Always(ports) => *ports,
            Side::Of(lot) => lot.draw(rng).unwrap_or(Ports::ANY),
        }
    }
}

/// A class of rules to draw from.
#[derive(Clone, Debug)]
struct Drawn {
    source: Side,
    destination: Side,
    protocols: Lot<Option<u8>>,
    lengths: Lot<(u8, u8)>,
}

/// Everything of a profile but addresses.
#[derive(Clone, Debug)]
pub struct Forms {
    classes: Vec<Drawn>,
    class: Lot<usize>,
}

impl Forms {
    /// The forms of a profile. Its ports do not depend on the random seed.
    pub fn new(profile: &Profile) -> Result<Forms, Failure> {
        let mut rng = Rng::new(profile.filters as u64);
        let source = Tables::new(&profile.source_ports, &profile.source_ranges, &mut rng)?;
        let destination =
            Tables::new(&profile.destination_ports, &profile.destination_ranges, &mut rng)?;
        let classes = profile.classes.iter();
        let classes = classes.map(|class| drawn(class, &source, &destination));
        let shares = profile.classes.iter().map(|class| class.share);
        Ok(Forms {
            classes: classes.collect::<Result<_, Failure>>()?,
            class: Lot::new(shares.enumerate()),
        })
    }

    pub fn draw(&self, rng: &mut Rng) -> Form {
        let class = &self.classes[self.class.draw(rng).unwrap_or_default()];
        let (source_length, destination_length) = class.lengths.draw(rng).unwrap_or_default();
        Form {
            source_length,
            destination_length,
            protocol: class.protocols.draw(rng).flatten(),
            source_ports: class.source.draw(rng),
            destination_ports: class.destination.draw(rng),
        }
    }
}

fn drawn(class: &Class, source: &Tables, destination: &Tables) -> Result<Drawn, Failure> {
    let wrong = || Failure::software(format!("profiles.toml: ports = \"{}\"", class.ports));
    let (from, to) = class.ports.split_once(' ').ok_or_else(wrong)?;
    let protocol = |text: &str| match text {
        "any" => Some(None),
        number => number.parse().ok().map(Some),
    };
    let lengths = |text: &str| {
        let (source, destination) = text.split_once('/')?;
        Some((source.parse().ok()?, destination.parse().ok()?))
    };
    Ok(Drawn {
        source: source.side(from).ok_or_else(wrong)?,
        destination: destination.side(to).ok_or_else(wrong)?,
        protocols: Lot::new(shares(&class.protocols, protocol)?),
        lengths: Lot::new(spread(&shares(&class.lengths, lengths)?)),
    })
}

/// Lengths spread binomially around those that are known, as ClassBench does with a smoothness of
/// two bits: the sum of both lengths by 4 throws of a coin, what that changes by as many throws
/// between source and destination. What lies beyond an address falls to the others of the same
/// sum.
fn spread(lengths: &[((i32, i32), f64)]) -> Vec<((u8, u8), f64)> {
    let mut all = Vec::new();
    for &((source, destination), share) in lengths {
        let sums = (-SPREAD..=SPREAD).map(|sum| {
            // A change of the sum goes to either side; the rest of the throws takes from one side
            // what it gives to the other.
            let swaps = (SPREAD - sum.abs()) / 2;
            let throws = sum.abs() + 2 * swaps;
            let towards = (0..=throws).map(|heads| {
                let change = if sum < 0 { swaps - heads } else { heads - swaps };
                let pair = (source + change, destination + sum - change);
                (pair, binomial(throws, heads))
            });
            let inside = |(pair, _): &((i32, i32), f64)| {
                (0..=BITS).contains(&pair.0) && (0..=BITS).contains(&pair.1)
            };
            let towards: Vec<_> = towards.filter(inside).collect();
            (binomial(2 * SPREAD, sum + SPREAD), towards)
        });
        let sums: Vec<_> = sums.filter(|(_, towards)| !towards.is_empty()).collect();
        let whole: f64 = sums.iter().map(|(weight, _)| weight).sum();
        for (weight, towards) in sums {
            let part: f64 = towards.iter().map(|(_, weight)| weight).sum();
            for ((source, destination), chance) in towards {
                let share = share * weight / whole * chance / part;
                all.push(((source as u8, destination as u8), share));
            }
        }
    }
    all
}

/// Chance of `heads` in `throws` throws of a coin.
fn binomial(throws: i32, heads: i32) -> f64 {
    let ways = (0..heads).map(|i| f64::from(throws - i) / f64::from(i + 1));
    ways.product::<f64>() / f64::from(1 << throws)
}

/// Single ports and ranges of one side.
struct Tables {
    ports: Lot<Ports>,
    ranges: Lot<Ports>,
}

impl Tables {
    fn new(
        ports: &Option<Values>,
        ranges: &Option<Values>,
        rng: &mut Rng,
    ) -> Result<Tables, Failure> {
        let single = |place: usize, rng: &mut Rng| {
            let service = SERVICES.get(place).copied();
            Ports::one(service.unwrap_or_else(|| (1024 + rng.below(48_000)) as u16))
        };
        let widths = ranges.as_ref().map_or("", |ranges| &ranges.widths);
        let widths = Lot::new(shares(widths, |width| width.parse::<u32>().ok())?);
        let range = |_, rng: &mut Rng| match widths.draw(rng).unwrap_or(2) {
            // What is so wide goes up to the last port.
            width @ 32_768.. => {
                Ports { first: (65_536 - width.min(64_511)) as u16, last: u16::MAX }
            }
            // People choose round numbers.
            width => {
                let round = [1, 10, 100, 1000][(width.ilog10() as usize).min(3)];
                let first = (1024 + rng.below(64_000 - width)) / round * round;
                Ports { first: first as u16, last: (first + width - 1) as u16 }
            }
        };
        Ok(Tables { ports: skewed(ports, rng, single), ranges: skewed(ranges, rng, range) })
    }

    /// What ports of a name are drawn from.
    fn side(&self, name: &str) -> Option<Side> {
        Some(match name {
            "any" => Side::Always(Ports::ANY),
            "high" => Side::Always(Ports { first: 1024, last: u16::MAX }),
            "low" => Side::Always(Ports { first: 0, last: 1023 }),
            "one" => Side::Of(self.ports.clone()),
            "range" => Side::Of(self.ranges.clone()),
            _ => return None,
        })
    }
}

/// The requested number of values. The n-th is drawn with a chance in proportion to 1/n^s, with s
/// such that the first has its given share.
fn skewed(
    values: &Option<Values>,
    rng: &mut Rng,
    value: impl Fn(usize, &mut Rng) -> Ports,
) -> Lot<Ports> {
    let Some(Values { count, first, .. }) = values else {
        return Lot::new([]);
    };
    let weight = |place: usize, s: f64| ((place + 1) as f64).powf(-s);
    let first_share = |s: f64| 1.0 / (0..*count).map(|place| weight(place, s)).sum::<f64>();
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        match first_share(middle) < first / 100.0 {
            true => low = middle,
            false => high = middle,
        }
    }
    Lot::new((0..*count).map(|place| (value(place, rng), weight(place, low))))
}
