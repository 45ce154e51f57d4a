//! The golden inputs of a bundle as series.

use accel::Bundle;
use cring::{K_MAX, Series};

/// The bundle's golden inputs as series: input that the model was trained for.
pub fn golden_series(bundle: &Bundle) -> Vec<Series> {
    let inputs = &bundle.golden().inputs;
    inputs.iter().map(|row| series_of(row)).collect()
}

/// One row of a model's input, signed lengths, as the flow manager would have sent it.
fn series_of(row: &[f32]) -> Series {
    let mut series = Series {
        protocol: flowmgr::wire::UDP,
        k: row.len().min(K_MAX) as u8,
        ..Series::default()
    };
    for (i, &length) in row.iter().take(K_MAX).enumerate() {
        series.lengths[i] = length.abs() as u16;
        series.directions |= u32::from(length < 0.0) << i;
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_from_its_series() {
        let row = [60.0, -1500.0, 0.0, 65_535.0];
        let series = series_of(&row);
        let back: Vec<f32> = series.signed_lengths().map(|it| it as f32).collect();
        assert_eq!(back, row);
    }
}
