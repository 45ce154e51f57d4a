//! The provider `cann` without an Ascend toolkit: the error says which of the toolkit's libraries
//! is missing. On a machine with the toolkit the test is skipped.

#![cfg(feature = "ort")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

#[path = "onnx/common.rs"]
mod common;

use accel::onnx::{OnnxDevice, providers};
use common::{any, assert_has, library_with, mine, shipped, skipped};

#[test]
fn the_toolkit_that_is_missing_is_named() {
    let test = "cann: the_toolkit_that_is_missing_is_named";
    let Some(library) = library_with(test, "cann") else {
        return;
    };
    let bundle = shipped();
    assert_has(&providers(&library).concat(), &["CANNExecutionProvider"]);
    match OnnxDevice::new(&library, &bundle, mine(&bundle, "cann", any(8))) {
        Ok(_) => skipped(test, "an Ascend toolkit is installed"),
        Err(error) => {
            assert_has(&error.to_string(), &["device mine", "provider cann", "libascendcl.so"])
        }
    }
}
