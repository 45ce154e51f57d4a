//! Several `[[task]]`: what each says of itself, what they say of each other, and what is refused.

use analytics::Policy;

use crate::checked::TASKS_MAX;
use crate::when::{Comparison, Term};
use crate::{Config, ConfigErrors, Loaded, layers};

use super::{load, without_origins};

const THREE: &str = r#"
[mark]
mask = 0xff000000
[analytics]
timeout_ms = 5
[[task]]
name = "app"
min_confidence = 0.5
[task.dscp]
TLS = "AF21"
[[task]]
name = "device"
model = "d"
when = "direction = out, inside"
policy = "on-off"
latency_goal_ms = 20
slo_delta = 0.1
mark = { camera = 0x10000, phone = 0x20000 }
priority = 2
[[task]]
name = "dear"
model = "e"
depths = [3, 10]
when = 'app.confidence < 0.9 and device.label != "camera"'
policy = "max"
timeout_ms = 3
max_wait_ms = 4
batch_sizes = [16, 32]
records = false
"#;

fn loaded(text: &str) -> Loaded {
    let file = layers::FileLayer { name: "c.toml".to_owned(), text: text.to_owned() };
    match Config::from_layers(super::defaults(), &[file], &[], &[], Vec::new()) {
        Ok(loaded) => loaded,
        Err(ConfigErrors::Invalid(lines)) => panic!("{lines:?}"),
        Err(ConfigErrors::Unreadable(line)) => panic!("nothing was read: {line}"),
    }
}

#[test]
fn each_task_has_its_own_values_and_the_others_of_the_sections() {
    let config = loaded(THREE).config;
    let [app, device, dear] = config.tasks.as_slice() else {
        panic!("{:?}", config.tasks);
    };
    let ms = |task: &crate::checked::Task| {
        let batching = &task.batching;
        [batching.timeout, batching.max_wait].map(|it| it.as_millis())
    };
    assert_eq!([ms(app), ms(device), ms(dear)], [[5, 50], [5, 50], [3, 4]]);
    let Policy::OnOff { delta, .. } = device.batching.policy() else {
        panic!("{device:?}");
    };
    assert_eq!(delta, 0.1);
    assert!(device.batching.policy().goal().is_some() && dear.batching.policy().goal().is_none());
    assert_eq!(dear.batching.policy(), Policy::Max);
    assert_eq!(dear.batching.batch_sizes, [16, 32]);
    assert_eq!(dear.devices[0].batch_sizes, [16, 32]);
    assert_eq!(app.devices[0].batch_sizes, [8, 16, 32, 64, 128, 256]);
    assert_eq!([app.priority, device.priority], [5, 2]);
    assert_eq!((app.records, dear.records), (true, false));
    assert_eq!((&app.depths[..], &dear.depths[..]), (&[][..], &[3, 10][..]));
    assert_eq!(dear.when.tasks().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        dear.when.terms[0],
        Term::Confidence { task: 0, comparison: Comparison::Below, bound: 0.9 }
    );
    assert_eq!(
        dear.when.named(|at| &config.tasks[at].name).to_string(),
        "app.confidence < 0.9 and device.label != camera"
    );
    assert_eq!(dear.when_origin.to_string(), "c.toml:24");
    assert_eq!(dear.origin.to_string(), "c.toml:20");
}

/// The sections describe the labels of the first task, and of no other.
#[test]
fn labels_of_the_first_task_are_those_of_the_sections() {
    let config = loaded(THREE).config;
    let [app, device, dear] = config.tasks.as_slice() else {
        panic!("{:?}", config.tasks);
    };
    assert_eq!(app.min_confidence, Some(0.5));
    assert_eq!(config.model.min_confidence, Some(0.5));
    assert_eq!((app.dscp.len(), &app.dscp), (1, &config.tag.dscp));
    assert!(app.dscp[0].required);
    assert_eq!((&app.mark, app.mark_mask), (&config.mark.class, 0xff00_0000));
    assert_eq!(device.min_confidence, None);
    assert!(device.dscp.is_empty() && dear.mark.is_empty());
    // Left out: all bits of its marks.
    assert_eq!((device.mark_mask, dear.mark_mask), (0x3_0000, 0));

    let mark = loaded(&THREE.replace("[mark]", "[io]\nmode = \"mark\"\n[mark]")).config;
    let bits = |task: usize| -> Vec<_> {
        let rules = mark.rules_of(task).into_iter();
        rules.filter_map(|rule| rule.action.mark).collect()
    };
    assert_eq!((bits(0).len(), bits(1).len(), bits(2).len()), (8, 2, 0));
    assert_eq!((bits(1)[1].bits, bits(1)[1].mask), (0x2_0000, 0x3_0000));
    assert_eq!(mark.rules_of(0), mark.rules());
    let origin = &mark.rules_of(1)[0].origin;
    assert_eq!(origin, "c.toml:20: task.device.mark");
}

#[test]
fn one_task_can_be_taken_out() {
    let config = loaded(THREE).config;
    let device = config.of_task(1);
    assert_eq!(device.tasks.len(), 1);
    assert!(device.tasks[0].when.is_always());
    assert_eq!(device.model.path, Some("d".into()));
    assert_eq!(device.analytics, config.tasks[1].batching);
    assert_eq!(device.mark.class, config.tasks[1].mark);
    assert_eq!((device.mark.mask, device.tag.dscp.len()), (0x3_0000, 0));
    assert_eq!(config.of_task(0).mark, config.mark);
    assert_eq!(config.of_task(0).tag, config.tag);
}

#[test]
fn what_is_shown_of_several_tasks_can_be_read_back() {
    let (config, effective) = load(THREE, &[], &[]).unwrap();
    let shown = effective.to_toml(false);
    assert_eq!(shown.matches("[[task]]\n").count(), 3, "{shown}");
    assert!(shown.contains("[task.dscp]\nTLS = \"AF21\""), "{shown}");
    let (again, _) = load(&effective.to_toml(true), &[], &[]).unwrap();
    assert_eq!(without_origins(&again), without_origins(&config));
    let empty = "[[task]]\nname = \"a\"\ndscp = {}\nmark = {}";
    let (config, effective) = load(empty, &[], &[]).unwrap();
    assert!(config.tag.dscp.is_empty() && config.mark.class.is_empty());
    let (again, _) = load(&effective.to_toml(false), &[], &[]).unwrap();
    assert_eq!(without_origins(&again), without_origins(&config));
}

/// With marks that hold a DSCP, the first task's are made of what it says of DSCPs.
#[test]
fn a_mark_of_the_first_task_may_hold_its_dscp() {
    let file = "[mark]\nas = \"dscp\"\n[[task]]\nname = \"a\"\n[task.dscp]\nTLS = 10\n\
                [[task]]\nname = \"b\"\nmark = { x = 0x100 }";
    let config = loaded(file).config;
    let first = &config.tasks[0];
    assert_eq!(first.mark, config.mark.class);
    assert_eq!((first.mark[0].value, first.mark_mask), (0x80 + 10, 0xbf));
    let wrong = file.replace("[task.dscp]", "mark = { TLS = 0x1 }\n[task.dscp]");
    let lines = load(&wrong, &[], &[]).unwrap_err();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("task.a.mark (c.toml:5): no effect, because mark.as = \"dscp\""),
        "{lines:?}"
    );
}

/// What flow managers must know at their start waits for the next one.
#[test]
fn a_reload_changes_what_labels_lead_to_and_how_series_are_batched() {
    let running = loaded(THREE);
    let next = THREE
        .replace("direction = out, inside", "direction = out")
        .replace("depths = [3, 10]", "depths = [10]")
        .replace("records = false", "records = true")
        .replace("priority = 2", "priority = 3")
        .replace("\"max\"", "\"none\"")
        .replace("AF21", "AF11")
        .replace("phone = 0x20000", "phone = 0x40000")
        .replace("min_confidence = 0.5", "min_confidence = 0.6")
        .replace("batch_sizes = [16, 32]", "batch_sizes = [8]");
    let next = loaded(&next);
    let differences = next.effective().differences(&running.effective());
    let keys = |rows: &[crate::Difference]| -> Vec<String> {
        rows.iter().map(|row| row.key.clone()).collect()
    };
    assert_eq!(
        keys(&differences.live),
        [
            "task.app.min_confidence",
            "task.app.dscp.TLS",
            "task.device.priority",
            "task.device.mark.phone",
            "task.dear.policy",
            "task.dear.batch_sizes",
        ]
    );
    assert_eq!(
        keys(&differences.restart),
        ["task.device.when", "task.dear.depths", "task.dear.records"]
    );
    let taken = next.taken_over_by(&running).unwrap().config;
    let [app, device, dear] = taken.tasks.as_slice() else {
        panic!("{:?}", taken.tasks);
    };
    assert_eq!(app.min_confidence, Some(0.6));
    assert_eq!(app.dscp[0].value.name(), Some("AF11"));
    assert_eq!((device.priority, device.mark_mask), (3, 0x5_0000));
    assert_eq!(device.when, running.config.tasks[1].when);
    assert_eq!((&dear.depths[..], dear.records), (&[3, 10][..], false));
    assert_eq!(dear.batching.batch_sizes, [8]);
}

/// Tasks called a, b, c, ..., each with these lines.
fn tasks(lines: &[&str]) -> String {
    let names = 'a'..='z';
    let tasks = names.zip(lines);
    let tasks = tasks.map(|(name, lines)| format!("[[task]]\nname = \"{name}\"\n{lines}\n"));
    tasks.collect()
}

#[test]
fn tasks_that_do_not_fit_each_other_get_one_line_each() {
    let none = "mark_mask = 0x1\n[task.mark]";
    for (lines, says) in [
        (
            &["", "when = 'protocol = tpc'"][..],
            "c.toml:6: task.b.when: protocol = tpc: found tpc, expected tcp or udp",
        ),
        (
            &["", "when = 'x.confidence < 0.5'"],
            "c.toml:6: task.b.when: x.confidence < 0.5: unknown task x; the others are a",
        ),
        (
            &["when = 'aa.confidence < 0.5'"],
            "c.toml:3: task.a.when: aa.confidence < 0.5: unknown task aa; there is no other task",
        ),
        (
            &["", "when = 'b.label = x'"],
            "c.toml:6: task.b.when: b.label = x: a task cannot wait for itself; name another task",
        ),
        (
            &["when = 'c.label = x'", "when = 'a.label = x'", "when = 'b.label = x'", ""],
            "c.toml:3: task.a.when: the tasks a -> c -> b -> a wait for each other, so none would \
             ever be asked; leave one of \
             these terms out: c.label = x (of task a), b.label = x (of task c), a.label = x (of \
             task b)",
        ),
        (
            &["", "when = 'c.label = x'", "when = 'a.label = x and b.label = x'"],
            "c.toml:6: task.b.when: the tasks b -> c -> b wait",
        ),
        (
            &[
                "when = 'b.label = x and c.label = x'",
                "when = 'a.label = x and a.confidence < 0.5'",
                "when = 'a.label = x'",
            ],
            "the tasks a -> b -> a wait for each other, so none would ever be asked; leave one of \
             these terms out: b.label = x (of \
             task a), a.label = x and a.confidence < 0.5 (of task b)",
        ),
        (
            &["when = 'protocol = tcp and protocol = udp'"],
            "c.toml:3: task.a.when: protocol = tcp and protocol = udp never hold together, so the \
             task could never run; change \
             the terms, or leave the task out",
        ),
        (
            &["when = 'sample = 0'"],
            "c.toml:3: task.a.when: sample = 0 never holds, so the task could never run",
        ),
        (
            &["", "when = 'a.confidence < 0.5 and a.confidence >= 0.9'"],
            "c.toml:6: task.b.when: a.confidence < 0.5 and a.confidence >= 0.9 never hold together",
        ),
        (
            &["when = 'protocol = tcp'", "when = 'protocol = udp and a.label = x'"],
            "c.toml:6: task.b.when: protocol = udp and protocol = tcp (of task a) never hold \
             together",
        ),
        (
            &["", "mark = { x = 0x1000000 }"],
            "c.toml:6: task.b.mark: bits 0x1000000 already belong to task a, mark.mask = \
             0xff000000 (built-in); give each task \
             bits of its own",
        ),
        (
            &["", "mark = { x = 0x1 }\nmark_mask = 0xf", "mark = { x = 0x18 }\nmark_mask = 0x18"],
            "c.toml:11: task.c.mark_mask: bits 0x8 already belong to task b, task.b.mark_mask = \
             0xf (c.toml:7); give",
        ),
        (
            &["mark = { x = 0x1 }\nmark_mask = 0xf", "mark = { x = 0x8 }"],
            "c.toml:7: task.b.mark: bits 0x8 already belong to task a, task.a.mark_mask = 0xf \
             (c.toml:4); give",
        ),
        (
            &["", "mark = { x = 0x11, y = 0x1 }\nmark_mask = 0xf"],
            "task.b.mark: x = 0x11 (c.toml:6): bits outside of task.b.mark_mask = 0xf (c.toml:7); \
             give the labels values within",
        ),
        (
            &["mark = { x = 0x11 }\nmark_mask = 0xf"],
            "task.a.mark: x = 0x11 (c.toml:3): bits outside of task.a.mark_mask = 0xf (c.toml:4)",
        ),
        (
            &["", "mark_mask = 0xf"],
            "c.toml:6: task.b.mark_mask: no effect: no label of the task has a mark; add mark = \
             { LABEL = BITS }, or leave",
        ),
        (&[none], "c.toml:3: task.a.mark_mask: no effect"),
        (
            &["", "when = 'in_port = eth1, ehtO'", "\n[io]\ninterfaces = [\"eth0\", \"eth1\"]"],
            "c.toml:6: task.b.when: in_port = eth1, ehtO: there is no interface ehtO; \
             io.interfaces has eth0, eth1",
        ),
        (
            &["", "priority = 10"],
            "c.toml:6: task.b.priority: found 10, expected an integer from 0 to 9",
        ),
        (
            &["", "depths = [5, 3]"],
            "c.toml:6: task.b.depths: found [5, 3], expected depths that rise, each of them named \
             once",
        ),
        (
            &["", "dscp = { x = \"AF99\" }"],
            "c.toml:6: task.b.dscp.x: found \"AF99\", expected a DSCP name",
        ),
        (
            &["", "batch_sizes = [8, 4]"],
            "task.b.batch_sizes = [8, 4] (c.toml:6): batch sizes must ascend, each of them named \
             once",
        ),
        (
            &["", "max_wait_ms = 5"],
            "task.b.max_wait_ms = 5.0 (c.toml:6) with analytics.timeout_ms = 10.0 (built-in): \
             impossible combination",
        ),
        (&["", "policy = \"onoff\""], "c.toml:6: task.b.policy: found \"onoff\", expected one of"),
        (
            &["", "latency_goal_ms = 5"],
            "c.toml:6: task.b.latency_goal_ms: no effect: analytics.policy = \"carry-over\" \
             (built-in) plans for no goal; set \
             task.b.policy = \"slo\", or leave latency_goal_ms out",
        ),
        (
            &["", "slo_delta = 0.1\npolicy = \"max\""],
            "c.toml:6: task.b.slo_delta: no effect: task.b.policy = \"max\" (c.toml:7) plans for \
             no goal; set",
        ),
        // A slip in a section that all tasks share is one slip.
        (
            &["", "", "\n[cache]\nprefix = 20"],
            "cache.prefix = 20 (c.toml:11) with flow.k = 10 (built-in): impossible combination",
        ),
        (&[""; TASKS_MAX + 1], "c.toml:25: task.i: expected 8 tasks at most; leave some out"),
    ] {
        let file = tasks(lines);
        let problems = load(&file, &[], &[]).expect_err(&file);
        assert_eq!(problems.len(), 1, "{file}{problems:?}");
        assert!(problems[0].contains(says), "{file}{problems:?}");
    }
}

/// Messages show the start of long terms.
#[test]
fn long_terms_are_cut() {
    let word = "w".repeat(500);
    let interfaces = "\n[io]\ninterfaces = [\"eth0\"]";
    for (when, more) in [
        (format!("{word}.label = x"), ""),
        (format!("b.label = {word}"), ""),
        (format!("in_port = {word}"), interfaces),
        (format!("rule = {word} and rule != {word}"), ""),
    ] {
        let file = tasks(&["", &format!("when = '{when}'{more}")]);
        let problems = load(&file, &[], &[]).expect_err(&file);
        let line = problems.join("\n");
        assert!(line.contains("...") && line.len() < 400, "{line}");
    }
}

/// Another policy may be tried with a file of goals, and what is shown then means the same.
#[test]
fn a_later_layer_may_choose_a_policy_without_goals() {
    let file = tasks(&["policy = \"slo\"\nlatency_goal_ms = 5", "slo_delta = 0.1"])
        + "[analytics]\npolicy = \"on-off\"\n";
    let file = file.replace("\"slo\"", "\"on-off\"");
    let (config, effective) = load(&file, &[], &["analytics.policy=max"]).unwrap();
    let has_max = |config: &Config| {
        let mut tasks = config.tasks.iter();
        tasks.all(|task| task.batching.policy() == Policy::Max)
    };
    assert!(has_max(&config));
    let shown = effective.to_toml(false);
    let idle = ["# policy = \"on-off\"", "# latency_goal_ms = 5.0", "# slo_delta = 0.1"];
    assert!(idle.iter().all(|line| shown.contains(line)), "{shown}");
    let (again, _) = load(&shown, &[], &[]).unwrap();
    assert!(has_max(&again));
    // The goal comes later than the policy.
    let refused = load(&tasks(&[""]), &[], &["task.a.latency_goal_ms=5"]).unwrap_err();
    assert!(refused[0].starts_with("--set: task.a.latency_goal_ms: no effect"), "{refused:?}");
}

#[test]
fn a_task_that_needs_one_that_never_runs_never_runs_either() {
    let file = tasks(&[
        "when = 'b.label = x'",
        "when = 'c.label = x and sample = 0'",
        "",
        "when = 'a.label = x'",
    ]);
    let lines = load(&file, &[], &[]).unwrap_err();
    let starts = [
        "c.toml:6: task.b.when: sample = 0 never holds",
        "c.toml:3: task.a.when: it needs task b, which can never run",
        "c.toml:12: task.d.when: it needs task a, which can never run",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{lines:?}");
    }
}

#[test]
fn a_cascade_of_any_order_is_accepted() {
    let file = tasks(&[
        "when = 'c.confidence < 0.5'",
        "when = 'a.label = x and c.label = y'",
        "when = 'protocol = udp'",
    ]);
    let config = loaded(&file).config;
    let needs: Vec<Vec<usize>> =
        config.tasks.iter().map(|task| task.when.tasks().copied().collect()).collect();
    assert_eq!(needs, [vec![2], vec![0, 2], vec![]]);
    let (config, _) = load(&file, &[], &["task.c.when=", "task.a.dscp.TLS=AF21"]).unwrap();
    assert!(config.tasks[2].when.is_always());
    assert_eq!(config.tag.dscp[0].value.name(), Some("AF21"));
}

#[test]
fn goals_are_kept_in_one_way() {
    let tasks = |second: &str| {
        format!(
            "[[task]]\nname = \"a\"\npolicy = \"slo\"\n[[task]]\nname = \"b\"\npolicy = \
             \"{second}\"\n"
        )
    };
    load(&tasks("max"), &[], &[]).unwrap();
    let refused = load(&tasks("on-off"), &[], &[]).unwrap_err();
    assert_eq!(
        refused,
        ["c.toml:4: task.b: impossible combination: its policy is \"on-off\", and task a has \
             \"slo\"; give both the same"]
    );
}

#[test]
fn one_name_is_one_device_whichever_tasks_name_it() {
    let file = "[device.fast]\nprovider = \"cpu\"\n[[task]]\nname = \"a\"\ndevices = \
        [\"cpu\"]\n[[task]]\nname = \"b\"\n\
                devices = [\"fast\"]\n[[task]]\nname = \"c\"\ndevices = [\"cpu\"]\n";
    let (config, _) = load(file, &[], &[]).unwrap();
    let numbers: Vec<u8> = config.tasks.iter().map(|task| task.devices[0].number).collect();
    assert_eq!(numbers, [0, 1, 0]);
}
