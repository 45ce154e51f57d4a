use std::fs;

use accel::{SimulatedDevice, Sizes};
use config::Sources;

use super::*;

/// A folder that is removed at the end of a test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("fenxi-profiles-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn profiles(&self) -> Profiles {
        Profiles::with(Some(self.0.clone()), &[task()])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn task() -> OpenTask {
    let sets = ["analytics.policy=slo", "accel.devices=[\"cpu\"]"].map(str::to_owned);
    let config = Sources::named(None, &sets).load().unwrap().config;
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/app-id-k10"));
    OpenTask::open_all(&config, Some(dir)).unwrap().remove(0)
}

/// A session that takes so long for a batch, and so long for a row of it.
fn session(bundle: &Bundle, t0_us: f64, t1_us: f64) -> SimulatedDevice {
    let line = Profile { t0_us, t1_us };
    SimulatedDevice::new(line, Sizes::Any { cap: 16 }, bundle.shape())
}

fn key_of(task: &OpenTask, library: &str) -> ProfileKey {
    let device = &task.config.accel.devices[0];
    key(&task.bundle, device, library.to_owned())
}

/// What a run that begins now plans by, on a session that takes at least 200 µs.
fn start(scratch: &Scratch, library: &str, t0_us: f64) -> (Profiles, ProfileFile) {
    let (task, profiles) = (task(), scratch.profiles());
    let mut session = session(&task.bundle, t0_us, 100.0);
    let key = key_of(&task, library);
    let found = profiles.known_or_measured(key, &task.bundle, &mut session);
    (profiles, found.unwrap())
}

/// The same until the machine was quiet enough for a good measurement, which alone is kept.
fn stored_start(scratch: &Scratch, library: &str, t0_us: f64) -> (Profiles, ProfileFile) {
    let mut starts = (0..20).map(|_| start(scratch, library, t0_us));
    let good = starts.find(|(_, file)| file.r_squared >= R_SQUARED_MIN);
    good.expect("a quiet moment")
}

#[test]
fn the_second_start_does_not_measure() {
    let scratch = Scratch::new("second");
    let (_, first) = stored_start(&scratch, "1.24", 200.0);
    assert_eq!(scratch.files().len(), 1);
    assert!(first.profile().t0_us + 16.0 * first.profile().t1_us > 1_500.0);
    // A device that is ten times slower by now: nobody looks.
    let (_, second) = start(&scratch, "1.24", 20_000.0);
    assert_eq!(second, first);
}

#[test]
fn another_session_of_the_device_is_not_measured_either() {
    let (task, profiles) = (task(), Profiles::with(None, &[]));
    let find = |t0_us| {
        let mut session = session(&task.bundle, t0_us, 1.0);
        let key = key_of(&task, "1.24");
        let found = profiles.known_or_measured(key, &task.bundle, &mut session);
        found.unwrap()
    };
    let first = find(100.0);
    assert_eq!(find(50_000.0), first);
}

#[test]
fn after_an_upgrade_or_where_the_file_is_damaged_it_is_measured_again_with_one_warning() {
    let scratch = Scratch::new("upgrade");
    let (_, first) = stored_start(&scratch, "1.24", 200.0);
    let (profiles, second) = stored_start(&scratch, "1.25", 400.0);
    assert_ne!(second, first);
    assert_eq!((scratch.files().len(), &*second.library), (1, "1.25"));
    // The start that found the file of another library, unless an attempt before it had replaced
    // it.
    assert!(profiles.state().said.len() <= 1);
    let file = scratch.files().remove(0);
    fs::write(&file, "schema_version = ").unwrap();
    let (profiles, _) = start(&scratch, "1.25", 200.0);
    let said = profiles.state().said.clone();
    assert_eq!(said.len(), 1, "{said:?}");
    let said = said.first().unwrap();
    assert!(said.contains("is not a profile") && said.contains("is ignored"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_written_to_stops_nothing() {
    let scratch = Scratch::new("file");
    fs::write(&scratch.0, "a file, where a folder should be").unwrap();
    let (profiles, _) = start(&scratch, "1.24", 200.0);
    // It cannot be read, and a good profile cannot be stored.
    let said = profiles.state().said.clone();
    assert!((1..=2).contains(&said.len()), "{said:?}");
    fs::remove_file(&scratch.0).unwrap();
}

#[test]
fn what_a_run_has_found_is_what_the_next_start_begins_with() {
    let scratch = Scratch::new("drift");
    let (profiles, first) = stored_start(&scratch, "1.24", 200.0);
    let now = Profile { t0_us: 321.0, t1_us: 45.0 };
    let sha256 = first.model_sha256.clone();
    assert_eq!(profiles.drifted("npu", &sha256, now), Stored::Nowhere);
    assert_eq!(profiles.drifted("cpu", "0", now), Stored::Nowhere);
    let stored = profiles.drifted("cpu", &sha256, now);
    assert_eq!(stored, Stored::At(scratch.files().remove(0)));
    let (_, next) = start(&scratch, "1.24", 200.0);
    assert_eq!((next.profile(), next.origin), (now, Origin::Run));
    // The measurement says nothing of this line, and is still there.
    assert_eq!(next.r_squared, first.r_squared);
    // Where the disk is full, say.
    fs::remove_dir_all(&scratch.0).unwrap();
    fs::write(&scratch.0, "").unwrap();
    assert!(matches!(profiles.drifted("cpu", &sha256, now), Stored::Failed(_)));
    fs::remove_file(&scratch.0).unwrap();
}

#[test]
fn a_profile_that_explains_little_is_said_once() {
    let (task, profiles) = (task(), Profiles::with(None, &[]));
    let points = [(1, 10.0), (4, 900.0), (16, 20.0)].map(|(rows, us)| {
        format!("[[points]]\nrows = {rows}\nmedian_us = {us}\nmin_us = {us}\nruns = 3\n")
    });
    let scratch = Scratch::new("poor");
    fs::create_dir_all(&scratch.0).unwrap();
    let path = scratch.0.join("p.toml");
    let head = format!(
        "schema_version = 1\ndevice = \"cpu\"\nprovider = \"cpu\"\neffective = \"\"\nlibrary = \
         \"\"\nmodel = \"\"\n\
         model_sha256 = \"{}\"\nmachine = \"\"\nmemory_kib = 0\nt0_us = 10.0\nt1_us = 1.0\n",
        task.bundle.sha256()
    );
    fs::write(&path, head + &points.concat()).unwrap();
    let mut device = task.config.accel.devices[0].clone();
    device.profile = Some(path);
    for _ in 0..3 {
        let mut session = session(&task.bundle, 1.0, 1.0);
        let found = profiles.of_session(&task.config, &task.bundle, &device, &mut session);
        assert_eq!(found.unwrap().map(|it| it.t0_us), Some(10.0));
    }
    let said = profiles.state().said.clone();
    assert_eq!(said.len(), 1, "{said:?}");
    for part in ["device cpu, model app-id-k10", "R² is", "fenxi profile --device cpu", "quieter"]
    {
        assert!(said.first().unwrap().contains(part), "{said:?}");
    }
}

#[test]
fn the_folder_is_that_of_the_configuration_or_of_the_unit() {
    let of_unit = |cache: &str| folder_of(None, Some(cache.into()));
    assert_eq!(folder_of(None, None), None);
    assert_eq!(of_unit("/var/cache/fenxi:/x"), Some("/var/cache/fenxi/profiles".into()));
    assert_eq!(of_unit(""), None);
    assert_eq!(of_unit("relative"), None);
    let configured = Some(Path::new("/p"));
    assert_eq!(folder_of(configured, Some("/c".into())), Some("/p".into()));
}

#[test]
fn all_measurements_of_a_start_together_have_a_limit() {
    let (one, many) = (vec![task()], vec![task(); 64]);
    assert_eq!(Profiles::with(None, &one).0.limit, MEASURE_ONE);
    assert_eq!(Profiles::with(None, &many).0.limit, MEASURE_ALL / 64);
}

#[test]
fn the_cpu_has_a_name_or_numbers() {
    let x86 = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags : a\nmodel name : other\n";
    assert_eq!(cpu_model(x86), "Some CPU @ 2 GHz");
    let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\nCPU revision\t: 1\n";
    assert_eq!(cpu_model(arm), "0x41 0xd0c 1");
    assert_eq!(cpu_model(""), "");
}
