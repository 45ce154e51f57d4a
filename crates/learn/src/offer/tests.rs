//! Ways of candidates, with models that are numbers: a flow has a place on a line, the chance of
//! the upper band follows from it, and a model is the slope that it believes in.

use super::super::held::KEPT;
use super::super::held::tests::sample;
use super::*;
use config::Sources;
use dataplane::tasks::OpenTask;
use flowmgr::hash::split_mix;
use flowmgr::record::SampleAnswer;
use std::fs;
use tempfile::TempDir;

/// What holds, and what the candidate believes; and what the model in use does.
const TRUE: f64 = 3.0;
const USED: f64 = 0.5;

struct Slopes {
    in_use: (Arc<Bundle>, u16),
    before: Option<Arc<Bundle>>,
    canary: Option<(Arc<Bundle>, u16)>,
    /// A device of the canary has failed.
    failure: Option<String>,
    /// The canary does not answer, and the model in use does in its place.
    is_down: bool,
    /// There can be no canary.
    is_in_kernel: bool,
    /// The last generation that a model got.
    given: u16,
    /// The text of the bundles' targets.
    target: Option<&'static str>,
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
    ) -> Result<[Outputs; 2], Refusal> {
        Ok(pair.map(|bundle| {
            let slope: f64 = bundle.version().parse().unwrap();
            let upper = samples.iter().map(|it| chance(slope, it.flow_id) as f32);
            Outputs {
                classes: upper.clone().map(|it| u16::from(it > 0.5)).collect(),
                probabilities: upper.flat_map(|it| [1.0 - it, it]).collect(),
                ns_per_row: 100.0,
            }
        }))
    }

    fn begin_canary(&mut self, _: usize, bundle: &Arc<Bundle>) -> Result<Option<u16>, Refusal> {
        if self.is_in_kernel {
            return Ok(None);
        }
        self.given += 1;
        self.canary = Some((bundle.clone(), self.given));
        Ok(Some(self.given))
    }

    fn canary(&self, _: usize) -> Option<u16> {
        Some(self.canary.as_ref()?.1)
    }

    fn canary_failure(&mut self, _: usize) -> Option<String> {
        self.failure.clone()
    }

    fn withdraw(&mut self, _: usize) -> Result<(), Refusal> {
        self.canary = None;
        Ok(())
    }

    fn promote(&mut self, _: usize, bundle: &Arc<Bundle>) -> Result<(), Refusal> {
        let (bundle, generation) = match self.canary.take() {
            Some(canary) => canary,
            None => (bundle.clone(), self.given + 1),
        };
        self.given = generation;
        let (before, _) = std::mem::replace(&mut self.in_use, (bundle, generation));
        self.before = Some(before);
        Ok(())
    }

    fn back(&mut self, _: usize) -> Result<(), Refusal> {
        let before = self.before.take().ok_or_else(|| Refusal::new("failed", "none is before"))?;
        self.given += 1;
        self.in_use = (before, self.given);
        Ok(())
    }
}

fn mixed(mut number: u64) -> u64 {
    split_mix(&mut number)
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
    /// The classes of flows that nobody has told; `None`: they are bands.
    teacher: Option<Vec<FlowTruth>>,
}

impl World {
    fn new() -> World {
        let mut world = World::empty(Some(BANDS));
        world.push(1000, TRUE, None);
        world
    }

    /// Without flows; the bundles have this target.
    fn empty(target: Option<&'static str>) -> World {
        let config = Sources::named(None, &[]).load().unwrap().config;
        let tasks = OpenTask::open_all(&config, None).unwrap();
        let state = Arc::new(SharedState::new(&tasks));
        let dir = tempfile::tempdir().unwrap();
        let in_use = bundle(&dir, USED, target);
        let in_use = (Arc::new(Bundle::open(&in_use).unwrap()), 0);
        let models = Slopes {
            in_use,
            before: None,
            canary: None,
            failure: None,
            is_down: false,
            is_in_kernel: false,
            given: 0,
            target,
            dir,
        };
        let teacher = target.is_none().then(Vec::new);
        World { offers: Offers::new(SharedHeld::default(), None, state), models, flows: 0, teacher }
    }

    /// Flows of a world with this slope end, two samples each. The model in use answers them, and
    /// the canary one in five; or `class` is the answer where the newest model is asked.
    fn push(&mut self, flows: u64, slope: f64, class: Option<u16>) {
        let (in_use, canary) = (self.models.in_use(0), self.models.canary.clone());
        for flow_id in self.flows..self.flows + flows {
            let drawn = (mixed(flow_id ^ 1 << 40) >> 11) as f64 / (1_u64 << 53) as f64;
            let bytes = if drawn < chance(slope, flow_id) { 1_000_000 } else { 1000 };
            let is_canarys = flow_id.is_multiple_of(5) && !self.models.is_down;
            let canarys = canary.as_ref().filter(|_| is_canarys);
            let (bundle, model) = canarys.unwrap_or(&in_use);
            let believed: f64 = bundle.version().parse().unwrap();
            let own = u16::from(chance(believed, flow_id) > 0.5);
            let is_newest = canary.is_none() || canarys.is_some();
            let class = class.filter(|_| is_newest).unwrap_or(own);
            let answer = Some(SampleAnswer { class, confidence: 0, model: *model });
            let answer = answer.filter(|it| it.class < 2);
            let ended = Sample { answer, began_us: flow_id as i64, ..sample(flow_id, bytes) };
            self.offers.held.with(|held| match &mut self.teacher {
                Some(truths) => {
                    (0..2).for_each(|_| held.wait(ended.clone()));
                    truths.push(truth(&ended, if bytes > 1000 { "large" } else { "small" }));
                }
                None => (0..2).for_each(|_| held.push(ended.clone())),
            });
        }
        self.flows += flows;
    }

    /// The teacher tells all classes.
    fn tell(&mut self) -> String {
        let truths = std::mem::take(self.teacher.as_mut().unwrap());
        self.offers.tell(0, &truths, &self.models).unwrap()
    }

    fn offer(&mut self, slope: f64) -> Result<String, &'static str> {
        let dir = bundle(&self.models.dir, slope, self.models.target);
        self.offers.offer(0, &dir, &mut self.models).map_err(|refusal| refusal.name)
    }

    fn turn(&mut self) {
        self.offers.turn(&mut self.models);
    }

    /// A candidate that answers a share of flows.
    fn with_canary() -> World {
        let mut world = World::new();
        world.offer(TRUE).unwrap();
        world.push(SHADOW_FLOWS as u64, TRUE, None);
        world.turn();
        assert_eq!(world.outcomes(), ["canary 1", "judged 1"]);
        assert_eq!((world.models.in_use.1, world.models.canary(0)), (0, Some(1)));
        world
    }

    /// A candidate that is in use and watched.
    fn promoted() -> World {
        let mut world = World::with_canary();
        world.push(5 * CANARY_FLOWS as u64, TRUE, None);
        world.turn();
        assert_eq!(world.outcomes(), ["canary 1", "judged 1", "promoted 1"]);
        assert_eq!((world.models.in_use.1, world.models.canary(0)), (1, None));
        world
    }

    /// A model that was promoted and kept.
    fn kept() -> World {
        let mut world = World::promoted();
        world.watch_to_the_end(TRUE);
        assert_eq!(world.outcomes(), ["canary 1", "judged 1", "kept 1", "promoted 1"]);
        world
    }

    fn watch_to_the_end(&mut self, slope: f64) {
        while self.offers.under_way(0).is_some() {
            self.push(LOOK_FLOWS as u64, slope, None);
            self.turn();
        }
    }

    /// Time passes, so that a look is due.
    fn turn_late(&mut self) {
        self.offers.promoted[0].as_mut().unwrap().next_look = Instant::now();
        self.turn();
    }

    fn outcomes(&self) -> Vec<String> {
        let outcomes = self.offers.state.get().first().offers.outcomes.clone();
        assert!(outcomes.keys().all(|it| OUTCOMES.contains(it)), "{outcomes:?}");
        outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect()
    }

    /// Asserts that the candidate was rolled back for this reason.
    fn assert_rolled_back(&self, reason: &str) {
        assert_eq!(self.outcomes(), ["canary 1", "judged 1", "promoted 1", "rolled_back 1"]);
        self.assert_gone(reason);
    }

    /// Asserts that the canary was withdrawn for this reason.
    fn assert_withdrawn(&self, reason: &str) {
        assert_eq!(self.outcomes(), ["canary 1", "judged 1", "withdrawn 1"]);
        assert_eq!((self.models.in_use.1, self.models.canary(0)), (0, None));
        self.assert_gone(reason);
    }

    fn assert_gone(&self, reason: &str) {
        let (_, why) = self.offers.state.get().first().offers.last_refusal.clone().unwrap();
        assert!(why.contains(&format!(": {reason}: ")), "{why}");
        assert_eq!(self.models.in_use.0.version(), USED.to_string());
        assert!(self.offers.under_way(0).is_none());
    }
}

fn truth(sample: &Sample, label: &str) -> FlowTruth {
    let ([src_port, dst_port], first_us) = (sample.ports, sample.began_us);
    FlowTruth { proto: 6, src_port, dst_port, first_us, label: label.to_owned() }
}

const BANDS: &str = "\n[target]\nof = \"volume\"\nedges = [10000]\n";

/// A bundle whose version is its slope.
fn bundle(dir: &TempDir, slope: f64, target: Option<&str>) -> std::path::PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bundles/server-volume");
    let to = dir.path().join(slope.to_string());
    fs::create_dir_all(to.join("golden")).unwrap();
    for file in ["model.onnx", "golden/inputs.csv", "golden/outputs.csv"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let manifest = fs::read_to_string(from.join("model.toml")).unwrap();
    let manifest = manifest.replace("1.0.0", &slope.to_string());
    fs::write(to.join("model.toml"), manifest + target.unwrap_or_default()).unwrap();
    to
}

#[test]
fn a_better_candidate_is_promoted_kept_and_taken_back_on_demand() {
    let mut world = World::promoted();
    let under_way = world.offers.under_way(0).unwrap();
    assert!(under_way.ends_with("/3: in use and watched, 0 of 500 flows"), "{under_way}");
    world.turn();
    assert_eq!(world.outcomes().len(), 3, "nothing was seen yet");
    world.watch_to_the_end(TRUE);
    assert_eq!(world.outcomes(), ["canary 1", "judged 1", "kept 1", "promoted 1"]);
    let done = world.offers.back(0, &mut world.models).unwrap();
    assert!(done.ends_with("/0.5: in use again"), "{done}");
    assert_eq!(world.outcomes(), ["back 1", "canary 1", "judged 1", "kept 1", "promoted 1"]);
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
fn a_kept_model_that_has_become_worse_makes_way_for_the_operators() {
    let mut world = World::kept();
    world.push(kept::LOOK_FLOWS as u64, TRUE, None);
    world.turn_late();
    assert_eq!(world.models.in_use.1, 1, "it is better still");
    world.push(kept::LOOK_FLOWS as u64 - 1, -TRUE, None);
    world.turn_late();
    world.push(1, -TRUE, None);
    world.offers.promoted[0].as_mut().unwrap().next_look = Instant::now() + STAGE_WITHIN;
    world.turn();
    assert_eq!(world.models.in_use.1, 1, "too few flows, or too soon");
    world.turn_late();
    let outcomes = ["canary 1", "fallen_back 1", "judged 1", "kept 1", "promoted 1"];
    assert_eq!(world.outcomes(), outcomes);
    let (_, why) = world.offers.state.get().first().offers.last_refusal.clone().unwrap();
    assert!(why.contains("/3: the model that it was promoted over is better by now: "), "{why}");
    assert!(why.ends_with("/0.5 is in use again"), "{why}");
    assert_eq!(world.models.in_use.0.version(), USED.to_string());
    world.push(kept::LOOK_FLOWS as u64, -TRUE, None);
    world.turn();
    assert_eq!(world.outcomes(), outcomes, "once");
    assert!(!world.offers.have_work());
}

#[test]
fn the_operators_model_comes_back_over_several_promotions() {
    let mut world = World::kept();
    // It has drifted, which a candidate has learned before a look was due.
    world.push(KEPT as u64 / 2, -TRUE, None);
    world.offer(-TRUE).unwrap();
    world.push(SHADOW_FLOWS as u64, -TRUE, None);
    world.turn();
    world.push(5 * CANARY_FLOWS as u64, -TRUE, None);
    world.turn();
    assert_eq!(world.models.in_use.0.version(), "-3");
    let mut rolled_back = world;
    rolled_back.push(LOOK_FLOWS as u64, TRUE, None);
    rolled_back.turn();
    assert_eq!(rolled_back.models.in_use.0.version(), "3", "the one before");
    rolled_back.push(kept::LOOK_FLOWS as u64, -TRUE, None);
    rolled_back.turn_late();
    assert_eq!(rolled_back.models.in_use.0.version(), USED.to_string());
}

#[test]
fn a_canary_is_looked_at_until_it_has_answered_enough() {
    let mut world = World::with_canary();
    for answered in [0, 19, 20, 59] {
        let flows = 5 * answered - (world.flows - 1000 - SHADOW_FLOWS as u64);
        world.push(flows, TRUE, None);
        world.turn();
        let under_way = world.offers.under_way(0).unwrap();
        let stands = format!("a canary, has answered {answered} of 60 flows");
        assert!(under_way.ends_with(&stands), "{under_way}");
    }
    world.push(5, TRUE, None);
    world.turn();
    assert_eq!(world.outcomes(), ["canary 1", "judged 1", "promoted 1"]);
}

#[test]
fn a_canary_that_disappoints_is_withdrawn() {
    let look = 5 * CANARY_LOOK_FLOWS as u64;
    let mut worse = World::with_canary();
    worse.push(look, -TRUE, None);
    worse.turn();
    worse.assert_withdrawn("worse");
    let mut others = World::with_canary();
    others.push(look, TRUE, Some(1));
    others.turn();
    others.assert_withdrawn("others");
    let mut late = World::with_canary();
    // No such class: no answer.
    late.push(look, TRUE, Some(2));
    late.turn();
    assert!(late.offers.under_way(0).is_some(), "it has not answered yet");
    late.push(KEPT as u64 / 2, TRUE, Some(2));
    late.turn();
    late.assert_withdrawn("late");
    let mut failing = World::with_canary();
    failing.models.failure = Some("analytics-0.0: device native: no".to_owned());
    failing.turn();
    failing.assert_withdrawn("failures");
    let mut down = World::with_canary();
    down.models.is_down = true;
    down.push(KEPT as u64 / 2, TRUE, None);
    down.turn();
    down.assert_withdrawn("few_answers");
}

#[test]
fn a_canary_ends_by_command_and_when_another_model_comes() {
    let mut world = World::with_canary();
    let done = world.offers.back(0, &mut world.models).unwrap();
    assert!(done.ends_with("/3: no canary any more"), "{done}");
    world.assert_withdrawn("back");
    let mut overtaken = World::with_canary();
    overtaken.models.canary = None;
    overtaken.turn();
    assert_eq!(overtaken.outcomes(), ["canary 1", "judged 1", "overtaken 1"]);
}

#[test]
fn where_there_can_be_no_canary_a_candidate_comes_from_shadow_into_use() {
    let mut world = World::new();
    world.models.is_in_kernel = true;
    world.offer(TRUE).unwrap();
    world.push(SHADOW_FLOWS as u64, TRUE, None);
    world.turn();
    assert_eq!(world.outcomes(), ["judged 1", "promoted 1"]);
    assert_eq!(world.models.in_use.1, 1);
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
fn classes_are_judged_by_what_a_teacher_tells() {
    let mut world = World::empty(None);
    world.push(1000, TRUE, None);
    assert_eq!(world.offer(TRUE), Err("no_truth"));
    let (_, why) = world.offers.state.get().first().offers.last_refusal.clone().unwrap();
    assert!(why.contains("`fenxi ctl model truth`"), "{why}");
    let told = world.tell();
    assert!(told.starts_with("the truth of 1000 held-out flows is taken, 0 wait"), "{told}");
    assert_eq!(world.offer(-TRUE), Err("not_better"));
    let judged = world.offer(TRUE).unwrap();
    assert!(judged.contains("; its table of ports 0.6"), "{judged}");
    // However many flows end, each stage waits for the teacher.
    for (stage, flows) in [("shadow", SHADOW_FLOWS as u64), ("canary", 5 * CANARY_FLOWS as u64)] {
        world.push(flows, TRUE, None);
        world.turn();
        assert!(world.offers.under_way(0).unwrap().contains(stage));
        world.tell();
        world.turn();
    }
    let promoted = ["canary 1", "judged 1", "no_truth 1", "not_better 1", "promoted 1"];
    assert_eq!(world.outcomes(), promoted);
    world.push(LOOK_FLOWS as u64, -TRUE, None);
    world.turn();
    assert!(world.offers.under_way(0).is_some());
    world.tell();
    world.turn();
    assert!(world.outcomes().contains(&"rolled_back 1".to_owned()));
    world.assert_gone("worse");
}

#[test]
fn labels_and_flows_that_nobody_knows_are_counted() {
    let mut world = World::empty(None);
    world.push(3, TRUE, None);
    let mut truths = world.teacher.replace(Vec::new()).unwrap();
    truths[0].label = "huge".to_owned();
    truths[1].first_us += 1000;
    let told = world.offers.tell(0, &truths, &world.models).unwrap();
    let expected = "the truth of 1 held-out flows is taken, 2 wait for it; 1 others are not held \
        out, gone, or told before; 1 with labels that the model does not have, such as huge, are \
        left out";
    assert_eq!(told, expected);
    assert_eq!(world.offers.state.get().first().offers.truths, [1, 1, 1]);
    let bands = World::empty(Some(BANDS));
    assert!(bands.offers.tell(0, &truths, &bands.models).unwrap_err().contains("are bands"));
}

#[test]
fn another_model_overtakes_a_candidate() {
    let mut world = World::new();
    world.offer(TRUE).unwrap();
    world.models.in_use.1 += 1;
    world.turn();
    assert_eq!(world.outcomes(), ["judged 1", "overtaken 1"]);
    assert!(!world.offers.have_work());
}
