//! Labels on their way from a flow worker to the writer.

use std::sync::Arc;

use dataplane::sink::Sink;
use flowmgr::record::{FlowName, Record};
use netfilter::conntrack::Tuple;

use super::writer::Writer;

/// A flow worker's end of the writer.
pub struct MarkSink(Arc<Writer>);

impl MarkSink {
    /// All workers share one writer.
    pub fn new(writer: Arc<Writer>) -> MarkSink {
        MarkSink(writer)
    }
}

impl Sink for MarkSink {
    fn record(&mut self, record: &Record) {
        if let Record::Label(label) = record {
            self.0.set(tuple(&label.flow), label.decision.class);
        }
    }

    /// The kernel acts on a mark from the connection's next packet on.
    fn is_urgent(&self) -> bool {
        true
    }
}

/// The flow as a packet of its forward direction has it.
pub fn tuple(name: &FlowName) -> Tuple {
    Tuple {
        protocol: name.protocol,
        source: name.source,
        destination: name.destination,
    }
}
