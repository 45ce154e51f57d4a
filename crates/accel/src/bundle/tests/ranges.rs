//! The file of ranges.

use super::*;

/// A bundle whose manifest names `file`, with a file of ranges.
fn with(file: &str, content: &[u8]) -> tempfile::TempDir {
    let sha256: String = Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect();
    let keys = format!("k = 3\nranges = {file:?}\nranges_sha256 = {sha256:?}");
    let text = manifest().replacen("k = 3", &keys, 1);
    let dir = bundle_with("model.toml", text.as_bytes());
    fs::write(dir.path().join("ranges.csv"), content).unwrap();
    dir
}

#[test]
fn a_bundle_may_have_ranges() {
    let bundle = Bundle::open(with("ranges.csv", b"a,1,0.25\nb,1e-9\n").path()).unwrap();
    let wanted = vec![("a".to_owned(), vec![1.0, 0.25]), ("b".to_owned(), vec![1e-9])];
    assert_eq!(bundle.ranges(), Some(&wanted.into()));
    let (_dir, bundle) = good_bundle();
    assert!(bundle.ranges().is_none());
}

#[test]
fn ranges_that_are_refused() {
    for (content, parts) in [
        (&b""[..], &["ranges.csv: no layers"][..]),
        (b"a,1\n\nb,1\n", &["line 2:", "\"\" is not the name"]),
        (b"a,1\na,1\n", &["line 2:", "\"a\" is not the name of one more layer"]),
        (b"a\n", &["line 1:", "\"a\" has no ranges"]),
        (b"a,1,x\n", &["line 1:", "\"x\" is not a number above 0", "fenxi-train ranges"]),
        (b"a,1,\n", &["\"\" is not a number"]),
        (b"a,0\n", &["\"0\" is not a number above 0"]),
        (b"a,-1\n", &["\"-1\" is not"]),
        (b"a,inf\n", &["\"inf\" is not"]),
        (b"a,NaN\n", &["\"NaN\" is not"]),
        (b"a,\xff\n", &["not UTF-8"]),
        (&vec![b'1'; RANGES_BYTES_MAX as usize + 1], &["larger than 1048576 bytes"]),
    ] {
        refused(with("ranges.csv", content).path(), &[&["ranges.csv"], parts].concat());
    }
    refused(with("other.csv", b"").path(), &["other.csv", "no such file"]);
    let dir = with("ranges.csv", b"a,1\n");
    fs::write(dir.path().join("ranges.csv"), "a,2\n").unwrap();
    refused(dir.path(), &["ranges.csv", "SHA-256", "ranges_sha256"]);
    for (key, value) in [("ranges", "r.csv"), ("ranges_sha256", &"0".repeat(64))] {
        let text = manifest().replacen("k = 3", &format!("k = 3\n{key} = {value:?}"), 1);
        let dir = bundle_with("model.toml", text.as_bytes());
        refused(dir.path(), &["model.toml", "ranges_sha256 goes with ranges"]);
    }
    for file in ["../ranges.csv", "/ranges.csv", "golden/inputs.csv", ""] {
        refused(with(file, b"a,1\n").path(), &["model.toml", "ranges is", file]);
    }
}

proptest! {
    /// Whatever stands in the file: an answer of one line, and no panic.
    #[test]
    fn any_ranges_are_answered(content in "[a-b,.0-9e\n-]{0,60}") {
        if let Err(error) = Bundle::open(with("ranges.csv", content.as_bytes()).path()) {
            prop_assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
