//! `/etc/hosts`: an address on each line, then its names, of which the first counts.

use super::host::name;
use super::join::Fact;

/// Lines that count at most.
const LINES_MAX: usize = 65_536;

pub fn read(text: &str) -> Vec<Fact> {
    let fact = |line: &str| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let fact = Fact::new(words.next()?.parse().ok()?);
        Some(Fact { name: name(words.next()?), ..fact })
    };
    text.lines().filter_map(fact).take(LINES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_an_address_and_names() {
        let text = "127.0.0.1\tlocalhost\n\n# a comment\n10.0.0.9 nas.lan nas # in the cellar\n\
            ::1 ip6-localhost\nfd00::9\tnas.lan\n10.0.0.10\n10.0.0.500 wrong\n";
        let read: Vec<_> = read(text)
            .into_iter()
            .map(|fact| format!("{} {}", fact.address, fact.name.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(
            read,
            ["127.0.0.1 localhost", "10.0.0.9 nas.lan", "::1 ip6-localhost", "fd00::9 nas.lan"]
        );
    }
}
