//! Keys that were meant.

use super::keys;
use crate::nearest;

#[test]
fn nearest_finds_slips_and_misplaced_names() {
    let paths = || keys().map(|key| key.path);
    assert_eq!(nearest("flow.idle_timeout", paths()), Some("flow.idle_timeout_s"));
    assert_eq!(nearest("flow.idel_timeout_s", paths()), Some("flow.idle_timeout_s"));
    assert_eq!(nearest("k", paths()), Some("flow.k"));
    assert_eq!(nearest("flow.K", paths()), Some("flow.k"));
    assert_eq!(nearest("flow.phi", paths()), Some("analytics.phi"));
    assert_eq!(nearest("flow.idle", paths()), Some("flow.idle_timeout_s"));
    assert_eq!(nearest("colour.of_money", paths()), None);
}
