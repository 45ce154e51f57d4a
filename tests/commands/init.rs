//! `fenxi init`; `run::shaper` runs what it writes to shape a link.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::common::lab::Lab;
use crate::common::{Finished, programs};

/// The program on the router, with these lines on its standard input.
fn on_router(lab: &Lab, program: &str, args: &[&str], lines: &str) -> Finished {
    let mut command = lab.command("router", program);
    command.args(args).env("FENXI_CONFIG", "");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    Finished::from_output(child.wait_with_output().unwrap())
}

fn fenxi(lab: &Lab, args: &[&str]) -> Finished {
    on_router(lab, programs::fenxi().to_str().unwrap(), args, "2\n")
}

/// A run would start with the file, which is short.
fn assert_good(lab: &Lab, file: &Path, parts: &[&str]) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.lines().count() < 30, "{text}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    let path = file.to_str().unwrap();
    let said =
        fenxi(lab, &["check", "--config", path, "--set", "control.http="]).expect_code(0).stdout;
    assert!(said.starts_with("ok, would start\n"), "{said}");
}

#[test]
fn three_answers_make_a_configuration() {
    let Some(lab) = Lab::routed("init", false, &["script"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let path = |name: &str| file(name).to_str().unwrap().to_owned();

    let export = ["init", &path("export.toml"), "-w", "export", "-i", "in", "-l", "100mbit"];
    let said = fenxi(&lab, &export).expect_code(0).stdout;
    let [written, checks] = [
        format!("written: {}\n", path("export.toml")),
        format!("  fenxi check --config {}\n", path("export.toml")),
    ];
    assert!(said.starts_with(&written) && said.contains(&checks), "{said}");
    let parts =
        ["mode = \"tap\"\ninterfaces = [\"in\"]\n", "flows.jsonl\"\n", "max_flows = 65536\n"];
    assert_good(&lab, &file("export.toml"), &parts);

    // What it wrote gives way to other answers, as long as nobody has changed it.
    let see = ["init", &path("export.toml"), "-w", "see", "-i", "in", "-l", "100mbit"];
    fenxi(&lab, &see).expect_code(0);
    let seen = fs::read_to_string(file("export.toml")).unwrap();
    assert!(!seen.contains("flows.jsonl"), "{seen}");
    let changed = seen.replace("65536", "131072");
    fs::write(file("export.toml"), &changed).unwrap();
    fenxi(&lab, &export).expect_code(73);
    assert_eq!(fs::read_to_string(file("export.toml")).unwrap(), changed);

    // What somebody wrote stays.
    fs::write(file("mine.toml"), "# mine\n").unwrap();
    let again = fenxi(&lab, &["init", &path("mine.toml")]).expect_code(73).stderr;
    assert!(
        again.contains("mine.toml: exists, and is not replaced; ") && again.lines().count() == 1,
        "{again}"
    );
    assert_eq!(fs::read_to_string(file("mine.toml")).unwrap(), "# mine\n");
    // What the package brings does not.
    let shipped = crate::common::root().join("packaging/fenxi.toml");
    fs::copy(shipped, file("shipped.toml")).unwrap();
    let see = ["init", &path("shipped.toml"), "-w", "see", "-i", "out", "-l", "10gbit/1gbit"];
    fenxi(&lab, &see).expect_code(0);
    assert_good(&lab, &file("shipped.toml"), &["interfaces = [\"out\"]", "max_flows = 2097152\n"]);

    // On a terminal it asks; a wrong answer is asked for again.
    let line = format!("{} init {}", programs::fenxi().display(), path("shape.toml"));
    let answers = "7\nshape\nin\nfast\n50mbit/5mbit\n";
    let said = on_router(&lab, "script", &["-qec", &line, "/dev/null"], answers);
    let said = said.expect_code(0).stdout;
    for part in [
        "1 see ",
        "expected one of see, shape, export",
        " in              ",
        " out             ",
        "expected a rate such as 100mbit",
        "up in 47500kbit ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let parts = ["mode = \"mark\"", "overwrite = true\n", "rules = \"shaper/rules.toml\"\n"];
    assert_good(&lab, &file("shape.toml"), &parts);

    // The user of the service reads the files and runs the script, whatever root's umask is.
    let init = format!("umask 077; {} init", programs::fenxi().display());
    lab.run("router", &format!("{init} {} -w shape -i in -l 5mbit", path("new/fenxi.toml")));
    let mode = |name| fs::metadata(file(name)).unwrap().permissions().mode() & 0o777;
    for (name, expected) in [
        ("new", 0o755),
        ("new/fenxi.toml", 0o644),
        ("new/shaper", 0o755),
        ("new/shaper/rules.toml", 0o644),
        ("new/shaper/shaper", 0o755),
    ] {
        assert_eq!(mode(name), expected, "{name}");
    }

    // Without one, options must answer; nothing is written.
    for (args, code, part) in [
        (&["-w", "see"][..], 64, "give the answers as options: --interface NAME --link RATE\n"),
        (&["-w", "see", "-i", "inn", "-l", "5mbit"], 69, "inn: no such interface; there are: "),
        (&["-w", "see", "-i", "in", "-l", "5"], 64, "expected a rate such as 100mbit"),
        (&["-w", "look", "-i", "in", "-l", "5mbit"], 64, "[possible values: see, shape, export]"),
    ] {
        let new = path("new.toml");
        let said = fenxi(&lab, &[&["init", &new][..], args].concat()).expect_code(code).stderr;
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
        assert!(!file("new.toml").exists());
    }
}

#[test]
fn an_edit_made_while_it_asks_stays() {
    let Some(lab) = Lab::routed("init-edit", false, &["script"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fenxi.toml");
    let line = format!("{} init {} -w shape -i in", programs::fenxi().display(), file.display());
    let mut command = lab.command("router", "script");
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut asked = Vec::new();
    let mut bytes = BufReader::new(child.stdout.take().unwrap()).bytes();
    while !asked.ends_with(b"as 50mbit/5mbit: ") {
        asked.push(bytes.next().unwrap().unwrap());
    }
    fs::write(&file, "# mine\n").unwrap();
    child.stdin.take().unwrap().write_all(b"5mbit\n").unwrap();
    let said: Vec<u8> = bytes.map_while(Result::ok).collect();
    let said = String::from_utf8(said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(73), "{said}");
    assert!(said.contains("fenxi.toml: exists, and is not replaced; "), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
    assert!(!dir.path().join("shaper").exists());
}
