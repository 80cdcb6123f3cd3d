//! `cargo xtask layers`: which room of the library imports from which, compared with one table,
//! `xtask/layers.txt`.
//!
//! The table has rows; a room imports from the rows below its own. What was against it when it was made is
//! listed there with the number of imports, and that list only shrinks. Nothing goes through the crate's root
//! but `Error` and `Result`, and nothing leaves its room by `super::`; for these there is no list.
//! `cargo xtask lint` runs the same comparison, and compares the block of ARCHITECTURE.md that shows the
//! table.

mod graph;
mod imports;
mod judge;
mod page;
#[cfg(test)]
mod planted;
mod rooms;
mod table;
mod ways;

use std::fs;

use anyhow::{Context, Result, bail};

use crate::plan::{Job, Outcome};
use crate::source::{self, Sources};
use crate::workspace::Workspace;
use graph::Graph;
use table::LayerTable;

const SOURCES: &str = "crates/symmem/src";
const TABLE: &str = "xtask/layers.txt";
const PAGE: &str = "ARCHITECTURE.md";
const BLOCK: &str = "layers";

/// What to show, or to write.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Take out of the list what is gone, and write the block of ARCHITECTURE.md.
    #[arg(long)]
    write: bool,
    /// Add to the list what is new: for rooms that were renamed, since the list only shrinks otherwise.
    #[arg(long, requires = "write")]
    with_new: bool,
    /// Show every import along these edges: `group`, `group->memory` (may be repeated).
    #[arg(long, value_name = "EDGE")]
    show: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    let graph = read(&workspace)?;
    if options.write {
        return write(&workspace, &graph, options.with_new);
    }
    let table = read_table(&workspace)?;
    show(&graph, &table, &options.show);
    summary(&graph);
    Ok(())
}

/// The step of `cargo xtask lint`.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let graph = read(job.workspace)?;
    let table = read_table(job.workspace)?;
    summary(&graph);
    match judge::against(&graph, &table).len() {
        0 => println!("nothing is imported against the table"),
        edges => println!("{edges} pairs of rooms are against the table"),
    }
    let wrong = judge::judge(&graph, &table);
    if !wrong.is_empty() {
        bail!("the rooms are not as {TABLE} has them:\n  {}", wrong.join("\n  "));
    }
    source::check_block(&job.workspace.path(PAGE), BLOCK, &page::render(&graph, &table))?;
    Ok(Outcome::Passed)
}

fn write(workspace: &Workspace, graph: &Graph, with_new: bool) -> Result<()> {
    let old = read_table(workspace)?;
    let new = judge::shrunk(graph, &old, with_new);
    let path = workspace.path(TABLE);
    fs::write(&path, new.render()).with_context(|| format!("{} cannot be written", path.display()))?;
    source::write_block(&workspace.path(PAGE), BLOCK, &page::render(graph, &new))?;
    let sum = |table: &LayerTable| table.ratchet.values().sum::<usize>();
    println!("{TABLE}: {} edges with {} imports", new.ratchet.len(), sum(&new));
    println!("before: {} edges with {} imports", old.ratchet.len(), sum(&old));
    let wrong = judge::judge(graph, &new);
    if !wrong.is_empty() {
        bail!("this is still wrong:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

fn read(workspace: &Workspace) -> Result<Graph> {
    Ok(Graph::of(&Sources::read(&workspace.path(SOURCES))?))
}

fn read_table(workspace: &Workspace) -> Result<LayerTable> {
    let text =
        fs::read_to_string(workspace.path(TABLE)).with_context(|| format!("{TABLE} cannot be read"))?;
    LayerTable::parse(&text).context(TABLE)
}

/// Prints the edges, then imports that go a wrong way; what must not be is marked.
fn show(graph: &Graph, table: &LayerTable, wanted: &[String]) {
    for (edge, uses) in &graph.edges {
        let (from, to) = edge;
        let mark = if table.allows(edge) { ' ' } else { '!' };
        println!("{mark} {from} -> {to} {}", uses.len());
        if wanted.iter().any(|name| name == from || *name == format!("{from}->{to}")) {
            uses.iter().for_each(|((file, path), line)| println!("      {file}:{line} {path}"));
        }
    }
    graph.detours.iter().for_each(|detour| println!("! {detour}"));
}

fn summary(graph: &Graph) {
    let mut shares: Vec<_> = graph.lines.keys().map(|room| (graph.share(room), room)).collect();
    shares.sort_by(|one, other| other.0.total_cmp(&one.0));
    let shares: Vec<_> = shares.iter().map(|(share, room)| format!("{room} {share:.1} %")).collect();
    println!("lines: {}", shares.join(", "));
    let cycle: Vec<_> = graph.largest_cycle().into_iter().collect();
    println!("largest cycle: {} rooms {}", cycle.len(), cycle.join(" "));
}
