//! A line chart as SVG: two axes, each linear, logarithmic or of percentiles; a legend; nothing else.

use super::escape;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// Decades; what isn't above zero is left out.
    Log,
    /// The value is 1 / (1 - quantile), on decades: each doubles the distance from p100.
    Percentile,
}

pub struct Series {
    /// For the legend; a series without a name is one more of the colour before it.
    pub name: Option<String>,
    pub colour: usize,
    pub points: Vec<(f64, f64)>,
}

pub struct Chart {
    pub title: String,
    pub x_label: String,
    pub y_label: String,
    pub x: Scale,
    pub y: Scale,
    /// What lies before this on the x axis is shaded.
    pub shaded: f64,
    /// Moments on the x axis that something happened at, and what.
    pub marks: Vec<(f64, String)>,
    pub series: Vec<Series>,
}

const WIDTH: f64 = 900.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;
const LEGEND_LINE: f64 = 18.0;
/// Told apart by people who don't see red and green too.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
];

/// An axis: where a value lies between 0 and 1, and its marks.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        for value in values.filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0)) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => Axis {
                scale,
                low: 0.0,
                high: if high > 0.0 { high * 1.05 } else { 1.0 },
            },
            _ => {
                let low = 10f64.powf(low.log10().floor());
                let high = 10f64.powf(high.log10().ceil());
                Axis {
                    scale,
                    low,
                    high: if high > low { high } else { low * 10.0 },
                }
            }
        }
    }

    /// Where a value lies, 0 to 1; none for what the scale can't show.
    fn place(&self, value: f64) -> Option<f64> {
        let at = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            _ if value <= 0.0 => return None,
            _ => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        at.is_finite().then(|| at.clamp(0.0, 1.0))
    }

    /// Values with a line and a label.
    fn marks(&self) -> Vec<(f64, String)> {
        if self.scale == Scale::Linear {
            let step = nice(self.high / 5.0);
            let count = (self.high / step).floor() as usize;
            return (0..=count.min(20))
                .map(|n| (n as f64 * step, plain(n as f64 * step)))
                .collect();
        }
        let decades = (self.high / self.low).log10().round() as i32;
        (0..=decades.min(20))
            .map(|n| {
                let value = self.low * 10f64.powi(n);
                let label = match self.scale {
                    Scale::Percentile => percentile(value),
                    _ => plain(value),
                };
                (value, label)
            })
            .collect()
    }
}

/// The next of 1, 2, 5, 10 ... at or above.
fn nice(value: f64) -> f64 {
    let decade = 10f64.powf(value.max(1e-9).log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|f| f * decade >= value * 0.999_999);
    factor.unwrap_or(10.0) * decade
}

fn plain(value: f64) -> String {
    if value >= 1.0 || value == 0.0 {
        return format!("{value:.0}");
    }
    let digits = (-value.log10()).ceil() as usize;
    format!("{value:.digits$}")
}

/// 1 / (1 - quantile) as the percentile's name.
fn percentile(value: f64) -> String {
    match value.log10().round() as i32 {
        ..=0 => "0".into(),
        1 => "p90".into(),
        2 => "p99".into(),
        nines => format!("p99.{}", "9".repeat((nines - 2) as usize)),
    }
}

impl Chart {
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|s| &s.points);
        let x = Axis::of(self.x, points().map(|p| p.0));
        let y = Axis::of(self.y, points().map(|p| p.1));
        let height = TOP
            + PLOT_HEIGHT
            + BOTTOM
            + LEGEND_LINE * self.series.iter().filter(|s| s.name.is_some()).count() as f64;
        let (right, bottom) = (WIDTH - RIGHT, TOP + PLOT_HEIGHT);
        let across = |at: f64| LEFT + at * (right - LEFT);
        let up = |at: f64| bottom - at * PLOT_HEIGHT;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/><text x=\"{LEFT}\" y=\"20\" font-size=\"15\" font-weight=\"600\">{}</text>",
            escape(&self.title)
        );
        if self.shaded > 0.0
            && let Some(end) = x.place(self.shaded)
        {
            out += &format!(
                "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{PLOT_HEIGHT}\" fill=\"#f3f3f3\"/>",
                end * (right - LEFT)
            );
        }
        for (value, what) in &self.marks {
            let Some(at) = x.place(*value).map(across) else {
                continue;
            };
            out += &format!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#a00\" stroke-dasharray=\"4 3\"><title>{}</title></line>",
                escape(what)
            );
        }
        for (value, label) in x.marks() {
            let Some(at) = x.place(value).map(across) else {
                continue;
            };
            out += &format!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{label}</text>",
                bottom + 16.0
            );
        }
        for (value, label) in y.marks() {
            let Some(at) = y.place(value).map(up) else {
                continue;
            };
            out += &format!(
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{label}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        out += &format!(
            "<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
            bottom + 32.0,
            escape(&self.x_label),
            LEFT - 6.0,
            TOP - 8.0,
            escape(&self.y_label)
        );
        let thin = self.series.iter().any(|s| s.name.is_none());
        let mut line_of_legend = 0.0;
        for series in &self.series {
            let colour = COLOURS[series.colour % COLOURS.len()];
            let dash = match series.colour >= COLOURS.len() {
                true => " stroke-dasharray=\"6 3\"",
                false => "",
            };
            let look = match thin {
                true => "stroke-width=\"1.2\" opacity=\"0.75\"",
                false => "stroke-width=\"2\"",
            };
            let place = |p: &(f64, f64)| Some((across(x.place(p.0)?), up(y.place(p.1)?)));
            let line: Vec<String> = series
                .points
                .iter()
                .filter_map(place)
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            out += &format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {look} stroke-linejoin=\"round\"{dash}/>",
                line.join(" ")
            );
            let Some(name) = &series.name else { continue };
            let text_y = bottom + BOTTOM + LEGEND_LINE * line_of_legend;
            line_of_legend += 1.0;
            out += &format!(
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{text_y:.1}\" y2=\"{text_y:.1}\" stroke=\"{colour}\" stroke-width=\"3\"{dash}/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT + 24.0,
                LEFT + 32.0,
                text_y + 4.0,
                escape(name)
            );
        }
        out + "</svg>"
    }
}

/// Ratios with their spread, one a line, on a log axis with 1 marked: what is right of it is better.
pub struct Spread {
    pub title: String,
    /// Figure, lowest, median, highest.
    pub lines: Vec<(String, f64, f64, f64)>,
}

const SPREAD_LEFT: f64 = 190.0;
const SPREAD_LINE: f64 = 26.0;

impl Spread {
    pub fn svg(&self) -> String {
        let all = self.lines.iter().flat_map(|l| [l.1, l.3]).chain([1.0]);
        let axis = Axis::of(Scale::Log, all);
        let bottom = TOP + SPREAD_LINE * self.lines.len() as f64;
        let (height, right) = (bottom + BOTTOM, WIDTH - RIGHT - 60.0);
        let across = |value: f64| {
            let at = axis.place(value).unwrap_or(0.0);
            SPREAD_LEFT + at * (right - SPREAD_LEFT)
        };
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/><text x=\"10\" y=\"20\" font-size=\"15\" font-weight=\"600\">{}</text>",
            escape(&self.title)
        );
        for (value, label) in axis.marks() {
            let (at, strong) = (across(value), (value - 1.0).abs() < 1e-9);
            let colour = if strong { "#555" } else { "#e4e4e4" };
            out += &format!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"{colour}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{label}×</text>",
                bottom + 16.0
            );
        }
        for (index, (name, low, median, high)) in self.lines.iter().enumerate() {
            let y = TOP + SPREAD_LINE * (index as f64 + 0.5);
            let colour = if *low >= super::LEVEL {
                COLOURS[0]
            } else {
                COLOURS[1]
            };
            out += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
                 <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"8\" stroke-linecap=\"round\" opacity=\"0.45\"/>\
                 <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
                SPREAD_LEFT - 12.0,
                y + 4.0,
                escape(name),
                across(*low),
                across(*high),
                across(*median),
                across(*high) + 12.0,
                y + 4.0,
                times(*low)
            );
        }
        out += &format!(
            "<text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">times better; the bar is lowest to highest, the dot the median, the number the lowest</text>",
            bottom + 34.0
        );
        out + "</svg>"
    }
}

/// A ratio with two digits that count.
fn times(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}×"),
        v if v >= 0.1 => format!("{v:.2}×"),
        v => format!("{v:.3}×"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_span_what_is_shown() {
        let log = Axis::of(Scale::Log, [0.05, 3.0, 0.0].into_iter());
        assert!((log.low - 0.01).abs() < 1e-9 && (log.high - 10.0).abs() < 1e-9);
        assert_eq!(log.place(0.0), None);
        assert!((log.place(0.1).unwrap() - 1.0 / 3.0).abs() < 1e-9);
        let labels: Vec<String> = log.marks().into_iter().map(|m| m.1).collect();
        assert_eq!(labels, ["0.01", "0.1", "1", "10"]);
        let linear = Axis::of(Scale::Linear, [5_000.0].into_iter());
        let labels: Vec<String> = linear.marks().into_iter().map(|m| m.1).collect();
        assert_eq!(labels, ["0", "2000", "4000"]);
        let percentiles = Axis::of(Scale::Percentile, [1.0, 5_000.0].into_iter());
        let labels: Vec<String> = percentiles.marks().into_iter().map(|m| m.1).collect();
        assert_eq!(labels, ["0", "p90", "p99", "p99.9", "p99.99"]);
    }

    #[test]
    fn a_spread_says_its_lowest() {
        let spread = Spread {
            title: "a < b".into(),
            lines: vec![
                ("p99".into(), 2.5, 3.0, 40.0),
                ("cpu".into(), 0.04, 0.05, 2.0),
            ],
        };
        let svg = spread.svg();
        assert!(svg.contains("2.50×") && svg.contains("0.040×") && svg.contains("a &lt; b"));
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn nothing_to_show_is_an_empty_chart() {
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            let axis = Axis::of(scale, [f64::NAN, f64::INFINITY].into_iter());
            assert!(axis.low < axis.high && axis.marks().len() < 22);
        }
    }
}
