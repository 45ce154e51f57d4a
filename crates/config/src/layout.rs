//! How the parts of a pipeline `F:A:D` are connected: F flow managers, A analytics managers, D
//! devices. `F:0:0`: the flow managers have their series answered at once, by the device `native`.
//!
//! Pure arithmetic, so that the configuration, `check` and the builder agree. The rules:
//!
//! * Rings. With A ≤ F each flow manager has one ring, and ring f goes to manager f·A/F, so
//!   neighbours share a manager. With A > F it is the other way round: manager a reads one ring, of
//!   flow manager a·F/A, and a flow manager has several rings, among which it chooses by flow. So a
//!   flow is only ever seen by one flow manager and one analytics manager.
//! * Devices. With D ≥ A device d belongs to manager d mod A, which balances its batches over all
//!   that it has. With D < A manager a works on device a mod D, by a session of its own: sessions
//!   are never shared between threads.
//!
//! Flow managers are numbered across pipelines: pipeline i has the flow managers i·F to i·F + F −
//! 1.
//!
//! Source: FENXI §3 and Fig. 3 (1:1:1, 1:1:2, 2:1:1), generalised.

use std::fmt;

/// Greatest number of each part. No machine needs as many; more is taken for a mistake.
pub const PARTS_MAX: usize = 64;

/// The parts of one pipeline, each 1 to [`PARTS_MAX`]; or no analytics managers and no devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// F: flow managers.
    pub flow_managers: usize,
    /// A: analytics managers.
    pub analytics_managers: usize,
    /// D: devices.
    pub devices: usize,
    /// The models decide: tasks that can have their series answered at once do, and without others
    /// the layout is 1:0:0. Until then it counts as 1:1:1.
    pub is_auto: bool,
}

/// A ring from a flow manager to an analytics manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingPlace {
    /// The flow manager that writes it.
    pub flow_manager: usize,
    /// The analytics manager that reads it.
    pub analytics_manager: usize,
}

/// A session of a device, and the analytics manager that drives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionPlace {
    /// The device, from 0.
    pub device: usize,
    /// The analytics manager, from 0.
    pub analytics_manager: usize,
}

impl Layout {
    /// Reads `F:A:D`, or `auto`; `None` unless that is three numbers of 1 to [`PARTS_MAX`], of
    /// which the last two may both be 0.
    pub fn parse(text: &str) -> Option<Layout> {
        if text == "auto" {
            return Some(Layout::default());
        }
        let mut parts = text.split(':').map(|part| {
            let part = part.parse().ok()?;
            (0..=PARTS_MAX).contains(&part).then_some(part)
        });
        let layout = Layout {
            flow_managers: parts.next()??,
            analytics_managers: parts.next()??,
            devices: parts.next()??,
            is_auto: false,
        };
        let is_possible = layout.flow_managers > 0
            && (layout.analytics_managers > 0) == (layout.devices > 0)
            && parts.next().is_none();
        is_possible.then_some(layout)
    }

    /// F flow managers that have all series answered at once.
    pub fn inline(flow_managers: usize) -> Layout {
        Layout { flow_managers, analytics_managers: 0, devices: 0, is_auto: false }
    }

    /// Whether all series are answered at once.
    pub fn is_inline(&self) -> bool {
        self.analytics_managers == 0
    }

    /// All rings, grouped by flow manager, in the order in which it holds them.
    pub fn rings(&self) -> Vec<RingPlace> {
        let (f, a) = (self.flow_managers, self.analytics_managers);
        let rings = 0..if a == 0 { 0 } else { f.max(a) };
        rings
            .map(|ring| match a <= f {
                true => RingPlace { flow_manager: ring, analytics_manager: ring * a / f },
                false => RingPlace { flow_manager: ring * f / a, analytics_manager: ring },
            })
            .collect()
    }

    /// All sessions, one per device or one per analytics manager, whichever are more.
    pub fn sessions(&self) -> Vec<SessionPlace> {
        let (a, d) = (self.analytics_managers, self.devices);
        let sessions = 0..a.max(d);
        sessions
            .map(|session| SessionPlace { device: session % d, analytics_manager: session % a })
            .collect()
    }
}

impl Default for Layout {
    /// `auto`.
    fn default() -> Layout {
        Layout { flow_managers: 1, analytics_managers: 1, devices: 1, is_auto: true }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { flow_managers, analytics_managers, devices, .. } = self;
        write!(f, "{flow_managers}:{analytics_managers}:{devices}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(text: &str) -> Layout {
        Layout::parse(text).unwrap()
    }

    fn rings(text: &str) -> Vec<(usize, usize)> {
        let rings = layout(text).rings().into_iter();
        rings.map(|ring| (ring.flow_manager, ring.analytics_manager)).collect()
    }

    fn sessions(text: &str) -> Vec<(usize, usize)> {
        let sessions = layout(text).sessions().into_iter();
        sessions.map(|session| (session.device, session.analytics_manager)).collect()
    }

    #[test]
    fn three_numbers_in_their_range() {
        assert_eq!(layout("2:1:12").to_string(), "2:1:12");
        for wrong in
            ["", "1", "1:1", "1:1:1:1", "0:1:1", "1:1:65", "1:1:x", "1:-1:1", "1::1", " 1:1:1"]
                .into_iter()
                .chain(["0:0:0", "1:0:1", "1:1:0", "Auto"])
        {
            assert_eq!(Layout::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn without_analytics_managers_there_is_neither_ring_nor_session() {
        assert_eq!(layout("3:0:0"), Layout::inline(3));
        assert_eq!((rings("3:0:0"), sessions("3:0:0")), (vec![], vec![]));
        assert_eq!((rings("auto"), sessions("auto")), (vec![(0, 0)], vec![(0, 0)]));
    }

    #[test]
    fn rings_of_the_usual_layouts() {
        assert_eq!(rings("1:1:1"), [(0, 0)]);
        assert_eq!(rings("2:1:1"), [(0, 0), (1, 0)]);
        assert_eq!(rings("4:2:1"), [(0, 0), (1, 0), (2, 1), (3, 1)]);
        assert_eq!(rings("3:2:1"), [(0, 0), (1, 0), (2, 1)]);
        assert_eq!(rings("1:2:1"), [(0, 0), (0, 1)]);
        assert_eq!(rings("2:3:1"), [(0, 0), (0, 1), (1, 2)]);
    }

    #[test]
    fn sessions_of_the_usual_layouts() {
        assert_eq!(sessions("1:1:1"), [(0, 0)]);
        assert_eq!(sessions("1:1:2"), [(0, 0), (1, 0)]);
        assert_eq!(sessions("1:2:3"), [(0, 0), (1, 1), (2, 0)]);
        assert_eq!(sessions("1:3:2"), [(0, 0), (1, 1), (0, 2)]);
    }

    /// Nobody is left out, and with A > F a ring has a reader of its own.
    #[test]
    fn every_part_of_every_layout_has_work() {
        let sizes = 1..=9;
        for f in sizes.clone() {
            for a in sizes.clone() {
                for d in sizes.clone() {
                    let layout = layout(&format!("{f}:{a}:{d}"));
                    let (rings, sessions) = (layout.rings(), layout.sessions());
                    assert!(rings.is_sorted_by_key(|ring| ring.flow_manager));
                    assert!((0..f).all(|f| rings.iter().any(|ring| ring.flow_manager == f)));
                    for a in 0..a {
                        assert!(rings.iter().any(|ring| ring.analytics_manager == a));
                        assert!(sessions.iter().any(|s| s.analytics_manager == a));
                    }
                    assert!((0..d).all(|d| sessions.iter().any(|s| s.device == d)));
                    assert_eq!((rings.len(), sessions.len()), (f.max(a), a.max(d)));
                }
            }
        }
    }
}
