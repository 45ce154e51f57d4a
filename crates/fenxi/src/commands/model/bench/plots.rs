//! Plots as SVG: a reliability diagram for each depth, and the confusion matrix of the names that flows end with.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::report::{AtDepth, Report};
use crate::exit::Failure;

/// What the files of this command begin with; no other file is overwritten.
const MARK: &str = "<!-- fenxi model bench -->\n";
/// Classes in a matrix, the commonest.
const CLASSES_MAX: usize = 60;
/// Characters of a label, as many as have room beside the matrix.
const LABEL_MAX: usize = 24;

/// Refuses a folder in which a plot would overwrite a file of someone else. Call it before the work begins.
///
/// # Errors
/// There is such a file, or the folder is none.
pub fn check(dir: &Path, depths: impl Iterator<Item = usize>) -> Result<(), Failure> {
    if dir.exists() && !dir.is_dir() {
        return Err(Failure::cannot_create(format!(
            "{}: not a folder; give another --plots",
            dir.display()
        )));
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    if !dir.exists() && parent.is_some_and(|parent| !parent.is_dir()) {
        return Err(Failure::cannot_create(format!(
            "{}: the folder above does not exist; create it first",
            dir.display()
        )));
    }
    let names = depths
        .map(reliability_name)
        .chain(["confusion.svg".to_owned()]);
    names
        .map(|name| dir.join(name))
        .try_for_each(|path| is_ours(&path))
}

fn reliability_name(depth: usize) -> String {
    format!("reliability-{depth}.svg")
}

fn is_ours(path: &Path) -> Result<(), Failure> {
    let mut start = vec![0; MARK.len()];
    let begins = match path.symlink_metadata() {
        Err(_) => return Ok(()),
        Ok(file) if !file.is_file() => false,
        Ok(_) => File::open(path)
            .and_then(|mut file| file.read_exact(&mut start))
            .is_ok(),
    };
    if begins && start == MARK.as_bytes() {
        return Ok(());
    }
    Err(Failure::cannot_create(format!(
        "{}: exists and was not written by this command; give another --plots, or remove it",
        path.display()
    )))
}

/// Writes the plots.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn write(dir: &Path, report: &Report, classes: &[String]) -> Result<(), Failure> {
    if !dir.is_dir() {
        fs::create_dir(dir).map_err(|error| Failure::creating(dir, &error))?;
    }
    let title = format!("{} {}", report.model, report.version);
    let reliability = |depth: &AtDepth| {
        (
            reliability_name(depth.elements),
            reliability_svg(&title, depth),
        )
    };
    let mut plots: Vec<(String, String)> = report.depths.iter().map(reliability).collect();
    plots.push((
        "confusion.svg".to_owned(),
        confusion_svg(&title, report, classes),
    ));
    for (name, svg) in plots {
        let path = dir.join(name);
        is_ours(&path)?;
        fs::write(&path, svg).map_err(|error| Failure::creating(&path, &error))?;
    }
    Ok(())
}

/// Share right over probability: a dot for each bin, as large as its flows are many, and the diagonal in grey.
fn reliability_svg(title: &str, depth: &AtDepth) -> String {
    const SIDE: f64 = 360.0;
    const MARGIN: f64 = 48.0;
    const INNER: f64 = SIDE - 2.0 * MARGIN;
    let (x, y) = (
        |share: f64| MARGIN + share * INNER,
        |share: f64| SIDE - MARGIN - share * INNER,
    );
    let mut svg = Svg::new(SIDE, SIDE);
    svg.element(format_args!(
        "<rect x=\"{MARGIN}\" y=\"{MARGIN}\" width=\"{INNER}\" height=\"{INNER}\" fill=\"none\" stroke=\"#888\"/>"
    ));
    svg.element(format_args!(
        "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#bbb\"/>",
        x(0.0),
        y(0.0),
        x(1.0),
        y(1.0)
    ));
    for mark in [0.0, 0.5, 1.0] {
        svg.text((x(mark), SIDE - MARGIN + 16.0), "middle", &mark.to_string());
        svg.text((MARGIN - 8.0, y(mark) + 4.0), "end", &mark.to_string());
    }
    let most = depth
        .reliability
        .iter()
        .map(|bin| bin.flows)
        .max()
        .unwrap_or(1);
    for bin in &depth.reliability {
        let radius = 2.0 + 8.0 * (bin.flows as f64 / most as f64).sqrt();
        svg.element(format_args!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\" fill=\"#0072b2\" fill-opacity=\"0.7\"><title>{} flows: \
             probability {:.3}, right {:.3}</title></circle>",
            x(bin.probability), y(bin.right), bin.flows, bin.probability, bin.right
        ));
    }
    let middle = SIDE / 2.0;
    svg.text(
        (middle, 20.0),
        "middle",
        &format!("{title}, depth {}: ECE {:.3}", depth.elements, depth.ece),
    );
    svg.text(
        (middle, SIDE - 10.0),
        "middle",
        "probability (dots: share right, size: flows)",
    );
    svg.finish()
}

/// A row for each class, a column for each name; the darker a cell, the larger its share of the row.
fn confusion_svg(title: &str, report: &Report, classes: &[String]) -> String {
    const CELL: f64 = 26.0;
    const LEFT: f64 = 170.0;
    const TOP: f64 = 160.0;
    let names = &report.names;
    // The last row and column are those without a name.
    let mut labels: Vec<String> = classes.iter().map(|label| shortened(label)).collect();
    labels.push("no name".to_owned());
    let place = |class: u16| usize::from(class).min(classes.len());
    let mut sums = vec![(0, 0); labels.len()];
    for ((class, name), flows) in &names.pairs {
        sums[place(*class)].0 += flows;
        sums[place(*name)].1 += flows;
    }
    let mut shown: Vec<usize> = (0..labels.len()).filter(|&at| sums[at] != (0, 0)).collect();
    shown.sort_by_key(|&at| std::cmp::Reverse(sums[at].0 + sums[at].1));
    shown.truncate(CLASSES_MAX);
    shown.sort_unstable();

    let side = CELL * shown.len() as f64;
    let mut svg = Svg::new(LEFT + side + 20.0, TOP + side + 20.0);
    svg.text(
        (10.0, 20.0),
        "start",
        &format!("{title}: rows are labels, columns the names that flows end with"),
    );
    for (at, &class) in shown.iter().enumerate() {
        let middle = (at as f64 + 0.5) * CELL + 4.0;
        svg.text((LEFT - 6.0, TOP + middle), "end", &labels[class]);
        svg.upwards((LEFT + middle, TOP - 6.0), &labels[class]);
    }
    for ((class, name), flows) in &names.pairs {
        let at = |class: u16| shown.iter().position(|&it| it == place(class));
        let (Some(row), Some(column)) = (at(*class), at(*name)) else {
            continue;
        };
        let share = *flows as f64 / sums[place(*class)].0.max(1) as f64;
        let colour = if class == name { "#0072b2" } else { "#d55e00" };
        let (x, y) = (LEFT + CELL * column as f64, TOP + CELL * row as f64);
        svg.element(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{colour}\" fill-opacity=\"{:.2}\"/>",
            0.1 + 0.7 * share
        ));
        svg.text(
            (x + CELL / 2.0, y + CELL / 2.0 + 4.0),
            "middle",
            &flows.to_string(),
        );
    }
    svg.element(format_args!(
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{side}\" height=\"{side}\" fill=\"none\" stroke=\"#888\"/>"
    ));
    svg.finish()
}

fn shortened(label: &str) -> String {
    match label.char_indices().nth(LABEL_MAX) {
        Some((at, _)) => format!("{}…", &label[..at]),
        None => label.to_owned(),
    }
}

/// SVG as it is written. Writing to a string cannot fail.
struct Svg(String);

impl Svg {
    fn new(width: f64, height: f64) -> Svg {
        Svg(format!(
            "{MARK}<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
             {height}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ))
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{element}");
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = quoted(text);
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn upwards(&mut self, (x, y): (f64, f64), text: &str) {
        let text = quoted(text);
        let _ = writeln!(
            self.0,
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-60)\">{text}</text>"
        );
    }

    fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

fn quoted(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_this_command_are_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let plot = dir.path().join("reliability-3.svg");
        let checked = || check(dir.path(), [3].into_iter());
        assert!(checked().is_ok());
        fs::write(&plot, Svg::new(1.0, 1.0).finish()).unwrap();
        assert!(checked().is_ok());
        fs::write(&plot, "<svg/>").unwrap();
        let refused = checked().unwrap_err();
        assert_eq!(refused.code(), 73);
        assert!(
            refused.to_string().contains("reliability-3.svg: exists"),
            "{refused}"
        );
        let file = check(&plot, [3].into_iter()).unwrap_err();
        assert!(file.to_string().contains("not a folder"), "{file}");
        assert!(check(&dir.path().join("new"), [3].into_iter()).is_ok());
        assert!(check(&dir.path().join("new/er"), [3].into_iter()).is_err());
    }

    #[test]
    fn labels_cannot_leave_their_element() {
        assert_eq!(quoted("a<b>&c"), "a&lt;b&gt;&amp;c");
        assert_eq!(shortened(&"é".repeat(30)), "é".repeat(24) + "…");
    }
}
