//! A build without DPDK.

use crate::dpdk::DPDK;
use crate::error::OpenError;
use crate::open::{open, open_tx, probe};
use crate::settings::PortSettings;

#[test]
fn a_build_without_it_says_where_there_is_one() {
    let settings = PortSettings::new("0000:03:00.0");
    let errors = [
        open(&DPDK, std::slice::from_ref(&settings), 1).err(),
        open_tx(&DPDK, &settings.interface).err(),
        probe(&DPDK, &settings).err(),
    ];
    for error in errors {
        let Some(OpenError::BadSetting { interface, setting }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(interface, "0000:03:00.0");
        assert!(setting.contains("without DPDK") && setting.contains("make dpdk"));
    }
}
