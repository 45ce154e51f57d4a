//! Finds and loads the ONNX Runtime library.
//!
//! If the user names a library, only that one is loaded: falling back to another would hide the
//! mistake. Otherwise the usual places are searched, and the first file that exists is taken.
//!
//! Loading runs the library's start-up code, which has been seen to hang forever on some machines.
//! So it happens on a helper thread with a deadline. Past the deadline the thread is abandoned, and
//! the program can report the problem.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use ort::LoadDynamicError;
use ort::environment::Environment;
use ort::logging::LogLevel;

use super::log::{logger, one_line};
use crate::provider::OpenError;

/// The oldest library accepted, as the minor version of release 1. It follows from the feature
/// `api-22` of the crate `ort`, the first with plug-in providers.
const MINOR_MIN: u32 = ort::MINOR_VERSION;

/// How long loading the library or a plug-in may take, in seconds. It usually takes about 50 ms.
pub(super) const LOAD_S_MAX: u64 = 20;

const FILE: &str = "libonnxruntime.so";

/// What to do about a missing or wrong library, on an installed system and in a checkout.
const CURE: &str = "install the package fenxi-onnxruntime, name a library with accel.library, or \
    run `make onnxruntime`";

/// Environment variables that name a library, in order: fenxi's own, then the one that the crate
/// `ort` established.
const VARIABLES: [&str; 2] = ["FENXI_ONNXRUNTIME", "ORT_DYLIB_PATH"];

/// Where packages and administrators put the library. The places beside the program are searched
/// first.
const FOLDERS: [&str; 2] = ["/usr/lib/fenxi", "/usr/local/lib/fenxi"];

/// The library that this process has loaded. A process can load only one.
static LOADED: Mutex<Option<Library>> = Mutex::new(None);

/// A loaded ONNX Runtime; cheap to clone.
#[derive(Clone, Debug)]
pub struct Library {
    path: PathBuf,
    version: Option<String>,
    pub(super) environment: Environment,
}

impl Library {
    /// Path of the file, absolute and with links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version, such as "1.31.1"; none if the build does not carry it in its symbols.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }
}

/// A file that is not a library for this machine, or not ONNX Runtime.
fn unloadable(path: &Path, cause: &str) -> OpenError {
    let path = path.display();
    OpenError::Unavailable(format!("{path}: cannot be loaded as ONNX Runtime: {cause}; {CURE}"))
}

/// Loads `library` if given, else the library named by `FENXI_ONNXRUNTIME` or `ORT_DYLIB_PATH`,
/// else the first of `libonnxruntime.so` beside the program, in `../onnxruntime` and `../lib/fenxi`
/// from there, and in `/usr/lib/fenxi` and `/usr/local/lib/fenxi`. If it is loaded already, returns
/// it.
///
/// # Errors
/// There is no file, or it cannot be loaded, is too old, or hangs; or another one is loaded
/// already. After a failure another file may be tried.
pub fn load(library: Option<&Path>) -> Result<Library, OpenError> {
    let path = find(&places(library, |variable| std::env::var_os(variable)))?;
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = loaded.as_ref() {
        return if library.path == path {
            Ok(library.clone())
        } else {
            Err(OpenError::Unavailable(format!(
                "{}: cannot be loaded, because this process already uses {}",
                path.display(),
                library.path.display()
            )))
        };
    }
    let library = open(path)?;
    *loaded = Some(library.clone());
    Ok(library)
}

/// The places to search, each with who named it.
fn places(
    library: Option<&Path>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, PathBuf)> {
    if let Some(path) = library {
        return vec![(String::new(), path.to_owned())];
    }
    for variable in VARIABLES {
        if let Some(path) = environment(variable).filter(|path| !path.is_empty()) {
            return vec![(format!(" (named by {variable})"), path.into())];
        }
    }
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent);
    let near = beside.into_iter().flat_map(|dir| {
        ["", "../onnxruntime", "../lib/fenxi"].map(|place| dir.join(place).join(FILE))
    });
    let installed = FOLDERS.iter().map(|dir| Path::new(dir).join(FILE));
    near.chain(installed).map(|path| (String::new(), path)).collect()
}

/// The first place that has a file, as an absolute path without links.
fn find(places: &[(String, PathBuf)]) -> Result<PathBuf, OpenError> {
    places.iter().find_map(|(_, path)| fs::canonicalize(path).ok()).ok_or_else(|| {
        let looked_at = places.iter().map(|(by, path)| format!("{}{by}", path.display()));
        let looked_at: Vec<_> = looked_at.collect();
        OpenError::Unavailable(format!(
            "ONNX Runtime ({FILE}) not found; looked at {}; {CURE}",
            looked_at.join(", ")
        ))
    })
}

fn open(path: PathBuf) -> Result<Library, OpenError> {
    if let Err(cause) = check_regular(&path) {
        return Err(unloadable(&path, &cause));
    }
    let file = path.clone();
    let environment = within(Duration::from_secs(LOAD_S_MAX), move || {
        ort::init_from(&file).map_err(|error| refusal(&file, error)).and_then(|builder| {
            // The crate `ort` asks for events unless told otherwise. `telemetry` turns the
            // client off.
            let builder = builder.with_name("fenxi").with_telemetry(false);
            let environment = builder.with_logger(logger()).build();
            environment.map_err(|error| unloadable(&file, &one_line(error.message())))
        })
    });
    let environment = match environment {
        Ok(result) => result?,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            return Err(OpenError::Unavailable(format!(
                "{}: loading ONNX Runtime took longer than {LOAD_S_MAX} s and was given up; try \
                 another build of the library",
                path.display()
            )));
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            return Err(unloadable(&path, "it broke off while starting"));
        }
    };
    environment.set_log_level(LogLevel::Error);
    let version = version(&path);
    Ok(Library { path, version, environment })
}

/// Refuses a file that is not regular: the system's loader would block on a FIFO.
pub(super) fn check_regular(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err("it is not a regular file".to_owned()),
        _ => Ok(()),
    }
}

/// Runs `work` on a thread and returns its result, or none if it is not there by the deadline; the
/// thread is abandoned then.
pub(super) fn within<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, mpsc::RecvTimeoutError> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    result.recv_timeout(deadline)
}

fn refusal(path: &Path, error: LoadDynamicError) -> OpenError {
    match error {
        LoadDynamicError::BadVersion { version_str, .. } => OpenError::Unavailable(format!(
            "{}: ONNX Runtime {version_str} is too old, 1.{MINOR_MIN} or later is needed; {CURE}",
            path.display()
        )),
        LoadDynamicError::Dlopen { error, .. } => unloadable(path, &one_line(&error.to_string())),
        LoadDynamicError::MissingApi { .. } => {
            unloadable(path, "it is a library, but does not export OrtGetApiBase")
        }
        LoadDynamicError::InvalidVersionString => unloadable(path, "its version is not text"),
    }
}

/// The version as the linker wrote it: official builds export their one function under the symbol
/// version `VERS_1.31.1`. The C API also returns it, but only to unsafe code.
fn version(path: &Path) -> Option<String> {
    const MARK: &[u8] = b"\0VERS_";
    // The symbol tables are at the front of the file.
    let mut head = Vec::new();
    File::open(path).ok()?.take(1 << 20).read_to_end(&mut head).ok()?;
    let at = head.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
    let digits = head[at..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    Some(digits.map(|&byte| char::from(byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places as text, with one environment variable set.
    fn named(library: Option<&str>, set: &str, value: &str) -> Vec<String> {
        let environment = |variable: &str| (variable == set).then(|| value.into());
        let places = places(library.map(Path::new), environment);
        places.iter().map(|(named_by, path)| format!("{}{named_by}", path.display())).collect()
    }

    #[test]
    fn a_named_library_is_the_only_place() {
        assert_eq!(named(Some("/a.so"), VARIABLES[0], "/b.so"), ["/a.so"]);
        for variable in VARIABLES {
            assert_eq!(named(None, variable, "/b.so"), [format!("/b.so (named by {variable})")]);
        }
    }

    #[test]
    fn with_none_named_the_usual_places_are_looked_at() {
        let places = named(None, VARIABLES[0], "");
        assert_eq!(places.len(), 5, "{places:?}");
        assert!(places[0].ends_with("/libonnxruntime.so"));
        assert!(places[1].ends_with("/../onnxruntime/libonnxruntime.so"));
        assert!(places[2].ends_with("/../lib/fenxi/libonnxruntime.so"));
        assert_eq!(places[3], "/usr/lib/fenxi/libonnxruntime.so");
        assert_eq!(places[4], "/usr/local/lib/fenxi/libonnxruntime.so");
    }

    #[test]
    fn the_message_names_every_place() {
        let places =
            ["/nowhere/a.so", "/nowhere/b.so"].map(|path| (String::new(), PathBuf::from(path)));
        let message = find(&places).unwrap_err().to_string();
        for part in ["/nowhere/a.so", "/nowhere/b.so", "make onnxruntime"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn work_that_hangs_is_given_up() {
        let (_keep, never) = mpsc::channel::<()>();
        let hung = within(Duration::from_millis(5), move || never.recv().is_ok());
        assert_eq!(hung, Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(within(Duration::from_secs(60), || 7), Ok(7));
    }

    #[test]
    fn the_version_is_read_from_the_symbols() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\x7fELF..\0OrtGetApiBase\0VERS_1.31.1\0libdl.so.2\0").unwrap();
        assert_eq!(version(file.path()).as_deref(), Some("1.31.1"));
        fs::write(file.path(), b"\x7fELF").unwrap();
        assert_eq!(version(file.path()), None);
    }
}
