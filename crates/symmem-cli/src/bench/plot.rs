//! Latency and bus bandwidth of collectives over their size, as SVG: one row of panels for each collective,
//! type and number of ranks, one line for each system.

use std::fmt::Write;

use super::html::escape;
use super::report::Row;
use super::sheet::grouped;
use super::table::name;
use crate::args::short;
use crate::units;

const MARGIN: f64 = 80.0;
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
/// From one panel to the next.
const COLUMN: f64 = WIDTH + 100.0;
const LINE: f64 = HEIGHT + 120.0;
const LEGEND: f64 = 130.0;
/// Colours that people with any eyes can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"];

const DASH: &str = " stroke-dasharray=\"5 4\"";
/// Colours of everything but lines; pictures are dark where the screen around them is.
const STYLE: &str = "<style>\n\
    @media screen and (prefers-color-scheme: dark) {\n\
    .paper, .dot { fill: #15181c } .grid { stroke: #363c44 } .frame { stroke: #9aa4af }\n\
    .word { fill: #e6e9ed } .limit { stroke: #e6e9ed }\n\
    }\n</style>\n";

/// The picture of all collectives among `rows`, measured on `machine`, as a file.
pub(super) fn draw(rows: &[Row], machine: &str) -> String {
    let xml = " xmlns=\"http://www.w3.org/2000/svg\"";
    picture(xml, &figures(rows), &systems(rows), &format!(". {machine}"))
}

/// A picture of each collective, as parts of an HTML file.
pub(super) fn each(rows: &[Row]) -> Vec<String> {
    let systems = systems(rows);
    figures(rows).chunks(1).map(|figure| picture("", figure, &systems, "")).collect()
}

fn picture(xml: &str, figures: &[Figure<'_>], systems: &[String], machine: &str) -> String {
    let (width, height) = (MARGIN + 2.0 * COLUMN + LEGEND, LINE * figures.len() as f64);
    let mut svg = format!(
        "<svg{xml} width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         {STYLE}<rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (at, figure) in figures.iter().enumerate() {
        figure.draw(&mut svg, systems, machine, 60.0 + LINE * at as f64);
    }
    svg + "</svg>\n"
}

/// What one row of panels shows: the rows of one collective.
struct Figure<'a> {
    rows: Vec<&'a Row>,
}

/// The collectives.
fn figures(rows: &[Row]) -> Vec<Figure<'_>> {
    let collectives = rows.iter().filter(|row| row.is_collective());
    let key = |row: &Row| (row.op.clone(), row.dtype.clone(), row.ranks, row.pinned, row.load);
    grouped(collectives, key).into_iter().map(|rows| Figure { rows }).collect()
}

/// Every system, in the order of its first row: its colour is the same in all panels.
fn systems(rows: &[Row]) -> Vec<String> {
    let mut systems: Vec<String> = Vec::new();
    for name in rows.iter().map(name) {
        if !systems.contains(&name) {
            systems.push(name);
        }
    }
    systems
}

impl Figure<'_> {
    fn draw(&self, svg: &mut String, systems: &[String], machine: &str, top: f64) {
        let Row { op, dtype, ranks, load, .. } = self.rows[0];
        let load = if *load > 0 { format!(", beside {load} busy loops") } else { String::new() };
        let title = format!("{op} of {dtype}, {ranks} ranks{load}{machine}");
        text(svg, (MARGIN, top - 30.0), "font-size=\"14\" font-weight=\"bold\"", &title);
        let has = |system: &str| self.rows.iter().any(|row| name(row) == system);
        let lines: Vec<(&str, String)> = (systems.iter().enumerate())
            .filter(|(_, system)| has(system))
            .map(|(number, system)| (system.as_str(), style(number, system)))
            .collect();
        let us = |value: f64| units::time(value);
        let gb = |value: f64| units::rate(value);
        let latency = Panel::new(&self.rows, "median latency", us, |row| row.us.p50);
        let bandwidth = Panel::new(&self.rows, "bus bandwidth", gb, |row| row.bandwidth().unwrap_or(0.0));
        latency.draw(svg, &lines, (MARGIN, top));
        bandwidth.draw(svg, &lines, (MARGIN + COLUMN, top));
        for (at, (system, style)) in lines.iter().enumerate() {
            let (x, y) = (MARGIN + COLUMN + WIDTH + 20.0, top + 12.0 + 18.0 * at as f64);
            line(svg, (x, y - 4.0), (x + 24.0, y - 4.0), style);
            text(svg, (x + 30.0, y), "", system);
        }
    }
}

/// The points of all systems in one diagram, in logarithms.
struct Panel {
    points: Vec<(String, f64, f64)>,
    name: &'static str,
    /// A value in its unit.
    unit: fn(f64) -> String,
    x: Axis,
    y: Axis,
}

impl Panel {
    fn new(rows: &[&Row], title: &'static str, unit: fn(f64) -> String, value: impl Fn(&Row) -> f64) -> Self {
        let point = |row: &&Row| (name(row), (row.bytes as f64).log2(), value(row).log10());
        let finite = |point: &(String, f64, f64)| point.1.is_finite() && point.2.is_finite();
        let points: Vec<_> = rows.iter().map(point).filter(finite).collect();
        let x = Axis::around(points.iter().map(|point| point.1));
        let y = Axis::around(points.iter().map(|point| point.2));
        Self { points, name: title, unit, x, y }
    }

    fn draw(&self, svg: &mut String, lines: &[(&str, String)], (left, top): (f64, f64)) {
        let bottom = top + HEIGHT;
        let at = |x: f64, y: f64| (left + WIDTH * self.x.part(x), bottom - HEIGHT * self.y.part(y));
        const GRID: &str = "class=\"grid\" stroke=\"#dddddd\"";
        let step = ((self.x.end - self.x.start) / 8.0).ceil().max(1.0) as usize;
        for exponent in (self.x.start as i32..=self.x.end as i32).step_by(step) {
            let (x, _) = at(exponent.into(), 0.0);
            line(svg, (x, top), (x, bottom), GRID);
            text(svg, (x, bottom + 16.0), "text-anchor=\"middle\"", &short(1 << exponent.clamp(0, 62)));
        }
        for exponent in self.y.start as i32..=self.y.end as i32 {
            let (_, y) = at(0.0, exponent.into());
            line(svg, (left, y), (left + WIDTH, y), GRID);
            let label = plain((self.unit)(10f64.powi(exponent)));
            text(svg, (left - 6.0, y + 4.0), "text-anchor=\"end\"", &label);
        }
        let frame = "class=\"frame\" fill=\"none\" stroke=\"#444444\"";
        let _ =
            writeln!(svg, "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" {frame}/>");
        text(svg, (left, top - 8.0), "", self.name);
        text(svg, (left + WIDTH / 2.0, bottom + 34.0), "text-anchor=\"middle\"", "bytes (1K = 1024)");
        for (system, style) in lines {
            let of_system = self.points.iter().filter(|point| point.0 == *system);
            let words = |x: f64, y: f64| {
                format!(
                    "{system}, {}: {}",
                    units::size(x.exp2().round() as usize),
                    (self.unit)(10f64.powf(y))
                )
            };
            let points: Vec<_> =
                of_system.map(|point| (at(point.1, point.2), words(point.1, point.2))).collect();
            polyline(svg, &points, style);
        }
    }
}

/// From one whole exponent to another.
struct Axis {
    start: f64,
    end: f64,
}

impl Axis {
    fn around(values: impl Iterator<Item = f64> + Clone) -> Self {
        let start = values.clone().fold(f64::INFINITY, f64::min).floor();
        let end = values.fold(f64::NEG_INFINITY, f64::max).ceil();
        match start.is_finite() && end.is_finite() {
            true => Self { start, end: end.max(start + 1.0) },
            false => Self { start: 0.0, end: 1.0 },
        }
    }

    fn part(&self, value: f64) -> f64 {
        (value - self.start) / (self.end - self.start)
    }
}

/// The look of a system's line; the limit's is broken.
fn style(number: usize, system: &str) -> String {
    let (class, dash) = if system == "limit" { ("limit", DASH) } else { ("system", "") };
    let colour = if system == "limit" { "#000000" } else { COLOURS[number % COLOURS.len()] };
    format!("class=\"{class}\" stroke=\"{colour}\" stroke-width=\"1.8\"{dash}")
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
}

/// A line through `points`, each with what it says when it is pointed at.
fn polyline(svg: &mut String, points: &[((f64, f64), String)], style: &str) {
    let text: Vec<String> = points.iter().map(|((x, y), _)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" {style}/>", text.join(" "));
    for ((x, y), words) in points {
        let words = escape(words);
        let style = style.replace("class=\"", "class=\"dot ").replace(DASH, "");
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"white\" {style}><title>{words}</title></circle>"
        );
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), style: &str, words: &str) {
    let _ = writeln!(svg, "<text class=\"word\" x=\"{x:.1}\" y=\"{y:.1}\" {style}>{}</text>", escape(words));
}

/// "1 us" for "1.00 us".
fn plain(label: String) -> String {
    label.replace(".00", "").replace(".0", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, op: &str, bytes: usize) -> Row {
        let mut row = Row { system: system.to_owned(), op: op.to_owned(), bytes, ranks: 2, ..Row::default() };
        row.us.p50 = bytes as f64 / 100.0;
        Row { dtype: "f32".to_owned(), bus_gb_per_s: Some(10.0), ..row }
    }

    #[test]
    fn each_collective_has_two_panels_and_each_system_a_line_in_both() {
        let mut rows: Vec<Row> = [8, 1024, 1 << 20].map(|bytes| row("symmem", "all_reduce", bytes)).into();
        rows.extend([row("a <peer> & \"more\"", "all_reduce", 64), row("symmem", "broadcast", 64)]);
        rows.push(Row { bus_gb_per_s: None, ..row("symmem", "copy", 64) });
        let svg = draw(&rows, "a machine");
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let all = |name: &str| document.descendants().filter(|node| node.has_tag_name(name)).count();
        assert_eq!(document.root_element().tag_name().name(), "svg");
        // Two systems of the one and one of the other, twice.
        assert_eq!(all("polyline"), 6);
        let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(texts.contains(&"all_reduce of f32, 2 ranks. a machine"));
        assert!(texts.contains(&"a <peer> & \"more\""));
        assert!(!svg.contains("copy") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn numbers_that_have_no_logarithm_leave_no_trace() {
        let mut wrong = row("symmem", "all_reduce", 0);
        wrong.us.p50 = 0.0;
        let svg = draw(&[wrong], "a machine");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(roxmltree::Document::parse(&draw(&[], "")).is_ok());
    }
}
