//! The bundle's network inside the kernel, compared with the engine on the golden rows.

use accel::{Bundle, kernel_net};
use engine::{Answer, Network};
use packetio::first::{KernelNet, Question};

/// By how much a confidence of trees may differ, whose scores are floats in the engine.
const TREES_TOLERANCE: f32 = 1.0 / 16_384.0;

/// The golden rows that the kernel answers as the engine does, or why the network stays in user
/// space.
///
/// # Errors
/// The kernel answers a row otherwise.
pub fn check(bundle: &Bundle) -> Result<Result<usize, String>, String> {
    let opened = || -> Result<(KernelNet, Network), String> {
        let kernel = KernelNet::load(&kernel_net(bundle)?).map_err(|error| error.to_string())?;
        let model = bundle.read_model().map_err(|error| error.to_string())?;
        let network = Network::compile(&model, bundle.ranges());
        Ok((kernel, network.map_err(|error| error.to_string())?))
    };
    let (mut kernel, network) = match opened() {
        Ok(opened) => opened,
        Err(why) => return Ok(Err(why)),
    };
    let tolerance = if bundle.ranges().is_some() { 0.0 } else { TREES_TOLERANCE };
    let mut scratch = network.scratch();
    let golden = bundle.golden();
    for (row, (series, context)) in golden.inputs.iter().zip(&golden.contexts).enumerate() {
        let mut answer = [Answer::default()];
        network.run(&mut scratch, series, context, &mut answer);
        let [Answer { class, confidence }] = answer;
        let question = Question::of_row(series, context, bundle.k());
        let asked = kernel.ask(&question).map_err(|error| error.to_string())?;
        let difference = (f32::from(asked.confidence) / 32_768.0 - confidence).abs();
        if asked.class != class || difference > tolerance {
            let row = row + 1;
            return Err(format!("golden row {row}: class {class} of {confidence}, but {asked:?}"));
        }
    }
    Ok(Ok(golden.inputs.len()))
}
