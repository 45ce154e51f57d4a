//! Samples of the devices' profiles.

use analytics::DeviceProfile;

use super::read::devices;
use crate::control::view::View;
use crate::metric::{Sample, Value};

pub fn profiles(view: &View<'_>, read: impl Fn(&DeviceProfile) -> Value) -> Vec<Sample> {
    let found =
        with_profile(view).map(|(sample, profile)| Sample { value: read(&profile), ..sample });
    found.collect()
}

/// T₀ and T₁ of each device that has a profile.
pub fn parts(view: &View<'_>) -> Vec<Sample> {
    let parts = with_profile(view).flat_map(|(sample, profile)| {
        let line = profile.expected;
        [("fixed", line.t0_us), ("per_series", line.t1_us)].map(|(part, us)| {
            let mut labels = sample.labels.clone();
            labels.push(part.to_owned());
            Sample { labels, value: Value::Number(us / 1e6) }
        })
    });
    parts.collect()
}

fn with_profile(view: &View<'_>) -> impl Iterator<Item = (Sample, DeviceProfile)> {
    let named = devices(view, |_, _| Value::Count(0)).into_iter();
    let managers = view.collector.analytics.iter();
    let profiles = managers.flat_map(|watched| watched.latest.profiles());
    let all = named.zip(profiles);
    all.filter_map(|(sample, profile)| Some((sample, profile?)))
}
