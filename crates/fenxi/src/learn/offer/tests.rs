//! Ways of candidates, with models that are numbers: a flow has a place on a line, the chance of
//! the upper band follows from it, and a model is the slope that it believes in.

use super::super::held::tests::sample;
use super::super::judge::{Outputs, mixed};
use super::*;
use config::Sources;
use dataplane::tasks::OpenTask;
use flowmgr::record::SampleAnswer;
use std::fs;
use tempfile::TempDir;

/// What holds, and what the candidate believes; and what the model in use does.
const TRUE: f64 = 3.0;
const USED: f64 = 0.5;

struct Slopes {
    in_use: (Arc<Bundle>, u16),
    before: Option<Arc<Bundle>>,
    dir: TempDir,
}

impl Models for Slopes {
    fn in_use(&self, _: usize) -> (Arc<Bundle>, u16) {
        self.in_use.clone()
    }

    fn open(&mut self, _: usize, dir: &Path) -> Result<Arc<Bundle>, Refusal> {
        Bundle::open(dir).map(Arc::new).map_err(|why| Refusal::new("damaged", why))
    }

    fn ask(
        &mut self,
        _: usize,
        pair: [&Arc<Bundle>; 2],
        samples: Vec<Sample>,
    ) -> Result<[Asked; 2], Refusal> {
        Ok(pair.map(|bundle| {
            let slope: f64 = bundle.version().parse().unwrap();
            let upper = samples.iter().map(|it| chance(slope, it.flow_id) as f32);
            Asked {
                classes: upper.clone().map(|it| u16::from(it > 0.5)).collect(),
                outputs: Outputs {
                    probabilities: upper.flat_map(|it| [1.0 - it, it]).collect(),
                    ns_per_row: 100.0,
                },
            }
        }))
    }

    fn promote(&mut self, _: usize, bundle: &Arc<Bundle>) -> Result<(), Refusal> {
        self.before = Some(std::mem::replace(&mut self.in_use.0, bundle.clone()));
        self.in_use.1 += 1;
        Ok(())
    }

    fn back(&mut self, _: usize) -> Result<(), Refusal> {
        let before = self.before.take().ok_or_else(|| Refusal::new("failed", "none is before"))?;
        self.in_use = (before, self.in_use.1 + 1);
        Ok(())
    }
}

/// Where a flow is, from -2 to 2.
fn place(flow_id: u64) -> f64 {
    (mixed(flow_id) >> 11) as f64 / (1_u64 << 51) as f64 - 2.0
}

fn chance(slope: f64, flow_id: u64) -> f64 {
    1.0 / (1.0 + (-slope * place(flow_id)).exp())
}

struct World {
    offers: Offers,
    models: Slopes,
    flows: u64,
}

impl World {
    fn new() -> World {
        let config = Sources::named(None, &[]).load().unwrap().config;
        let tasks = OpenTask::open_all(&config, None).unwrap();
        let state = Arc::new(SharedState::new(&tasks));
        let dir = tempfile::tempdir().unwrap();
        let in_use = bundle(&dir, USED);
        let in_use = (Arc::new(Bundle::open(&in_use).unwrap()), 0);
        let models = Slopes { in_use, before: None, dir };
        let mut world =
            World { offers: Offers::new(SharedHeld::default(), None, state), models, flows: 0 };
        world.push(1000, TRUE, None);
        world
    }

    /// Flows of a world with this slope end, two samples each. Their answers are the model's, or
    /// else `class`.
    fn push(&mut self, flows: u64, slope: f64, class: Option<u16>) {
        let (bundle, model) = self.models.in_use(0);
        let believed: f64 = bundle.version().parse().unwrap();
        for flow_id in self.flows..self.flows + flows {
            let drawn = (mixed(flow_id ^ 1 << 40) >> 11) as f64 / (1_u64 << 53) as f64;
            let bytes = if drawn < chance(slope, flow_id) { 1_000_000 } else { 1000 };
            let own = u16::from(chance(believed, flow_id) > 0.5);
            let class = class.unwrap_or(own);
            let answer = Some(SampleAnswer { class, confidence: 0, model });
            for _ in 0..2 {
                let answer = answer.filter(|it| it.class < 2);
                self.offers
                    .held
                    .with(|held| held.push(Sample { answer, ..sample(flow_id, bytes) }));
            }
        }
        self.flows += flows;
    }

    fn offer(&mut self, slope: f64) -> Result<String, &'static str> {
        let dir = bundle(&self.models.dir, slope);
        self.offers.offer(0, &dir, &mut self.models).map_err(|refusal| refusal.name)
    }

    fn turn(&mut self) {
        self.offers.turn(&mut self.models);
    }

    /// A candidate that is in use and watched.
    fn promoted() -> World {
        let mut world = World::new();
        world.offer(TRUE).unwrap();
        world.push(SHADOW_FLOWS as u64, TRUE, None);
        world.turn();
        assert_eq!(world.outcomes(), ["judged 1", "promoted 1"]);
        assert_eq!(world.models.in_use.1, 1);
        world
    }

    fn outcomes(&self) -> Vec<String> {
        let outcomes = self.offers.state.get().first().offers.outcomes.clone();
        assert!(outcomes.keys().all(|it| OUTCOMES.contains(it)), "{outcomes:?}");
        outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect()
    }

    /// Asserts that the candidate was rolled back for this reason.
    fn assert_rolled_back(&self, reason: &str) {
        assert_eq!(self.outcomes(), ["judged 1", "promoted 1", "rolled_back 1"]);
        let (_, why) = self.offers.state.get().first().offers.last_refusal.clone().unwrap();
        assert!(why.contains(&format!(": {reason}: ")), "{why}");
        assert_eq!(self.models.in_use.0.version(), USED.to_string());
        assert!(!self.offers.are_under_way());
    }
}

/// A bundle whose version is its slope.
fn bundle(dir: &TempDir, slope: f64) -> std::path::PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bundles/server-volume");
    let to = dir.path().join(slope.to_string());
    fs::create_dir_all(to.join("golden")).unwrap();
    for file in ["model.onnx", "golden/inputs.csv", "golden/outputs.csv"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let manifest = fs::read_to_string(from.join("model.toml")).unwrap();
    let manifest = manifest.replace("1.0.0", &slope.to_string());
    let target = "\n[target]\nof = \"volume\"\nedges = [10000]\n";
    fs::write(to.join("model.toml"), manifest + target).unwrap();
    to
}

#[test]
fn a_better_candidate_is_promoted_kept_and_taken_back_on_demand() {
    let mut world = World::promoted();
    let under_way = world.offers.under_way(0).unwrap();
    assert!(under_way.ends_with("/3: in use and watched, 0 of 500 flows"), "{under_way}");
    world.turn();
    assert_eq!(world.outcomes().len(), 2, "nothing was seen yet");
    while world.offers.are_under_way() {
        world.push(LOOK_FLOWS as u64, TRUE, None);
        world.turn();
    }
    assert_eq!(world.outcomes(), ["judged 1", "kept 1", "promoted 1"]);
    let done = world.offers.back(0, &mut world.models).unwrap();
    assert!(done.ends_with("/0.5: in use again"), "{done}");
    assert_eq!(world.outcomes(), ["back 1", "judged 1", "kept 1", "promoted 1"]);
    assert!(world.offers.back(0, &mut world.models).is_err());
}

#[test]
fn a_promoted_model_that_disappoints_is_rolled_back() {
    let mut worse = World::promoted();
    worse.push(LOOK_FLOWS as u64, -TRUE, None);
    worse.turn();
    worse.assert_rolled_back("worse");
    let mut late = World::promoted();
    // No such class: no answer.
    late.push(LOOK_FLOWS as u64, TRUE, Some(2));
    late.turn();
    late.assert_rolled_back("late");
    let mut mix = World::promoted();
    mix.push(LOOK_FLOWS as u64, TRUE, Some(1));
    mix.turn();
    mix.assert_rolled_back("mix");
}

#[test]
fn luck_does_not_outlast_the_shadow() {
    let mut world = World::new();
    let judged = world.offer(TRUE).unwrap();
    assert!(judged.contains("on 2000 questions of 1000 flows log loss 0."), "{judged}");
    assert!(judged.ends_with("; in shadow for the next 300 held-out flows"), "{judged}");
    // What held no longer does.
    world.push(SHADOW_FLOWS as u64 - 1, -TRUE, None);
    world.turn();
    assert!(world.offers.under_way(0).unwrap().ends_with("in shadow, 299 of 300 flows"));
    world.push(1, -TRUE, None);
    world.turn();
    assert_eq!(world.outcomes(), ["judged 1", "not_better 1"]);
    assert_eq!(world.models.in_use.1, 0);
}

#[test]
fn what_is_not_better_is_refused_by_name() {
    let mut world = World::new();
    assert_eq!(world.offer(USED), Err("unneeded"));
    assert_eq!(world.offer(-TRUE), Err("not_better"));
    let nowhere = world.offers.offer(0, Path::new("/nowhere"), &mut world.models);
    assert_eq!(nowhere.unwrap_err().name, "damaged");
    world.offers.held = SharedHeld::default();
    assert_eq!(world.offer(TRUE), Err("few_flows"));
    assert_eq!(world.outcomes(), ["damaged 1", "few_flows 1", "not_better 1", "unneeded 1"]);
    let (name, why) = world.offers.state.get().first().offers.last_refusal.clone().unwrap();
    assert_eq!(name, "few_flows");
    assert!(
        why.ends_with(
            ": 0 flows with a known truth are too few to judge by, at least 100 are \
        needed"
        ),
        "{why}"
    );
}

#[test]
fn another_model_overtakes_a_candidate() {
    let mut world = World::new();
    world.offer(TRUE).unwrap();
    world.models.in_use.1 += 1;
    world.turn();
    assert_eq!(world.outcomes(), ["judged 1", "overtaken 1"]);
    assert!(!world.offers.are_under_way());
}
