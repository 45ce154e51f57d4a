//! Labels on their way from a flow worker to the writer.

use std::sync::Arc;

use dataplane::sink::Sink;
use flowmgr::record::{FlowName, Record};
use netfilter::conntrack::Tuple;

use super::writer::Writer;

/// A flow worker's end of the writer.
pub struct MarkSink {
    writer: Arc<Writer>,
    /// Where conntrack has the connections.
    zone: u16,
}

impl MarkSink {
    /// All workers share one writer.
    pub fn new(writer: Arc<Writer>, zone: u16) -> MarkSink {
        MarkSink { writer, zone }
    }
}

impl Sink for MarkSink {
    fn record(&mut self, record: &Record) {
        if let Record::Label(label) = record {
            self.writer
                .set(tuple(&label.flow, self.zone), label.decision.class);
        }
    }

    /// The kernel acts on a mark from the connection's next packet on.
    fn is_urgent(&self) -> bool {
        true
    }
}

/// The flow as a packet of its forward direction has it.
fn tuple(name: &FlowName, zone: u16) -> Tuple {
    Tuple {
        zone,
        protocol: name.protocol,
        source: name.source,
        destination: name.destination,
    }
}
