//! A task whose labels are bands of bytes to come, beside one of protocols. The truth of each flow
//! is worked out here from the packets of the capture, and the scores from the records; neither by
//! the program.

use std::net::IpAddr;
use std::process::Command;

use super::*;

/// Where the bands begin of a model that in truth names protocols: it has twelve labels.
const EDGES: [u64; 11] = [1, 100, 200, 400, 700, 1_000, 2_000, 4_000, 10_000, 20_000, 50_000];

/// A bundle of bands, asked after three packets with payload; and a configuration of two tasks in
/// which a rule takes flows of one band, and another band asks for a confidence.
fn configuration(dir: &Path) -> PathBuf {
    let bundle = dir.join("volume");
    let from = common::root().join("tests/bundles/data-k3");
    common::copy_bundle(&from, &bundle);
    let mut manifest = std::fs::read_to_string(from.join("model.toml")).expect("a manifest");
    manifest += &format!("\n[target]\nof = \"volume\"\nedges = {EDGES:?}\n");
    std::fs::write(bundle.join("model.toml"), manifest).expect("a manifest");
    let rules = "[[rule]]\nname = \"large\"\napp = \"volume.TLS\"\ndscp = 45\n";
    std::fs::write(dir.join("rules.toml"), rules).expect("rules");
    let protocol = common::shipped_bundle();
    let text = format!(
        "[policy]\nrules = \"rules.toml\"\n[model.class_confidence]\n\"volume.QUIC\" = 0.99\n\
         [[task]]\nname = \"protocol\"\nmodel = \"{}\"\n[[task]]\nname = \"volume\"\n\
         model = \"{}\"\n",
        protocol.display(),
        bundle.display()
    );
    let path = dir.join("fenxi.toml");
    std::fs::write(&path, text).expect("a configuration");
    path
}

type End = (IpAddr, u16);

/// A packet: its time, IP length, and whether it has payload.
type Seen = (i64, u64, bool);

/// The packets of the capture by the ends of their flows, of TCP and UDP over IPv4 or IPv6 without
/// extension headers.
fn packets() -> BTreeMap<(u8, [End; 2]), Vec<Seen>> {
    let mut packets: BTreeMap<_, Vec<Seen>> = BTreeMap::new();
    for (frame, bytes) in common::packets::read_capture(&common::demo()) {
        let (kind, ip) = (u16::from_be_bytes([bytes[12], bytes[13]]), &bytes[14..]);
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let (header, length, protocol, addresses): (_, _, _, [IpAddr; 2]) = match kind {
            0x0800 => {
                let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).expect("four");
                let header = usize::from(ip[0] & 15) * 4;
                (header, word(2), ip[9], [12, 16].map(|at| address(at).into()))
            }
            0x86dd => {
                let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).expect("16");
                (40, word(4) + 40, ip[6], [8, 24].map(|at| address(at).into()))
            }
            _ => continue,
        };
        let own = match protocol {
            6 => usize::from(ip[header + 12] >> 4) * 4,
            17 => 8,
            _ => continue,
        };
        let mut ends = [(addresses[0], word(header)), (addresses[1], word(header + 2))];
        ends.sort();
        let has_payload = usize::from(length) > header + own;
        let seen = (frame.time_us, u64::from(length), has_payload);
        packets.entry((protocol, ends)).or_default().push(seen);
    }
    packets
}

/// A final record: what it says of a flow, and what its packets say.
struct Flow {
    record: Value,
    said: Option<Value>,
    /// Bytes and packets behind the third packet with payload.
    to_come: u64,
    packets_to_come: usize,
}

impl Flow {
    /// The band by its packets, if that is known.
    fn band(&self, labels: &[String]) -> Option<usize> {
        let band = EDGES.iter().filter(|edge| **edge <= self.to_come).count();
        let is_cut = ["drain", "evicted"].map(Value::from).contains(&self.record["end_reason"]);
        let said = self.said.as_ref()?["label"].as_str()?;
        let said = labels.iter().position(|label| label == said).unwrap_or(labels.len());
        (!is_cut || band == EDGES.len() || band > said).then_some(band)
    }
}

fn flows(records: &[Value]) -> Vec<Flow> {
    let time = |record: &Value, field: &str| {
        let text = record[field].as_str().expect("a time");
        text.parse::<jiff::Timestamp>().expect("RFC 3339").as_microsecond()
    };
    let packets = packets();
    // ICMP gets no scores.
    let scored = |record: &Value| record["proto"] == 6 || record["proto"] == 17;
    let ended = records.iter().filter(|record| record["final"] == true && scored(record));
    let flow = |record: &Value| {
        let end = |host: &str, port: &str| {
            let address: IpAddr = record[host].as_str().expect("text").parse().expect("one");
            (address, record[port].as_u64().expect("a port") as u16)
        };
        let mut ends = [end("src", "src_port"), end("dst", "dst_port")];
        ends.sort();
        let protocol = record["proto"].as_u64().expect("a number") as u8;
        let (first, last) = (time(record, "first"), time(record, "last"));
        let mut left = packets[&(protocol, ends)].iter();
        let mut own = left.by_ref().filter(|it| (first..=last).contains(&it.0));
        own.by_ref().filter(|it| it.2).nth(2);
        let lengths: Vec<u64> = own.map(|it| it.1).collect();
        let mut said = record["labels"].as_array().expect("labels of tasks").iter();
        let said = said.find(|it| it["task"] == "volume" && !it["time_to_label_us"].is_null());
        Flow {
            record: record.clone(),
            said: said.cloned(),
            to_come: lengths.iter().sum(),
            packets_to_come: lengths.len(),
        }
    };
    ended.map(flow).collect()
}

/// The scores, as the records tell them.
fn expected(flows: &[Flow], labels: &[String]) -> Vec<Value> {
    let judged: Vec<(&str, usize, u64)> = flows
        .iter()
        .filter_map(|flow| {
            let said = flow.said.as_ref()?["label"].as_str()?;
            Some((said, flow.band(labels)?, flow.to_come))
        })
        .collect();
    let bands = labels.iter().map(String::as_str).chain(["unknown"]).enumerate();
    let rows = bands.map(|(band, label)| {
        let said = judged.iter().filter(|it| it.0 == label);
        serde_json::json!({
            "label": label,
            "said": said.clone().count(),
            "proved": judged.iter().filter(|it| it.1 == band).count(),
            "hits": said.clone().filter(|it| it.1 == band).count(),
            "bytes": said.map(|it| it.2).sum::<u64>(),
        })
    });
    rows.collect()
}

/// The counts of a score, without the shares.
fn counts(model: &Value) -> Vec<Value> {
    let bands = model["bands"].as_array().expect("bands").iter().cloned();
    let counts = bands.map(|mut band| {
        let fields = band.as_object_mut().expect("an object");
        fields.retain(|name, _| !["precision", "recall", "bytes_share"].contains(&name.as_str()));
        band
    });
    counts.collect()
}

fn replay(config: &Path, dir: &Path, options: &[&str]) -> (Value, Vec<Value>) {
    let records = dir.join("flows.jsonl");
    let mut command: Command = common::fenxi(["replay", "--json", "--flows"]);
    command.arg(&records).arg(common::demo()).arg("--config").arg(config);
    command.args(["--set", "flow.max_flows=16384"]).args(options);
    let summary = common::run(command).expect_code(0).json();
    (summary, common::json_lines(&records))
}

/// The scores, the records and the packets on which a rule acts.
#[test]
fn scores_are_what_packets_and_records_tell_in_every_layout() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path());
    let labels = common::labels(&common::root().join("tests/bundles/data-k3"));
    let written = dir.path().join("written.pcap");
    let options = ["--write", written.to_str().expect("a path"), "--set", "pipeline.layout=1:0:0"];
    let (summary, records) = replay(&config, dir.path(), &options);
    let flows = flows(&records);
    for flow in &flows {
        let told = flow.said.as_ref().and_then(|said| said["true_label"].as_str());
        let band = flow.band(&labels).map(|band| labels[band].as_str());
        assert_eq!(told, band, "{} to come: {}", flow.to_come, flow.record);
    }
    let earlier = records.iter().filter(|it| it["final"] != true);
    assert!(earlier.clone().count() > 0);
    assert!(earlier.map(Value::to_string).all(|it| !it.contains("true_label")));

    let scores = &summary["scores"];
    assert_eq!(scores.as_array().map(Vec::len), Some(1), "the other task has no bands");
    assert_eq!((&scores[0]["task"], &scores[0]["of"]), (&"volume".into(), &"volume".into()));
    let model = &scores[0]["models"][0];
    assert_eq!(counts(model), expected(&flows, &labels));
    let said = flows.iter().filter(|flow| flow.said.is_some());
    let judged = said.clone().filter(|flow| flow.band(&labels).is_some()).count();
    assert!(judged > 50 && judged < said.clone().count(), "{judged}");
    assert_eq!(model["flows"], judged);
    assert_eq!(model["cut"], said.count() - judged);
    // The bound on the confidence has held back a band, and the rule has taken flows of another.
    let band = |label: &str| counts(model).into_iter().find(|it| it["label"] == label);
    assert!(band("unknown").is_some_and(|it| it["said"] != 0), "{model}");
    let of_band = |flow: &&Flow| flow.said.as_ref().is_some_and(|said| said["label"] == "TLS");
    let ruled = flows.iter().filter(of_band).map(|flow| flow.packets_to_come + 1);
    let written = common::packets::read_capture(&written);
    let of_rule = written.iter().filter(|(_, bytes)| match bytes[12..14] {
        [0x08, 0x00] => bytes[15] >> 2 == 45,
        _ => ((bytes[14] & 15) << 2 | bytes[15] >> 6) == 45,
    });
    assert_eq!(of_rule.count(), ruled.sum::<usize>());

    for layout in ["3:0:0", "1:1:1", "2:2:2", "4:1:1"] {
        let layout = format!("pipeline.layout={layout}");
        let (other, _) = replay(&config, dir.path(), &["--set", &layout]);
        assert_eq!(&other["scores"], scores, "{layout}");
    }
}

#[test]
fn an_operator_sees_how_bands_have_held() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = configuration(dir.path());
    let (summary, records) = replay(&config, dir.path(), &[]);
    let config = config.display().to_string();
    let args = ["--config", &config, "--set", "accel.devices=[]", "--speed", "max"];
    let mut served = Served::start(&args);
    let ended = records.iter().filter(|it| it["final"] == true).count() as f64;
    served.wait_for("all flows have ended", |served| {
        served.scrape().sum("fenxi_flows_ended_total", "") == ended
    });
    let scores: Value = served.ctl(&["--json", "model", "scores"]).expect_code(0).json();
    assert_eq!(scores["scores"], summary["scores"]);
    let model = &summary["scores"][0]["models"][0];
    let scrape = served.scrape();
    let of = |name: &str, labels: &str| scrape.sum(name, labels) as u64;
    let bands = model["bands"].as_array().expect("bands");
    for band in bands {
        let label = format!("task=\"volume\",label={}", band["label"]);
        assert_eq!(of("fenxi_band_flows_total", &label), band["said"]);
        assert_eq!(of("fenxi_band_bytes_total", &label), band["bytes"]);
    }
    assert_eq!(of("fenxi_band_flows_cut_total", ""), model["cut"]);
    let error = scrape.sum("fenxi_band_calibration_error_ratio", "");
    assert_eq!(Value::from(error), model["calibration_error"]);
    let page = served.ctl(&["model", "scores"]).expect_code(0).stdout;
    assert!(page.starts_with("volume: volume, edges 1; 100; "), "{page}");
    assert!(page.contains("label     said  proved  precision  recall  bytes to come"), "{page}");
    let said = flows(&records).into_iter().find_map(|flow| {
        let said = flow.said.filter(|said| said["label"] == "TLS");
        said.map(|_| flow.record["flow_id"].to_string())
    });
    let said = served.ctl(&["explain", &said.expect("a flow")]).expect_code(0).stdout;
    assert!(said.contains("TLS, 20.0 kB to 50.0 kB to come: "), "{said}");
}
