//! What an operator sees of several tasks.

use super::*;

#[test]
fn every_view_tells_the_tasks_apart() {
    let mut served = Served::start(&[
        "--config",
        "configs/three-tasks.toml",
        "--set",
        "io.mode=tap",
        "--set",
        "accel.devices=[]",
        "--speed",
        "max",
    ]);
    // Analytics workers are asked before flow workers, so what they have just decided may still
    // count as waiting.
    let ended = |served: &Served| {
        let scrape = served.scrape();
        scrape.sum("fenxi_flows_ended_total", "") == 448.0
            && scrape.sum("fenxi_series_waiting", "") == 0.0
    };
    served.wait_for("all flows have ended", ended);
    let scrape = served.scrape();
    for task in ["protocol", "device", "second"] {
        let of = |name: &str, and: &str| scrape.sum(name, &format!("task=\"{task}\"{and}"));
        let emitted = of("fenxi_series_emitted_total", "");
        let met = of("fenxi_series_total", "") + of("fenxi_series_waiting", "");
        assert_eq!(emitted, met, "{task}");
        assert_eq!(of("fenxi_balance", ",of=\"series\""), 0.0, "{task}");
        let labels = of("fenxi_labels_total", "");
        // The ports name flows of the first task, and no answer contradicts them.
        let by_port = match task {
            "protocol" => scrape.sum("fenxi_flows_undecided_total", "named_by=\"port\""),
            _ => 0.0,
        };
        let decided = of("fenxi_flows_decided_total", "");
        assert_eq!(labels, decided + by_port, "{task}");
        assert_eq!(labels > 0.0, task != "device", "{task}");
        // No flow of the demo begins at a private address, and not all are TCP.
        let not_asked = of("fenxi_flows_not_asked_total", "");
        assert_eq!(not_asked > 0.0, task != "protocol", "{task}");
    }
    let passed_over = scrape.sum("fenxi_series_total", "task=\"second\",outcome=\"not_asked\"");
    assert!(passed_over > 0.0);
    let status = served.ctl(&["status"]).expect_code(0).stdout;
    for line in [
        "\ntask      protocol (protocol): ",
        "\ntask      device (iot-family): 0 series, 0 labels, ",
        "\ntask      second (app-id-k10): ",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let devices = served.ctl(&["devices"]).expect_code(0).stdout;
    assert!(devices.contains("native of second"), "{devices}");
    let flows = served.ctl(&["--json", "flows", "--top", "1000"]);
    let flows: Value = flows.expect_code(0).json();
    let rows = flows["flows"].as_array().expect("rows");
    let labelled = rows.iter().find(|row| row["labels"][0]["task"] == "second");
    let flow = labelled.expect("one that the second task was asked about");
    assert!(flow["labels"][0]["label"].is_string(), "{flow}");
    let id = flow["flow_id"].to_string();
    let said = served.ctl(&["explain", &id]).expect_code(0).stdout;
    for part in [
        "\ntask     protocol\n",
        "\ntask     device, when direction = out, inside and sample = 0.5\n",
        "not asked about this flow: direction = out, inside does not hold",
        "\ntask     second, when protocol = tcp and protocol.confidence < 0.9\n",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (_, page) = served.get("/");
    assert!(page.contains("<h2>Tasks</h2>"), "{page}");
}
