//! A plot of a report as SVG: lines over a logarithmic axis, or bars where the figures stand alone.
//!
//! There are two kinds of plots, which need no library.

use std::fmt::Write as _;

use super::report::{Bar, Figure, Report};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 200.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 70.0;
/// Colours that people with colour blindness can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
];

/// Draws the figures that have the unit of the first.
pub fn svg(report: &Report) -> String {
    let unit = report.figures.first().map_or("", |figure| figure.unit);
    let alike = report.figures.iter().filter(|figure| figure.unit == unit);
    let (placed, alone): (Vec<&Figure>, Vec<&Figure>) = alike.partition(|it| it.x.is_some());
    let mut canvas = Canvas::new();
    canvas.text(LEFT, 20.0, "start", 15, report.title);
    canvas.text(LEFT, 36.0, "start", 9, &report.machine.line());
    if placed.is_empty() {
        bars(&mut canvas, &alone, unit);
    } else {
        lines(&mut canvas, &placed, report.x, unit);
    }
    canvas.finish()
}

/// The figures over a logarithmic axis, a line for each name.
fn lines(canvas: &mut Canvas, figures: &[&Figure], x_name: &str, unit: &str) {
    let xs = || figures.iter().filter_map(|figure| figure.x);
    let (least, most) = (
        xs().fold(f64::INFINITY, f64::min).log2(),
        xs().fold(0.0, f64::max).log2(),
    );
    let axis = Axis::of(figures);
    let span = (most - least).max(1.0);
    let x_at = |x: f64| LEFT + (x.log2() - least) / span * (WIDTH - LEFT - RIGHT);
    let y_at = |y: f64| HEIGHT - BOTTOM - axis.share(y) * (HEIGHT - TOP - BOTTOM);

    for y in axis.ticks() {
        canvas.line((LEFT, y_at(y)), (WIDTH - RIGHT, y_at(y)), "#dddddd");
        canvas.text(LEFT - 8.0, y_at(y) + 4.0, "end", 11, &short(y));
    }
    let mut ticks: Vec<f64> = xs().collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let base = HEIGHT - BOTTOM;
    for x in ticks {
        canvas.line((x_at(x), base), (x_at(x), base + 5.0), "#000000");
        canvas.text(x_at(x), base + 18.0, "middle", 11, &short(x));
    }
    canvas.line((LEFT, base), (WIDTH - RIGHT, base), "#000000");
    canvas.line((LEFT, TOP), (LEFT, base), "#000000");
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    canvas.text(middle, base + 40.0, "middle", 12, x_name);
    canvas.text(LEFT - 8.0, TOP - 6.0, "end", 12, unit);

    let mut names: Vec<&str> = Vec::new();
    for figure in figures {
        if !names.contains(&figure.line.as_str()) {
            names.push(&figure.line);
        }
    }
    for (at, name) in names.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let of_line = figures.iter().filter(|figure| figure.line == *name);
        let points: Vec<(f64, f64)> = of_line
            .filter_map(|figure| Some((x_at(figure.x?), y_at(figure.median))))
            .collect();
        canvas.polyline(&points, colour);
        let y = TOP + 10.0 + 18.0 * at as f64;
        let x = WIDTH - RIGHT + 16.0;
        canvas.line((x, y), (x + 20.0, y), colour);
        canvas.text(x + 26.0, y + 4.0, "start", 11, name);
    }
}

/// The y axis: from 0 if the figures are of similar size, otherwise logarithmic.
enum Axis {
    Linear { most: f64 },
    Logarithmic { least: f64, most: f64 },
}

impl Axis {
    /// Beyond this ratio of the largest to the smallest figure, small ones cannot be distinguished on a linear axis.
    const RATIO_MAX: f64 = 8.0;

    fn of(figures: &[&Figure]) -> Axis {
        let medians = || figures.iter().map(|figure| figure.median);
        let (least, most) = (
            medians().fold(f64::INFINITY, f64::min),
            medians().fold(0.0, f64::max),
        );
        if least > 0.0 && most / least > Axis::RATIO_MAX {
            // Round numbers mirror each other: 1/5 for 5, 1/2 for 2.
            let least = 1.0 / nice_above(1.0 / least);
            let most = nice_above(most);
            Axis::Logarithmic { least, most }
        } else {
            let most = nice_above(most);
            Axis::Linear { most }
        }
    }

    /// Where a value lies between the axis' ends, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        match *self {
            Axis::Linear { most } => value / most,
            Axis::Logarithmic { least, most } => (value / least).ln() / (most / least).ln(),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match *self {
            Axis::Linear { most } => (0..=5).map(|step| most * f64::from(step) / 5.0).collect(),
            Axis::Logarithmic { least, most } => {
                let within = |tick: &f64| (least * 0.999..most * 1.001).contains(tick);
                let decades = (-3..7).map(|power| 10f64.powi(power));
                let all = decades.flat_map(|decade| [decade, 2.0 * decade, 5.0 * decade]);
                all.filter(within).collect()
            }
        }
    }
}

/// The figures as bars, one below the other; a tick where a figure should reach.
fn bars(canvas: &mut Canvas, figures: &[&Figure], unit: &str) {
    let reach = |figure: &&Figure| figure.median.max(figure.bar.map_or(0.0, Bar::value));
    let right = nice_above(figures.iter().map(reach).fold(0.0, f64::max));
    let (left, width) = (LEFT + 200.0, WIDTH - LEFT - 280.0);
    let x_at = |value: f64| left + value / right * width;
    let step = (HEIGHT - TOP - BOTTOM) / figures.len().max(1) as f64;
    let base = HEIGHT - BOTTOM;
    for tick in 0..=5 {
        let value = right * f64::from(tick) / 5.0;
        canvas.line((x_at(value), TOP), (x_at(value), base), "#dddddd");
        canvas.text(x_at(value), base + 18.0, "middle", 11, &short(value));
    }
    for (at, figure) in figures.iter().enumerate() {
        let y = TOP + step * at as f64 + step * 0.15;
        let (start, size) = ((left, y), (x_at(figure.median) - left, step * 0.7));
        canvas.rectangle(start, size, COLOURS[0]);
        let middle = y + step * 0.35 + 4.0;
        canvas.text(left - 8.0, middle, "end", 11, &figure.line);
        let value = short(figure.median);
        canvas.text(x_at(figure.median) + 6.0, middle, "start", 11, &value);
        if let Some(bar) = figure.bar {
            let x = x_at(bar.value());
            canvas.line((x, y - 3.0), (x, y + step * 0.7 + 3.0), COLOURS[1]);
        }
    }
    canvas.line((left, TOP), (left, base), "#000000");
    let caption = format!("{unit} (median; the tick is the bar)");
    canvas.text(left + width / 2.0, base + 40.0, "middle", 12, &caption);
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn nice_above(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let fitting = steps.iter().find(|&&step| step * power >= value);
    fitting.map_or(10.0 * power, |step| step * power)
}

/// The shortest text for a number; powers of two from 1024 are written as such.
fn short(value: f64) -> String {
    if value >= 1024.0 && value.log2().fract() == 0.0 {
        return format!("2^{}", value.log2());
    }
    let decimals = if value >= 100.0 || value.fract() == 0.0 {
        0
    } else if value >= 1.0 {
        1
    } else {
        3
    };
    format!("{value:.decimals$}")
}

/// SVG as it is written.
struct Canvas(String);

impl Canvas {
    fn new() -> Canvas {
        Canvas(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ))
    }

    fn finish(mut self) -> String {
        self.0 += "</svg>\n";
        self.0
    }

    // Writing to a string cannot fail, here and below.
    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
        );
    }

    fn polyline(&mut self, points: &[(f64, f64)], colour: &str) {
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            self.0,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            list.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(
                self.0,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
    }

    fn rectangle(&mut self, at: (f64, f64), size: (f64, f64), colour: &str) {
        let ((x, y), (width, height)) = (at, size);
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/>"
        );
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
        let text = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers_and_ticks_are_short() {
        for (value, end) in [(0.0, 1.0), (17.0, 20.0), (20.0, 20.0), (0.21, 0.25)] {
            assert!((nice_above(value) - end).abs() < 1e-9, "{value}");
        }
        let ticks = [0.0, 8.0, 12.5, 4_194_304.0, 0.125].map(short);
        assert_eq!(ticks, ["0", "8", "12.5", "2^22", "0.125"]);
    }
}
