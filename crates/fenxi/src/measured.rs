//! What was measured of a flow, in the form that records and the control socket have.

use console::protocol::{Measured, MeasuredRtt, MeasuredSide, MeasuredSizes, MeasuredWindow};
use measure::{Rtt, Told};

pub fn measured(told: &Told) -> Measured {
    Measured {
        server_handshake_us: told.server_handshake_us(),
        client_handshake_us: told.client_handshake_us(),
        response_us: told.response_us(),
        duration_us: told.duration_us(),
        fwd: side(told, 0),
        rev: side(told, 1),
    }
}

fn side(told: &Told, number: usize) -> MeasuredSide {
    let side = told.side(number);
    MeasuredSide {
        packets: side.volume.map(|[packets, _]| packets),
        bytes: side.volume.map(|[_, bytes]| bytes),
        rtt_us: side.rtt.map(rtt),
        rtt_timestamps_us: side.rtt_timestamps.map(rtt),
        spin_us: side.spin.map(rtt),
        dns_us: side.dns.map(rtt),
        gap_us: side.gap_us,
        window: side.window.map(|[min, max, last]| MeasuredWindow { min, last, max }),
        retransmits: side.retransmits,
        out_of_order: side.out_of_order,
        duplicate_acks: side.duplicate_acks,
        zero_windows: side.zero_windows,
        sizes: side.sizes.map(|[min, max]| MeasuredSizes { min, max }),
    }
}

fn rtt(rtt: Rtt) -> MeasuredRtt {
    let smoothed = rtt.smoothed_us();
    MeasuredRtt { samples: rtt.samples, min: rtt.min_us, smoothed, max: rtt.max_us }
}
