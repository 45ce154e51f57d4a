//! What labels lead to: DSCP of packets and marks of connections.

use flowmgr::Behaviour;
use policy::{Action, Dscp, LabelRule};

use crate::kind::{Kind, MARK_MASK, integer};
use crate::origin::Origin;
use crate::section;
use crate::setting::Setting;
use crate::suggest;
use crate::value::FromValue;
use crate::words::words;

section! {
    /// Marking of labelled packets.
    pub struct Tag = One "tag";

    /// whether packets of labelled flows get the DSCP of their label
    enabled: bool = live "mode", Kind::OneOf(TagMode::NAMES), "\"dscp\"", "" => is_dscp;
    /// mode mark, io.capture = "kernel": whether the kernel writes the DSCP of labelled flows into
    /// the packets that it forwards
    in_kernel: bool = restart "in_kernel", Kind::Bool, "false", "";
    /// label or taxonomy to DSCP; labels not named here leave packets as they are; a table in a
    /// file replaces the built-in one
    dscp: Vec<Mapping<Dscp>> = live "dscp", Kind::Map(&Kind::Dscp),
        "{ DNS = \"AF21\", SSH = \"AF21\", TLS = \"AF11\", HTTP = \"AF11\", SNMP = \"CS2\", NTP \
         = \"CS2\", MQTT = \"CS2\", NetBIOS = \"CS1\" }", "DSCP: a name or 0 to 63" => mappings;
}

words! {
    /// `tag.mode`.
    enum TagMode {
        /// Packets of labelled flows get a DSCP.
        #[default]
        Dscp = "dscp",
        /// No packet is changed.
        Off = "off",
    }
}

fn is_dscp(setting: &Setting) -> Result<bool, String> {
    Ok(setting.get::<TagMode>()? == TagMode::Dscp)
}

/// What a label leads to: an entry of `tag.dscp`, of `mark.class`, whose bits lie in the mask, or
/// of `model.class_confidence`.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapping<V> {
    /// Label or taxonomy of the model.
    pub label: String,
    /// Code point of packets, bits of connection marks, or least confidence of the label, 0 to 1.
    pub value: V,
    /// Whether a model without this label is an error: the user named it, with another value than
    /// the built-in one.
    pub required: bool,
    /// Where the entry was set.
    pub origin: Origin,
}

pub(super) fn mappings<V: FromValue>(setting: &Setting) -> Result<Vec<Mapping<V>>, String> {
    setting.rows(|label, value, entry| Mapping {
        label: label.to_owned(),
        value,
        required: !entry.is_default,
        origin: entry.origin.clone(),
    })
}

impl<V> Mapping<V> {
    /// The rule that it asks for, from the table called `table`.
    fn rule(&self, action: Action, table: &str) -> LabelRule {
        LabelRule {
            label: self.label.clone(),
            action,
            required: self.required,
            origin: format!("{}: {table}", self.origin),
        }
    }
}

impl Mapping<Dscp> {
    pub(super) fn dscp_rule(&self, table: &str) -> LabelRule {
        self.rule(Action { dscp: Some(self.value), mark: None }, table)
    }
}

impl Mapping<u32> {
    pub(super) fn mark_rule(&self, mask: u32, table: &str) -> LabelRule {
        let mark = policy::Mark { bits: self.value, mask };
        self.rule(Action { dscp: None, mark: Some(mark) }, table)
    }
}

section! {
    /// Marks of connections, where the kernel forwards.
    pub struct Mark = One "mark";

    /// mode mark: what a mark holds: label: the bits of the label in mark.class; dscp: the DSCP of
    /// the label in tag.dscp, in the form that tc ... action ctinfo dscp 63 128 reads
    holds: MarkAs = live "as", Kind::OneOf(MarkAs::NAMES), "\"label\"", "";
    /// mode mark: the bits that fenxi may write; it leaves all others as they are; where mark.as
    /// is dscp, 0xbf
    mask: u32 = live "mask", MARK_MASK, "0xff000000", "bits of the connection mark";
    /// whether a label replaces bits within mark.mask that are set already; false: they stay
    overwrite: bool = live "overwrite", Kind::Bool, "false", "";
    /// the zone of the connections, where rules give them one (ct zone set); no others are found
    zone: u16 = restart "zone", integer(0, u16::MAX as i64), "0", "zone of conntrack";
    /// how many marks may wait to be written; more are dropped and counted
    queue: usize = restart "queue", integer(64, 1 << 20), "16384", "updates";
    /// label or taxonomy to bits of the connection mark; labels not named here leave connections
    /// as they are; a table in a file replaces the built-in one
    class: Vec<Mapping<u32>> = live "class", Kind::Map(&MARK_MASK),
        "{ TLS = 0x1000000, HTTP = 0x2000000, DNS = 0x4000000, SSH = 0x5000000, SNMP = \
         0x6000000, NetBIOS = 0x7000000, MQTT = 0x8000000, NTP = 0x9000000 }",
        "bits of the connection mark, within mark.mask" => mappings;
    /// mode mark: behaviour (bulk, interactive, realtime, idle) to bits of the connection mark;
    /// the mark follows the behaviour, so all these bits are replaced with each change, whatever
    /// mark.overwrite says; a behaviour not named here clears them
    behaviour: Vec<BehaviourMark> = live "behaviour", Kind::Map(&MARK_MASK), "{}",
        "bits of the connection mark, outside of mark.mask" => behaviour_marks;
}

words! {
    /// What the mark of a connection holds.
    pub enum MarkAs {
        /// The bits of the label in `mark.class`.
        #[default]
        Label = "label",
        /// The DSCP of the label in `tag.dscp`, as `tc ... action ctinfo dscp 63 128` reads it.
        Dscp = "dscp",
    }
}

/// One entry of `mark.behaviour`.
#[derive(Debug, Clone, PartialEq)]
pub struct BehaviourMark {
    /// What the flow does.
    pub behaviour: Behaviour,
    /// Bits of the connection mark.
    pub mark: u32,
}

fn behaviour_marks(setting: &Setting) -> Result<Vec<BehaviourMark>, String> {
    let named = Behaviour::ALL.into_iter().filter(|it| *it != Behaviour::None);
    let rows = setting.rows(|name, mark, _| (name.to_owned(), mark))?;
    let row = |(name, mark): (String, u32)| {
        let behaviour = named.clone().find(|it| it.name() == name);
        let behaviour = behaviour.ok_or_else(|| {
            let known: Vec<&str> = named.clone().map(Behaviour::name).collect();
            let near = suggest(&name, known.iter().copied());
            format!("found \"{name}\", expected some of {}{near}", known.join(", "))
        });
        behaviour.map(|behaviour| BehaviourMark { behaviour, mark })
    };
    rows.into_iter().map(row).collect()
}

impl Tag {
    /// The rules for packets; none where packets are not marked at all.
    pub fn rules(&self) -> Vec<LabelRule> {
        let rows = self.dscp.iter().filter(|_| self.enabled);
        rows.map(|row| row.dscp_rule("tag.dscp")).collect()
    }
}

impl Mark {
    /// The key that gives labels their bits.
    pub fn table(&self) -> &'static str {
        match self.holds {
            MarkAs::Label => "mark.class",
            MarkAs::Dscp => "tag.dscp",
        }
    }

    /// The rules for connections.
    pub fn rules(&self) -> Vec<LabelRule> {
        let rows = self.class.iter();
        rows.map(|row| row.mark_rule(self.mask, self.table())).collect()
    }

    /// The bits that behaviours may write.
    pub fn behaviour_mask(&self) -> u32 {
        self.behaviour.iter().fold(0, |mask, row| mask | row.mark)
    }
}
