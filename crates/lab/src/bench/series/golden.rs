//! The golden inputs of a bundle as series.

use accel::Bundle;
use cring::{Context, Feature, Series};
use dataplane::bundle::{context, features};

/// The bundle's golden inputs as series, with the context that a series carries: input that the
/// model was trained for.
pub fn golden_series(bundle: &Bundle) -> Vec<Series> {
    let golden = bundle.golden();
    let (features, context) = (features(bundle), context(bundle));
    let rows = golden.inputs.iter().zip(&golden.contexts);
    let series = rows.map(|(row, numbers)| {
        let mut series = series_of(row, &features);
        for (which, &number) in context.iter().zip(numbers) {
            match which {
                Context::Protocol => series.protocol = number as u8,
                Context::ServerPort => series.server_port = number as u16,
                _ => {}
            }
        }
        series
    });
    series.collect()
}

/// One row of a model's input, a channel for each feature, as the flow manager would have sent it.
fn series_of(row: &[f32], features: &[Feature]) -> Series {
    let k = row.len() / features.len().max(1);
    let mut series = Series::new(flowmgr::wire::UDP, k, features.iter().copied().collect());
    for (feature, channel) in features.iter().zip(row.chunks(k.max(1))) {
        for (i, &value) in channel.iter().enumerate() {
            match feature {
                Feature::SignedLength => series.set_signed(i, value as i32),
                Feature::InterArrival => series.set_inter_arrival_us(i, value as u32),
                Feature::PayloadLength | Feature::TcpFlags => {
                    series.channel_mut(*feature)[i] = value as u16;
                }
            }
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_from_its_series() {
        let row = [60.0, -1500.0, 0.0, 65_535.0];
        let series = series_of(&row, &[Feature::SignedLength]);
        let back: Vec<f32> = series.signed_lengths().map(|it| it as f32).collect();
        assert_eq!(back, row);
    }
}
