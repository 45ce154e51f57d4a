//! The fields of records in order, and their templates for collectors (RFC 7011 §3.4).

use crate::NAME_MAX;

/// A field of a template.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Number of the information element in IANA's registry.
    element: u16,
    /// Bytes.
    length: u16,
    /// Describes the reverse direction (RFC 5103 §6.1).
    is_reverse: bool,
}

/// The private enterprise number of reverse information elements (RFC 5103 §6.1).
const REVERSE: u32 = 29_305;
/// Marks that an enterprise number follows (RFC 7011 §3.2).
const ENTERPRISE_BIT: u16 = 0x8000;

/// Set of templates.
pub(crate) const TEMPLATE_SET: u16 = 2;
/// Set of options templates.
pub(crate) const OPTIONS_TEMPLATE_SET: u16 = 3;
/// Template of IPv4 flows.
pub const FLOW_V4: u16 = 256;
/// Template of IPv6 flows.
pub const FLOW_V6: u16 = 257;
/// Options template of applications (RFC 6759 §6.5).
pub(crate) const APPLICATION: u16 = 258;

const fn field(element: u16, length: u16) -> Field {
    Field { element, length, is_reverse: false }
}

const fn reverse(element: u16, length: u16) -> Field {
    Field { is_reverse: true, ..field(element, length) }
}

/// Number of a flow's fields, without [`MEASURED`].
const FIELDS: usize = 26;
/// The length of a field that says its own (RFC 7011 §7).
const VARIABLE: u16 = u16::MAX;

/// Fields of a flow, with these elements of addresses of `bytes` bytes and of ICMP.
const fn flow_fields([source, destination, icmp]: [u16; 3], bytes: u16) -> [Field; FIELDS] {
    [
        field(source, bytes),
        field(destination, bytes),
        field(7, 2),   // sourceTransportPort
        field(11, 2),  // destinationTransportPort
        field(4, 1),   // protocolIdentifier
        field(136, 1), // flowEndReason
        field(239, 1), // biflowDirection
        field(152, 8), // flowStartMilliseconds
        field(153, 8), // flowEndMilliseconds
        field(2, 8),   // packetDeltaCount
        field(1, 8),   // octetDeltaCount
        reverse(2, 8), // reversePacketDeltaCount
        reverse(1, 8), // reverseOctetDeltaCount
        field(148, 8), // flowId
        field(95, 4),  // applicationId
        field(60, 1),  // ipVersion
        // commonPropertiesId, in one of its eight bytes (RFC 7011 §6.2): the behaviour
        field(137, 1),
        // Of two elements nfdump knows no reverse ones, and keeps what comes last.
        reverse(6, 1),       // reverseTcpControlBits
        field(6, 1),         // tcpControlBits
        reverse(5, 1),       // reverseIpClassOfService
        field(5, 1),         // ipClassOfService
        field(55, 1),        // postIpClassOfService
        field(10, 4),        // ingressInterface
        field(14, 4),        // egressInterface
        field(icmp, 2),      // icmpTypeCodeIPv4 or …IPv6
        field(96, VARIABLE), // applicationName
    ]
}

/// sourceIPv4Address, destinationIPv4Address, icmpTypeCodeIPv4.
const V4: [Field; FIELDS] = flow_fields([8, 12, 32], 4);
/// sourceIPv6Address, destinationIPv6Address, icmpTypeCodeIPv6.
const V6: [Field; FIELDS] = flow_fields([27, 28, 139], 16);
/// Further fields where features are measured.
const MEASURED: [Field; 5] = [
    field(162, 4),  // flowDurationMicroseconds
    field(25, 2),   // minimumIpTotalLength
    field(26, 2),   // maximumIpTotalLength
    reverse(25, 2), // reverseMinimumIpTotalLength
    reverse(26, 2), // reverseMaximumIpTotalLength
];
/// applicationId, the scope, and applicationName. Names are padded with NUL: nfdump and others
/// refuse options of variable length.
const APPLICATIONS: [Field; 2] = [field(95, 4), field(96, NAME_MAX as u16)];

/// Bytes of a flow record at most.
pub(crate) fn record_length_max(template: u16) -> usize {
    let fields = if template == FLOW_V4 { &V4 } else { &V6 };
    let length = |field: &Field| match field.length {
        VARIABLE => 1 + NAME_MAX,
        length => usize::from(length),
    };
    fields.iter().chain(&MEASURED).map(length).sum()
}

/// Appends the templates of flows, without their set header.
pub(crate) fn put_templates(has_measured: bool, to: &mut Vec<u8>) {
    let more = if has_measured { &MEASURED[..] } else { &[] };
    for (number, fields) in [(FLOW_V4, &V4), (FLOW_V6, &V6)] {
        put(number, to);
        put((fields.len() + more.len()) as u16, to);
        put_fields(fields, to);
        put_fields(more, to);
    }
}

/// Appends the options template of applications, whose first field is the scope (RFC 7011
/// §3.4.2.2).
pub(crate) fn put_options_template(to: &mut Vec<u8>) {
    put(APPLICATION, to);
    put(APPLICATIONS.len() as u16, to);
    put(1, to);
    put_fields(&APPLICATIONS, to);
}

fn put_fields(fields: &[Field], to: &mut Vec<u8>) {
    for field in fields {
        let bit = if field.is_reverse { ENTERPRISE_BIT } else { 0 };
        put(field.element | bit, to);
        put(field.length, to);
        if field.is_reverse {
            to.extend(REVERSE.to_be_bytes());
        }
    }
}

fn put(number: u16, to: &mut Vec<u8>) {
    to.extend(number.to_be_bytes());
}
