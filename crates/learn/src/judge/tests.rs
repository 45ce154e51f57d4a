//! Verdicts over a made-up world whose truth is known: bands, or classes that a teacher has told,
//! by a logistic model of what is seen.

use super::*;
use accel::argmax;
use flowmgr::hash::split_mix;

const BANDS: usize = 4;
const SEEN: usize = 4;
const FLOWS: usize = 400;
/// As on the samples held.
const CONFIDENCE: f64 = 0.99;
const ASKED: usize = 3;
/// Usual sizes of the bands, bytes.
const SIZES: [f64; BANDS] = [2e3, 3e4, 5e5, 2e7];

struct Random(u64);

impl Random {
    fn share(&mut self) -> f64 {
        (split_mix(&mut self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }

    fn weights(&mut self, spread: f64) -> Weights {
        std::array::from_fn(|_| std::array::from_fn(|_| spread * self.normal()))
    }
}

/// By band, a weight for each number that is seen.
type Weights = [[f64; SEEN]; BANDS];

fn sum(a: &Weights, b: &Weights) -> Weights {
    std::array::from_fn(|band| std::array::from_fn(|at| a[band][at] + b[band][at]))
}

fn logits(weights: &Weights, seen: &[f64; SEEN]) -> [f64; BANDS] {
    // Small flows are the rule.
    const USUAL: [f64; BANDS] = [1.5, 0.5, -0.5, -1.5];
    std::array::from_fn(|band| {
        USUAL[band] + weights[band].iter().zip(seen).map(|(w, x)| w * x).sum::<f64>()
    })
}

fn softmax(logits: [f64; BANDS]) -> [f64; BANDS] {
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let powers = logits.map(|it| (it - most).exp());
    powers.map(|it| it / powers.iter().sum::<f64>())
}

/// What was asked, and what models say to it.
struct World {
    questions: Vec<Question>,
    seen: Vec<[f64; SEEN]>,
    truth: Weights,
}

impl World {
    fn new(random: &mut Random) -> World {
        let truth = random.weights(1.2);
        let (mut questions, mut all_seen) = (Vec::new(), Vec::new());
        for flow_id in 0..FLOWS as u64 {
            let seen: [f64; SEEN] = std::array::from_fn(|_| random.normal());
            let mut drawn = random.share();
            let chances = softmax(logits(&truth, &seen));
            let truth = chances.iter().position(|chance| {
                drawn -= chance;
                drawn < 0.0
            });
            let truth = truth.unwrap_or(BANDS - 1);
            let worth = SIZES[truth] * (0.5 * random.normal()).exp();
            for asked in 0..ASKED {
                // What is seen at each depth differs a little.
                let seen = seen.map(|it| it + 0.1 * random.normal());
                questions.push(Question {
                    flow_id,
                    truth,
                    worth,
                    by_port: None,
                    bytes_so_far: (asked as f64 + 0.7 * truth as f64 + 2.0 * random.normal()).exp(),
                    server_volume: Some(truth as f64 + 2.0 * random.normal()),
                });
                all_seen.push(seen);
            }
        }
        World { questions, seen: all_seen, truth }
    }

    /// The same with classes that are no bands. A third of the flows have ports that stand for one
    /// of them, which they are as often as others.
    fn of_classes(mut self) -> World {
        for question in &mut self.questions {
            let number = question.flow_id as usize;
            question.worth = 1.0;
            question.by_port = Some(if number.is_multiple_of(3) { number % BANDS } else { BANDS });
        }
        self
    }

    fn says(&self, of: impl Fn(usize, &[f64; SEEN]) -> [f64; BANDS]) -> Outputs {
        let rows = self.seen.iter().enumerate();
        let rows = rows.map(|(at, seen)| of(at, seen).map(|it| it as f32));
        let rows: Vec<[f32; BANDS]> = rows.collect();
        Outputs {
            classes: rows.iter().map(|row| argmax(row) as u16).collect(),
            probabilities: rows.as_flattened().to_vec(),
            ns_per_row: 1000.0,
        }
    }

    fn model(&self, weights: &Weights) -> Outputs {
        self.says(|_, seen| softmax(logits(weights, seen)))
    }

    /// Flows that rightly get the highest band, at all depths.
    fn rightly_highest(&self, outputs: &Outputs) -> usize {
        let highest = BANDS - 1;
        let both = self.questions.iter().zip(&outputs.classes);
        let right =
            both.filter(|(it, class)| it.truth == highest && usize::from(**class) == highest);
        right.count() / ASKED
    }

    fn judged(&self, candidate: &Outputs, in_use: &Outputs) -> Result<Figures, Refused> {
        let trial = Trial { questions: &self.questions, classes: BANDS, candidate, in_use };
        judge(&trial, CONFIDENCE)
    }
}

/// A world, the model in use, which learned in a world that has drifted since, and what it was like
/// then.
fn drifted(seed: u64, are_bands: bool) -> (World, Weights, Random) {
    let mut random = Random(seed << 32);
    let world = World::new(&mut random);
    let world = if are_bands { world } else { world.of_classes() };
    let old = sum(&world.truth, &random.weights(0.5));
    (world, old, random)
}

#[test]
fn of_twenty_good_candidates_eighteen_are_promoted() {
    twenty_good(true);
    twenty_good(false);
}

fn twenty_good(are_bands: bool) {
    let mut promoted = 0;
    for seed in 0..20 {
        let (world, old, mut random) = drifted(1000 + seed, are_bands);
        // It has learned what holds now, from no more samples than there are.
        let learned = sum(&world.truth, &random.weights(0.1));
        match world.judged(&world.model(&learned), &world.model(&old)) {
            Ok(figures) => {
                promoted += 1;
                let (rival, in_use) = figures.rivals[0];
                assert_eq!(rival, Rival::InUse);
                assert!(figures.candidate.log_loss < in_use.log_loss, "{figures:?}");
            }
            Err(why) => eprintln!("{seed}: {why}"),
        }
    }
    assert!(promoted >= 18, "{promoted}");
}

/// A bad candidate of a kind, and what it claims.
fn bad(
    kind: u64,
    world: &World,
    old: &Weights,
    random: &mut Random,
) -> (Outputs, Learned, &'static [&'static str]) {
    let learned = sum(&world.truth, &random.weights(0.1));
    let good = world.model(&learned);
    let none = Learned::default();
    let not_better: &[_] = &["not_better", "counter", "servers", "ports"];
    let shown_low: &[_] = &["low_lift", "not_better"];
    match kind {
        // Worse: it has learned too little.
        0 => (world.model(&sum(old, &random.weights(0.7))), none, not_better),
        1 => {
            let mut outputs = good;
            let rows = outputs.probabilities.len();
            let at = (random.share() * rows as f64) as usize;
            outputs.probabilities[at] = f32::NAN;
            (outputs, none, &["not_probabilities"])
        }
        // Permuted: bands, or flows.
        2 => match random.share() < 0.5 {
            true => {
                let by = 1 + (random.share() * 3.0) as usize;
                let permuted = world.says(|_, seen| {
                    let row = softmax(logits(&learned, seen));
                    std::array::from_fn(|band| row[(band + by) % BANDS])
                });
                (permuted, none, not_better)
            }
            false => {
                let others = |at: usize| &world.seen[(at + 201) % world.seen.len()];
                let permuted = world.says(|at, _| softmax(logits(&learned, others(at))));
                (permuted, none, not_better)
            }
        },
        // Over-confident: the right order, and far too sure.
        3 => {
            let sure = |seen: &_| softmax(logits(&learned, seen).map(|it| 4.0 * it));
            (world.says(|_, seen| sure(seen)), none, not_better)
        }
        4 => (Outputs { ns_per_row: 2500.0, ..good }, none, &["slow"]),
        // Stale: it says so itself, or it fits a world before.
        5 => match random.share() < 0.5 {
            true => {
                let claims = Learned { until_us: Some(6), ..none };
                (good, claims, &["stale"])
            }
            false => {
                let before = sum(old, &random.weights(0.5));
                (world.model(&before), none, not_better)
            }
        },
        // It never gives the highest band, where ten flows rightly have it: it prefers the one
        // below, or is never sure enough.
        6 if world.rightly_highest(&world.model(old)) >= 10 => match random.share() < 0.5 {
            true => {
                let shy = world.says(|_, seen| {
                    let mut row = softmax(logits(&learned, seen));
                    if argmax(&row.map(|it| it as f32)) == BANDS - 1 {
                        let both = row[BANDS - 1] + row[BANDS - 2];
                        (row[BANDS - 1], row[BANDS - 2]) = (0.499 * both, 0.501 * both);
                    }
                    row
                });
                (shy, none, shown_low)
            }
            false => {
                let unknown = |class| if class == BANDS as u16 - 1 { BANDS as u16 } else { class };
                let classes = good.classes.iter().map(|&it| unknown(it)).collect();
                (Outputs { classes, ..good }, none, shown_low)
            }
        },
        // A wrong scale: what it sees, or what it says.
        _ => match random.share() < 0.5 {
            true => {
                let scaled = |seen: &[f64; SEEN]| seen.map(|it| 1000.0 * it);
                let says = world.says(|_, seen| softmax(logits(&learned, &scaled(seen))));
                (says, none, not_better)
            }
            false => {
                let percent = good.probabilities.iter().map(|it| 100.0 * it).collect();
                let outputs = Outputs { probabilities: percent, ..good };
                (outputs, none, &["not_probabilities"])
            }
        },
    }
}

#[test]
fn of_two_hundred_bad_candidates_none_is_promoted() {
    two_hundred_bad(true);
    two_hundred_bad(false);
}

fn two_hundred_bad(are_bands: bool) {
    let in_use = Learned { until_us: Some(7), stability: None };
    let mut low = 0;
    for seed in 0..200 {
        let (world, old, mut random) = drifted(seed, are_bands);
        // Classes that are no bands have none that is the highest.
        let kind = match are_bands {
            true => seed % 8,
            false => [0, 1, 2, 3, 4, 5, 7][seed as usize % 7],
        };
        let (outputs, claims, expected) = bad(kind, &world, &old, &mut random);
        let verdict =
            check_claims(claims, in_use).and_then(|()| world.judged(&outputs, &world.model(&old)));
        let why = verdict.expect_err(&format!("candidate {seed} of kind {kind} is promoted"));
        assert!(expected.contains(&why.name()), "candidate {seed} of kind {kind}: {why}");
        low += usize::from(why.name() == "low_lift");
    }
    assert_eq!(low > 9, are_bands, "{low}");
}

#[test]
fn what_is_no_better_than_a_table_is_not_promoted() {
    let (mut world, old, _) = drifted(7, true);
    let candidate = world.model(&world.truth.clone());
    let in_use = world.model(&old);
    for question in &mut world.questions {
        question.bytes_so_far = question.worth;
    }
    let refused = world.judged(&candidate, &in_use).unwrap_err();
    assert_eq!(refused.name(), "counter", "{refused}");
    for question in &mut world.questions {
        question.bytes_so_far = 0.0;
        question.server_volume = Some(question.worth);
    }
    let refused = world.judged(&candidate, &in_use).unwrap_err();
    assert_eq!(refused.name(), "servers", "{refused}");
    for question in &mut world.questions {
        question.server_volume = None;
    }
    assert_eq!(world.judged(&candidate, &in_use).unwrap().rivals.len(), 2);
    let mut world = world.of_classes();
    let [(_, in_use_score), (rival, ports)] =
        world.judged(&candidate, &in_use).unwrap().rivals.try_into().unwrap();
    assert_eq!(rival, Rival::Ports);
    assert!(in_use_score.log_loss < ports.log_loss && in_use_score.merit > ports.merit);
    for question in &mut world.questions {
        question.by_port = Some(question.truth);
    }
    let refused = world.judged(&candidate, &in_use).unwrap_err();
    assert_eq!(refused.name(), "ports", "{refused}");
}

#[test]
fn the_merit_of_classes_is_the_share_of_right_answers() {
    let (world, ..) = drifted(7, false);
    // Sure of the truth of two questions in three, and of another class in the third.
    let outputs = world.says(|at, _| {
        let class = world.questions[at].truth + usize::from(at % 3 == 0);
        std::array::from_fn(|it| f64::from(u8::from(it == class % BANDS)))
    });
    let score = of_model(&world.questions, BANDS, &outputs).score(&world.questions);
    assert_eq!(score.merit, 2.0 / 3.0);
    assert!((score.log_loss - 65_536_f64.ln() / 3.0).abs() < 1e-9, "{score:?}");
}

#[test]
fn a_copy_is_not_needed_and_few_flows_show_nothing() {
    let (mut world, old, _) = drifted(8, true);
    let outputs = world.model(&old);
    let refused = world.judged(&outputs, &outputs).unwrap_err();
    assert_eq!(refused, Refused::Unneeded([0.0, 0.0]));
    let few = FLOWS_MIN - 1;
    world.questions.truncate(few * ASKED);
    assert_eq!(world.judged(&outputs, &outputs), Err(Refused::FewFlows(few)));
}

#[test]
fn a_promoted_model_that_is_worse_is_noticed() {
    let (world, old, _) = drifted(9, true);
    let [good, bad] = [world.model(&world.truth), world.model(&old)];
    let check = |candidate, in_use| {
        let trial = Trial { questions: &world.questions, classes: BANDS, candidate, in_use };
        check_answering(&trial, 0.99).map_err(|why| why.name())
    };
    assert_eq!(check(&good, &bad), Ok(()));
    assert_eq!(check(&good, &good), Ok(()));
    assert_eq!(check(&bad, &good), Err("worse"));
}

#[test]
fn training_that_has_not_settled_and_labels_that_are_late_or_others_are_noticed() {
    let claims = |stability| Learned { stability: Some(stability), until_us: None };
    let check = |stability| check_claims(claims(stability), Learned::default());
    assert_eq!(check(0.02), Ok(()));
    assert_eq!(check(0.2), Err(Refused::Unstable(0.2)));
    assert!(check(f64::NAN).is_err());
    assert_eq!(check_late((10, 500), (9, 500)), Ok(()));
    assert_eq!(check_late((40, 500), (9, 500)), Err(Refused::Late(0.08, 0.018)));
    assert_eq!(check_late((0, 0), (9, 500)), Ok(()));
    assert_eq!(check_others((2, 60)), Ok(()));
    assert_eq!(check_others((6, 60)), Err(Refused::Others(0.1)));
    assert_eq!(check_others((0, 0)), Ok(()));
    assert_eq!(check_mix(&[300, 150, 50], &[290, 150, 60]), Ok(()));
    assert_eq!(check_mix(&[50, 150, 300], &[290, 150, 60]).unwrap_err().name(), "mix");
    assert_eq!(check_mix(&[1, 1, 90], &[90, 1, 1]), Ok(()), "too few to say");
}

#[test]
fn a_promoted_model_makes_way_where_a_table_is_better_and_the_chosen_model_no_worse() {
    let (mut world, old, mut random) = drifted(10, true);
    let [good, bad] = [world.model(&world.truth), world.model(&old)];
    let worse = world.model(&sum(&old, &random.weights(1.0)));
    let check = |world: &World, candidate, in_use| {
        let trial = Trial { questions: &world.questions, classes: BANDS, candidate, in_use };
        check_promoted(&trial, CONFIDENCE).map_err(|why| match why {
            Refused::Outdone(rival, ..) => rival,
            why => panic!("{why}"),
        })
    };
    assert_eq!(check(&world, &good, &bad), Ok(()));
    assert_eq!(check(&world, &bad, &bad), Ok(()));
    assert_eq!(check(&world, &bad, &good), Err(Rival::Chosen));
    for question in &mut world.questions {
        question.server_volume = Some(question.worth);
    }
    assert_eq!(check(&world, &bad, &bad), Err(Rival::Servers));
    assert_eq!(check(&world, &bad, &worse), Ok(()), "what would come is worse");
    for question in &mut world.questions {
        question.bytes_so_far = question.worth;
    }
    assert_eq!(check(&world, &bad, &bad), Err(Rival::Counter));
}
