//! A network inside the kernel gives the answers of the engine, on golden rows and on rows by
//! chance.

use crate::common;

use std::time::Duration;

use accel::{Bundle, kernel_net};
use common::root;
use engine::{Answer, Network, Shape};
use packetio::first::{KernelNet, Question};

/// A bundle of `models/` and its network in the kernel; `None`, said on the terminal: no root.
fn loaded(test: &str, name: &str) -> Option<(Bundle, KernelNet)> {
    if !rustix::process::geteuid().is_root() {
        common::skip(test, "root");
        return None;
    }
    let bundle = Bundle::open(&root().join("models").join(name)).unwrap();
    let kernel = KernelNet::load(&kernel_net(&bundle).unwrap()).unwrap();
    Some((bundle, kernel))
}

/// Numbers by chance (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % end
    }

    fn question(&mut self, places: usize) -> Question {
        const LENGTHS: [i32; 8] = [0, 1600, -1600, 1601, -1601, 65_535, i32::MAX, i32::MIN];
        const PORTS: [u16; 8] = [0, 22, 53, 80, 443, 1883, 8080, 65_535];
        let mut question = Question {
            elements: self.below(places as u64 + 1) as u32,
            is_tcp: self.below(2) == 1,
            server_port: match self.below(4) {
                0 => self.below(65_536) as u16,
                _ => PORTS[self.below(8) as usize],
            },
            ..Question::default()
        };
        for i in 0..question.elements as usize {
            question.lengths[i] = match self.below(8) {
                0 => LENGTHS[self.below(8) as usize],
                1 => self.below(1 << 32) as u32 as i32,
                _ => self.below(3001) as i32 - 1500,
            };
            let bits = self.below(33);
            question.gaps_us[i] = self.below(1 << bits) as u32;
        }
        question
    }
}

fn row(question: &Question, shape: Shape) -> (Vec<f32>, Vec<f32>) {
    let lengths = question.lengths[..shape.places].iter().map(|&length| length as f32);
    let gaps = question.gaps_us[..shape.places].iter().map(|&gap| gap as f32);
    let protocol = if question.is_tcp { 6.0 } else { 17.0 };
    let context = [protocol, question.server_port.into()];
    let series = lengths.chain(gaps).take(shape.channels * shape.places);
    (series.collect(), context[..shape.context].to_vec())
}

/// Compares answers to random questions with the engine's; confidences may differ by `tolerance`.
fn compare(test: &str, name: &str, rows: usize, tolerance: f32) {
    let Some((bundle, mut kernel)) = loaded(test, name) else {
        return;
    };
    let network = Network::compile(&bundle.read_model().unwrap(), bundle.ranges()).unwrap();
    let (shape, mut scratch) = (network.shape(), network.scratch());
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    for _ in 0..rows {
        let question = chance.question(shape.places);
        let (series, context) = row(&question, shape);
        let mut answers = [Answer::default()];
        network.run(&mut scratch, &series, &context, &mut answers);
        let asked = kernel.ask(&question).unwrap();
        let difference = f32::from(asked.confidence) / 32_768.0 - answers[0].confidence;
        assert!(
            asked.class == answers[0].class && difference.abs() <= tolerance,
            "{question:?}: {asked:?}, but {answers:?}"
        );
    }
}

#[test]
fn integers_are_equal_to_the_bit() {
    compare("integers_are_equal_to_the_bit", "protocol", 100_000, 0.0);
}

#[test]
fn trees_give_the_same_class() {
    compare("trees_give_the_same_class", "iot-family", 100_000, 1.0 / 16_384.0);
}

#[test]
fn a_swap_changes_the_answers_and_their_generation() {
    let test = "a_swap_changes_the_answers_and_their_generation";
    let Some((bundle, mut kernel)) = loaded(test, "protocol") else {
        return;
    };
    let question = Chance(7).question(bundle.k());
    let before = kernel.ask(&question).unwrap();
    assert_eq!(before.generation, 0);
    kernel.swap(&kernel_net(&bundle).unwrap(), 7).unwrap();
    let after = kernel.ask(&question).unwrap();
    assert_eq!((after.class, after.confidence), (before.class, before.confidence));
    assert_eq!(after.generation, 7);
    // Neither empty nor cut networks replace it.
    for net in [&[][..], &[0; 100]] {
        kernel.swap(net, 8).unwrap_err();
    }
    assert_eq!(kernel.ask(&question).unwrap(), after);
}

#[test]
fn model_check_runs_the_golden_rows_in_the_kernel() {
    let check = |name: &str| {
        let bundle = root().join("models").join(name);
        let args = ["model".as_ref(), "check".as_ref(), bundle.as_os_str(), "--json".as_ref()];
        common::run(common::fenxi(args)).expect_code(0).json()["kernel"].take()
    };
    let refused = serde_json::json!({"refused": "the kernel does not take a convolution"});
    assert_eq!(check("app-id-k10"), refused);
    if !rustix::process::geteuid().is_root() {
        let why = check("protocol")["refused"].take();
        assert!(why.as_str().is_some_and(|why| why.ends_with(" are needed")), "{why}");
        return common::skip("model_check_runs_the_golden_rows_in_the_kernel", "root");
    }
    for name in ["protocol", "iot-family"] {
        assert_eq!(check(name), serde_json::json!({"rows": 64}), "{name}");
    }
}

/// Prints the time of an answer: `cargo test -p fenxi --test e2e kernel_net -- --ignored`.
#[test]
#[ignore = "measures"]
fn time_of_an_answer() {
    for name in ["protocol", "iot-family"] {
        let Some((bundle, mut kernel)) = loaded("time_of_an_answer", name) else {
            return;
        };
        let question = Question { elements: bundle.k() as u32, ..Chance(7).question(bundle.k()) };
        let time = |_| kernel.time(&question, 100_000).unwrap();
        let mut times: Vec<Duration> = (0..7).map(time).collect();
        times.sort_unstable();
        println!("{name}: median {:?}, least {:?}", times[3], times[0]);
    }
}
