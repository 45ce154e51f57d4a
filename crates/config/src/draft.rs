//! What values are stored into before they are held against each other, and how those are stored that are more than a
//! number or a text.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use accel::{Faults, Provider};
use flowmgr::Behaviour;
use netfilter::nft_set::Field;

mod task;

use crate::checked::{
    BehaviourMark, Behaviours, Cache, ClassConfidence, Connlabel, ConnlabelMapping, Control,
    Destination, DeviceThread, DscpMapping, Endpoint, Flow, HttpPlace, Io, Ipfix, Kafka, Log, Mark,
    MarkMapping, Model, NftSet, Pipeline, Policy, Records, Ring, Rotate, Tag,
};
use crate::layout::{Layout, PARTS_MAX};
use crate::levels::Levels;
use crate::nearest::nearest;
use crate::network::Network;
use crate::setting::{EntrySetting, Setting};
use crate::store::{FromValue, Stored};
use crate::words::words;

pub use task::{Batching, LabelsDraft, PolicyName, TaskDraft, task_depths, task_name, task_when};

/// `flow.active_timeout_s` of live traffic, where the user says nothing.
pub const ACTIVE_TIMEOUT_LIVE: Duration = Duration::from_secs(120);
/// `flow.half_open_timeout_s` of live traffic. Common systems repeat a SYN after 1, 2, 4 and 8 s; these are still one flow.
pub const HALF_OPEN_TIMEOUT_LIVE: Duration = Duration::from_secs(10);
/// `flow.established_timeout_s` of live traffic. Push services and WebSockets send something at least every 30 minutes.
pub const ESTABLISHED_TIMEOUT_LIVE: Duration = Duration::from_secs(2100);

/// How long a batch may take unless the device's table says otherwise.
const DEADLINE: Duration = Duration::from_secs(1);

/// The longest path of a Unix socket, in bytes: `sun_path` of `sockaddr_un`, less the NUL at its end.
const SOCKET_PATH_MAX: usize = 107;

words! {
    /// `tag.mode`.
    pub enum TagMode {
        /// Packets of labelled flows get a DSCP.
        #[default]
        Dscp = "dscp",
        /// No packet is changed.
        Off = "off",
    }
}

/// The values of all keys outside of tables with names of the user's choice. Parts that are what the program uses have the
/// program's types; the other fields only mean something together.
#[derive(Debug, Default)]
pub struct Draft {
    /// As checked.
    pub io: Io,
    /// As checked, but for `buckets`: 0 where the user left it open.
    pub flow: Flow,
    /// As checked.
    pub behaviour: Behaviours,
    /// As checked.
    pub tag: Tag,
    /// As checked.
    pub mark: Mark,
    /// As checked.
    pub connlabel: Connlabel,
    /// As checked.
    pub ring: Ring,
    /// `[analytics]`.
    pub batching: Batching,
    /// `[cache]`, also where it is off.
    pub cache: Cache,
    /// As checked.
    pub pipeline: Pipeline,
    /// `[accel]`.
    pub accel: AccelDraft,
    /// As checked.
    pub model: Model,
    /// As checked.
    pub host_networks: Vec<Network>,
    pub policy: Policy,
    /// As checked, but for `rotate`.
    pub records: Records,
    /// As checked.
    pub ipfix: Ipfix,
    /// As checked.
    pub kafka: Kafka,
    /// Also where files never rotate.
    pub rotate: Rotate,
    /// As checked.
    pub control: Control,
    /// `control.http_exposed`.
    pub http_exposed: bool,
    /// As checked.
    pub sandbox: bool,
    /// As checked.
    pub log: Log,
}

/// `[accel]`.
#[derive(Debug, Default)]
pub struct AccelDraft {
    /// Devices by name.
    pub devices: Vec<String>,
    /// The ONNX Runtime library.
    pub library: Option<PathBuf>,
    /// Folder of measured profiles.
    pub profiles: Option<PathBuf>,
    /// µs per batch of simulated devices.
    pub simulated_t0_us: f64,
    /// µs per series of simulated devices.
    pub simulated_t1_us: f64,
    /// Whether devices take the sizes of the configuration only.
    pub fixed_sizes: bool,
}

/// A `[device.NAME]` table; `None` where it leaves a key out and the default depends on other keys.
#[derive(Debug)]
pub struct DeviceDraft {
    /// What runs the model.
    pub provider: Option<&'static Provider>,
    /// Library of a plug-in provider.
    pub plugin: Option<PathBuf>,
    /// Options of the provider.
    pub options: Vec<(String, String)>,
    /// Sizes to choose from.
    pub batch_sizes: Option<Vec<usize>>,
    /// Whether the device takes these only.
    pub fixed_sizes: Option<bool>,
    /// The thread that runs its batches.
    pub thread: Option<DeviceThread>,
    /// How long a batch may take; `None`: for ever.
    pub deadline: Option<Duration>,
    /// File of a profile.
    pub profile: Option<PathBuf>,
    /// µs per batch.
    pub simulated_t0_us: Option<f64>,
    /// µs per series.
    pub simulated_t1_us: Option<f64>,
    /// Faults to inject.
    pub faults: Option<Faults>,
}

impl Default for DeviceDraft {
    fn default() -> DeviceDraft {
        DeviceDraft {
            provider: None,
            plugin: None,
            options: Vec::new(),
            batch_sizes: None,
            fixed_sizes: None,
            thread: None,
            deadline: Some(DEADLINE),
            profile: None,
            simulated_t0_us: None,
            simulated_t1_us: None,
            faults: None,
        }
    }
}

/// -1 stands for "off in a replay, and so long live"; 0 for "off"; all others for themselves in both.
pub fn timeouts(
    setting: &Setting,
    by_default_live: Duration,
    replay: &mut Option<Duration>,
    live: &mut Option<Duration>,
) -> Stored {
    if setting.get::<i64>()? < 0 {
        (*replay, *live) = (None, Some(by_default_live));
        return Ok(());
    }
    setting.put_seconds_or_off(replay)?;
    *live = *replay;
    Ok(())
}

pub fn hash_seed(setting: &Setting, place: &mut Option<u64>) -> Stored {
    let seed = setting.get()?;
    *place = (seed != 0).then_some(seed);
    Ok(())
}

pub fn tag_mode(setting: &Setting, tag: &mut Tag) -> Stored {
    tag.enabled = setting.get::<TagMode>()? == TagMode::Dscp;
    Ok(())
}

pub fn dscp_rules(setting: &Setting, place: &mut Vec<DscpMapping>) -> Stored {
    setting.put_entries(place, |label, dscp, entry| DscpMapping {
        label: label.to_owned(),
        dscp,
        required: !entry.is_default,
        origin: entry.origin.clone(),
    })
}

pub fn mark_rules(setting: &Setting, place: &mut Vec<MarkMapping>) -> Stored {
    setting.put_entries(place, |label, bits, entry| MarkMapping {
        label: label.to_owned(),
        mark: bits,
        required: !entry.is_default,
        origin: entry.origin.clone(),
    })
}

pub fn behaviour_marks(setting: &Setting, place: &mut Vec<BehaviourMark>) -> Stored {
    let named = Behaviour::ALL
        .into_iter()
        .filter(|it| *it != Behaviour::None);
    let known: Vec<&str> = named.map(Behaviour::name).collect();
    let mut rows: Vec<(String, u32)> = Vec::new();
    setting.put_entries(&mut rows, |name, bits, _| (name.to_owned(), bits))?;
    place.clear();
    for (name, mark) in rows {
        let behaviour = Behaviour::ALL.into_iter().find(|it| it.name() == name);
        let Some(behaviour) = behaviour.filter(|it| *it != Behaviour::None) else {
            let near = nearest(&name, known.iter().copied());
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            return Err(format!(
                "found \"{name}\", expected some of {}{near}",
                known.join(", ")
            ));
        };
        place.push(BehaviourMark { behaviour, mark });
    }
    Ok(())
}

pub fn connlabels(setting: &Setting, connlabel: &mut Connlabel) -> Stored {
    setting.put_entries(&mut connlabel.class, |label, connlabel, entry| {
        ConnlabelMapping {
            label: label.to_owned(),
            connlabel,
            origin: entry.origin.clone(),
        }
    })
}

pub fn nft_set(setting: &Setting, set: &mut NftSet) -> Stored {
    let name: String = setting.get()?;
    set.set = Some(name.parse()?);
    Ok(())
}

pub fn nft_set_key(setting: &Setting, set: &mut NftSet) -> Stored {
    let names: Vec<String> = setting.get()?;
    let field = |name: &String| {
        Field::parse(name).ok_or_else(|| {
            let near = nearest(name, Field::NAMES);
            let near = near.map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
            format!(
                "found \"{name}\", expected some of {}{near}",
                Field::NAMES.join(", ")
            )
        })
    };
    set.key = names.iter().map(field).collect::<Result<_, _>>()?;
    Ok(())
}

pub fn class_confidences(setting: &Setting, model: &mut Model) -> Stored {
    let place = &mut model.class_confidence;
    setting.put_entries(place, |label, confidence, entry: &EntrySetting| {
        ClassConfidence {
            label: label.to_owned(),
            confidence,
            origin: entry.origin.clone(),
        }
    })
}

pub fn min_confidence(setting: &Setting, place: &mut Option<f32>) -> Stored {
    let share: f32 = setting.get()?;
    *place = (share >= 0.0).then_some(share);
    Ok(())
}

pub fn layout(setting: &Setting, place: &mut Layout) -> Stored {
    let text: String = setting.get()?;
    *place = Layout::parse(&text).ok_or_else(|| {
        format!("expected a layout F:A:D of three numbers from 1 to {PARTS_MAX}, such as 1:1:1")
    })?;
    Ok(())
}

pub fn records_path(setting: &Setting, place: &mut Option<PathBuf>) -> Stored {
    if setting.get::<String>()? == "-" {
        return Err(
            "expected the path of a file; `fenxi run --flows -` writes to stdout".to_owned(),
        );
    }
    setting.put_path(place)
}

pub fn socket_backlog(setting: &Setting, records: &mut Records) -> Stored {
    records.socket_backlog = setting.get::<usize>()? << 10;
    Ok(())
}

pub fn destination(setting: &Setting, place: &mut Option<Destination>) -> Stored {
    let text: String = setting.get()?;
    *place = Destination::parse(&text, |path| setting.origin.resolve(path));
    match place.is_none() && !text.is_empty() {
        true => Err(
            "expected udp://HOST:PORT, tcp://HOST:PORT or file:PATH; brackets around an IPv6 address".to_owned(),
        ),
        false => Ok(()),
    }
}

pub fn brokers(setting: &Setting, kafka: &mut Kafka) -> Stored {
    let texts: Vec<String> = setting.get()?;
    let broker = |text: &String| {
        let refusal = "expected HOST:PORT; brackets around an IPv6 address";
        Endpoint::parse(text).ok_or_else(|| format!("found \"{text}\", {refusal}"))
    };
    kafka.brokers = texts.iter().map(broker).collect::<Result<_, String>>()?;
    Ok(())
}

pub fn topic(setting: &Setting, place: &mut String) -> Stored {
    let topic: String = setting.get()?;
    // What a broker accepts.
    let is_of_topic = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !(1..=249).contains(&topic.len()) || !topic.chars().all(is_of_topic) {
        return Err("expected 1 to 249 letters, digits, dots, underscores and hyphens".to_owned());
    }
    *place = topic;
    Ok(())
}

pub fn kafka_options(setting: &Setting, kafka: &mut Kafka) -> Stored {
    setting.put_entries(&mut kafka.options, |name, value, _| {
        (name.to_owned(), value)
    })
}

pub fn rotate_bytes(setting: &Setting, rotate: &mut Rotate) -> Stored {
    rotate.bytes = setting.get::<u64>()? << 20;
    Ok(())
}

pub fn http(setting: &Setting, place: &mut Option<HttpPlace>) -> Stored {
    let text: String = setting.get()?;
    *place = HttpPlace::parse(&text, |path| setting.origin.resolve(path));
    match place {
        None if !text.is_empty() => Err(
            "expected an address and a port such as 127.0.0.1:9469, or unix: and a path".to_owned(),
        ),
        Some(HttpPlace::Unix(path)) => fits_a_socket(path.as_os_str().len()),
        _ => Ok(()),
    }
}

pub fn socket(setting: &Setting, place: &mut Option<PathBuf>) -> Stored {
    setting.put_path(place)?;
    fits_a_socket(place.as_ref().map_or(0, |path| path.as_os_str().len()))
}

fn fits_a_socket(length: usize) -> Stored {
    match length > SOCKET_PATH_MAX {
        true => Err(format!(
            "the path of a Unix socket has at most {SOCKET_PATH_MAX} bytes, and this one has {length}; name a shorter one"
        )),
        false => Ok(()),
    }
}

pub fn log_level(setting: &Setting, place: &mut String) -> Stored {
    setting.put(place)?;
    Levels::parse(place)
        .map(drop)
        .map_err(|error| error.to_string())
}

pub fn options(setting: &Setting, place: &mut Vec<(String, String)>) -> Stored {
    setting.put_entries(place, |name, value, _| (name.to_owned(), value))
}

pub fn deadline(setting: &Setting, place: &mut Option<Duration>) -> Stored {
    let mut deadline = Duration::ZERO;
    setting.put_milliseconds(&mut deadline)?;
    *place = (!deadline.is_zero()).then_some(deadline);
    Ok(())
}

pub fn faults(setting: &Setting, place: &mut Option<Faults>) -> Stored {
    let text: String = setting.get()?;
    *place = match text.is_empty() {
        true => None,
        false => Some(text.parse().map_err(|error| format!("{error}"))?),
    };
    Ok(())
}

/// A list of addresses.
pub fn addresses(setting: &Setting, place: &mut Vec<IpAddr>) -> Stored {
    let names: Vec<String> = setting.get()?;
    let address = |name: &String| {
        name.parse()
            .map_err(|_| format!("{name:?} is no address; write it as 192.168.0.1 or 2001:db8::1"))
    };
    *place = names.iter().map(address).collect::<Result<_, _>>()?;
    Ok(())
}

/// A list of networks.
pub fn networks(setting: &Setting, place: &mut Vec<Network>) -> Stored {
    let names: Vec<String> = setting.get()?;
    *place = names
        .iter()
        .map(|name| name.parse())
        .collect::<Result<_, _>>()?;
    Ok(())
}

impl FromValue for &'static Provider {
    fn from_value(value: &toml::Value) -> Option<Self> {
        Provider::parse(value.as_str()?)
    }
}
