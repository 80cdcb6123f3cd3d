//! What is measured on GPUs, in which order, and where everything lies. Worked out once, by the conductor:
//! rank processes of all systems are told positions and counts, and have no opinion of their own.

use serde::{Deserialize, Serialize};

use super::system::System;
use crate::args::{Form, Op};

/// Operations in a graph.
const NODES: usize = 20;
/// Operations that are launched one by one.
const EAGER_OPS: usize = 1000;
const EAGER_BYTES: usize = 8 << 10;
const MISALIGNED_BYTES: usize = 128 << 10;
const BANDWIDTH_BYTES: usize = 512 << 20;
const BANDWIDTH_RANKS: usize = 2;
/// Elements of a row of norms, and the bytes of one.
const NORM_COLUMNS: usize = 8192;
pub(super) const NORM_ROW: usize = NORM_COLUMNS * ELEMENT;
/// Rows of all ranks that are multiplied, and the other sides of what they are multiplied with.
const PRODUCT_ROWS: [usize; 3] = [1024, 4096, 8192];
const PRODUCT_SIDE: usize = 4096;
/// The same in a quick run.
const QUICK_ROWS: [usize; 1] = [1024];
/// What operations on cold memory are spread over, at least: several times the largest L2.
const COLD_SET: usize = 256 << 20;
/// Written after all of it, so that the cache holds this and nothing of the set.
const COLD_TAIL: usize = 64 << 20;
/// Bytes of an element: bf16.
pub(super) const ELEMENT: usize = 2;
/// Positions of buffers are multiples of so many elements.
const ALIGNMENT: usize = 128;
/// Threads in a block of the fill.
pub(super) const FILL_THREADS: usize = 512;
/// Most blocks of the fill. They are not many, so that it goes upwards through memory.
const FILL_BLOCKS: usize = 132;

/// What ranks do in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BenchedWork {
    /// Graphs of fills and all-reduces.
    AllReduce,
    /// Graphs of barriers.
    Barrier,
    /// All-reduces without a graph.
    Eager,
    /// Copies within the device, both memories being one's own.
    Copy,
    /// Graphs of fills and of all-reduces with a norm behind.
    Norm,
    /// Graphs of gathers and products.
    AllGatherMatmul,
    /// Graphs of products and reductions.
    MatmulReduceScatter,
}

/// What a norm is, besides its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Norm {
    /// Elements of a row.
    pub(super) columns: usize,
    /// Whether fp8 is written, with a scale for each row.
    pub(super) fp8: bool,
    pub(super) fused: bool,
}

impl BenchedWork {
    /// Whether matrices are multiplied.
    pub(super) fn multiplies(self) -> bool {
        matches!(self, Self::AllGatherMatmul | Self::MatmulReduceScatter)
    }
}

/// What rows are about: systems in one race have it in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) op: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) form: Option<Form>,
    pub(super) bytes: usize,
    /// Whether the memory is in no cache.
    pub(super) cold: bool,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.op)?;
        if let Some(form) = self.form {
            write!(f, " {form}")?;
        }
        if self.bytes > 0 {
            write!(f, " {}", crate::args::short(self.bytes))?;
        }
        f.write_str(if self.cold { " cold" } else { "" })
    }
}

/// What a rank prepares: the work, and where its memory lies, in elements from the start of the arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// The number by which it is called from now on.
    pub(super) slot: usize,
    pub(super) work: BenchedWork,
    pub(super) form: Form,
    /// Which operation of the system, or which algorithm.
    pub(super) variant: String,
    pub(super) grid: Option<u32>,
    pub(super) threads: Option<u32>,
    /// Operations that a time is divided by.
    pub(super) nodes: usize,
    pub(super) elements: usize,
    /// Where the input of the first operation begins.
    pub(super) offset: usize,
    /// From one operation's input to the next one's: 0 is always the same.
    pub(super) stride: usize,
    /// The same for the output.
    pub(super) out_stride: usize,
    /// Whether there is a fill before every operation, or one before all of them.
    pub(super) fill_each: bool,
    pub(super) fill_elements: usize,
    pub(super) fill_blocks: usize,
    /// Of norms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) norm: Option<Norm>,
    /// Of products: rows of all ranks, columns of a rank's left side, columns of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) product: Option<[usize; 3]>,
}

impl Task {
    fn new(work: BenchedWork, form: Form, variant: &str, bytes: usize) -> Self {
        let elements = bytes / ELEMENT;
        Self {
            slot: 0,
            work,
            form,
            variant: variant.to_owned(),
            grid: None,
            threads: None,
            nodes: NODES,
            elements,
            offset: 0,
            stride: 0,
            out_stride: 0,
            fill_each: true,
            fill_elements: elements,
            fill_blocks: fill_blocks(elements),
            norm: None,
            product: None,
        }
    }

    /// Of a product of `rows` rows of all of `ranks` ranks.
    fn product(work: BenchedWork, variant: &str, rows: usize, ranks: usize) -> Self {
        let side = PRODUCT_SIDE;
        // What is scattered is a sum over the ranks, each of which has a part of the terms.
        let (inner, elements) = match work {
            BenchedWork::AllGatherMatmul => (side, rows / ranks * side),
            _ => (side / ranks, rows * side),
        };
        let task = Self::new(work, Form::InPlace, variant, elements * ELEMENT);
        Self { product: Some([rows, inner, side]), ..task }
    }

    /// The same on memory that is in no cache.
    fn cold(mut self) -> Self {
        let set = (COLD_SET + COLD_TAIL).max(self.nodes * self.elements * ELEMENT + COLD_TAIL) / ELEMENT;
        let spread = (set - COLD_TAIL / ELEMENT) / self.nodes;
        self.stride = spread / ALIGNMENT * ALIGNMENT;
        self.out_stride = self.elements.next_multiple_of(ALIGNMENT);
        // The last buffers overlap when rounding took something off their distance.
        self.stride = self.stride.max(self.out_stride);
        self.fill_each = false;
        self.fill_elements = set.max(self.inputs());
        self.fill_blocks = fill_blocks(self.fill_elements);
        self
    }

    /// The same with inputs that begin `elements` elements further up.
    fn shifted(mut self, elements: usize) -> Self {
        self.offset = elements;
        self.fill_elements = self.fill_elements.max(self.inputs());
        self
    }

    /// Elements up to the end of the last input.
    fn inputs(&self) -> usize {
        self.offset + (self.nodes - 1) * self.stride + self.elements
    }

    /// Elements of input that it needs.
    pub(super) fn input_elements(&self) -> usize {
        self.inputs().max(self.fill_elements)
    }
}

fn fill_blocks(elements: usize) -> usize {
    elements.div_ceil(8 * FILL_THREADS).clamp(1, FILL_BLOCKS)
}

/// One of those who race.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contender {
    /// Whose processes do it.
    pub(super) system: System,
    /// What it is called in rows: a peer's name, or what ours is compared with.
    pub(super) name: String,
    /// Whether its time is compared with that of the others, or they with it.
    pub(super) ours: bool,
    pub(super) task: Task,
}

/// A case, and everybody who does it, by turns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Race {
    pub(super) case: Case,
    pub(super) contenders: Vec<Contender>,
}

impl Race {
    /// Gives everybody's task a number of its own.
    fn new(case: Case, mut contenders: Vec<Contender>) -> Self {
        contenders.iter_mut().enumerate().for_each(|(slot, contender)| contender.task.slot = slot);
        Self { case, contenders }
    }

    /// Bytes that all ranks together read and write in one operation, where somebody wants to know.
    pub(super) fn traffic(&self, ranks: usize) -> Option<usize> {
        (self.case.op == Op::Bandwidth.to_string()).then_some(2 * self.case.bytes * ranks)
    }
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) ops: Vec<Op>,
    pub(super) forms: Vec<Form>,
    pub(super) sizes: Vec<usize>,
    /// Bytes of norms: whole rows.
    pub(super) norms: Vec<usize>,
    pub(super) cold: bool,
    pub(super) algorithms: Vec<String>,
    /// `None` is the engine's own.
    pub(super) grids: Vec<Option<u32>>,
    pub(super) threads: Vec<Option<u32>>,
    pub(super) peers: Vec<System>,
    pub(super) is_quick: bool,
}

impl Wanted {
    /// All races with `ranks` ranks.
    pub(super) fn races(&self, ranks: usize) -> Vec<Race> {
        self.ops.iter().flat_map(|op| self.races_of(*op, ranks)).collect()
    }

    /// Bytes of input that a rank must have for all of `races`.
    pub(super) fn arena_bytes(races: &[Race]) -> usize {
        let tasks = races.iter().flat_map(|race| &race.contenders).map(|contender| &contender.task);
        let elements = tasks.map(Task::input_elements).max().unwrap_or(0).max(1 << 19);
        (elements * ELEMENT).next_multiple_of(2 << 20)
    }

    /// What rows about the start of the systems are made of; nobody runs it.
    pub(super) fn startup(&self) -> Option<Race> {
        self.ops.contains(&Op::Startup).then(|| {
            let task = || Task::new(BenchedWork::Barrier, Form::InPlace, "startup", 0);
            let peers = self.peers.iter().map(|peer| theirs(*peer, task()));
            let case = Case { op: Op::Startup.to_string(), form: None, bytes: 0, cold: false };
            Race::new(case, [ours(task())].into_iter().chain(peers).collect())
        })
    }

    fn races_of(&self, op: Op, ranks: usize) -> Vec<Race> {
        let case = |form, bytes, cold| Case { op: op.to_string(), form, bytes, cold };
        let all = |form, bytes| {
            [false, true][..1 + usize::from(self.cold)].iter().map(move |cold| (form, bytes, *cold))
        };
        match op {
            Op::AllReduce => {
                let cases = self.forms.iter().flat_map(|form| self.sizes.iter().map(|bytes| (*form, *bytes)));
                cases
                    .flat_map(|(form, bytes)| all(form, bytes))
                    .map(|(form, bytes, cold)| {
                        let task = |variant: &str| {
                            let task = Task::new(BenchedWork::AllReduce, form, variant, bytes);
                            if cold { task.cold() } else { task }
                        };
                        Race::new(case(Some(form), bytes, cold), self.everybody(form, &task))
                    })
                    .collect()
            }
            Op::Barrier => {
                let task = |variant: &str| Task::new(BenchedWork::Barrier, Form::InPlace, variant, 0);
                let mut contenders = vec![ours(task("barrier"))];
                contenders.extend(
                    self.peers
                        .iter()
                        .filter(|peer| matches!(peer, System::Torch | System::Ours(_)))
                        .map(|peer| theirs(*peer, task("barrier"))),
                );
                vec![Race::new(case(None, 0, false), contenders)]
            }
            Op::Eager => {
                let of = |form: &Form| {
                    let task = |variant: &str| Task {
                        nodes: EAGER_OPS,
                        ..Task::new(BenchedWork::Eager, *form, variant, EAGER_BYTES)
                    };
                    Race::new(case(Some(*form), EAGER_BYTES, false), self.everybody(*form, &task))
                };
                self.forms.iter().map(of).collect()
            }
            Op::AllReduceRmsNorm => {
                // It leaves the memory as it is.
                let forms = self.forms.iter().filter(|form| **form != Form::InPlace);
                let all = forms.flat_map(|form| self.norms.iter().map(|bytes| (*form, *bytes)));
                all.flat_map(|(form, bytes)| [false, true].map(|fp8| self.norm(form, bytes, fp8))).collect()
            }
            Op::Misaligned => {
                let of = |form: &Form| {
                    let task = Task::new(BenchedWork::AllReduce, *form, "auto", MISALIGNED_BYTES);
                    let aligned = Contender { name: "aligned".to_owned(), ours: false, ..ours(task.clone()) };
                    let contenders = vec![ours(task.shifted(1)), aligned];
                    Race::new(case(Some(*form), MISALIGNED_BYTES, false), contenders)
                };
                self.forms.iter().map(of).collect()
            }
            Op::AllGatherMatmul => self.products(op, BenchedWork::AllGatherMatmul, "all_gather", ranks),
            Op::MatmulReduceScatter => {
                self.products(op, BenchedWork::MatmulReduceScatter, "reduce_scatter", ranks)
            }
            Op::Bandwidth if ranks == BANDWIDTH_RANKS => {
                let reduce = Task::new(BenchedWork::AllReduce, Form::InPlace, "two_shot", BANDWIDTH_BYTES);
                let copy = Task::new(BenchedWork::Copy, Form::Private, "copy", BANDWIDTH_BYTES);
                let copies = Contender { name: "copies".to_owned(), ours: false, ..ours(copy) };
                let case = case(Some(Form::InPlace), BANDWIDTH_BYTES, false);
                vec![Race::new(case, self.shapes(reduce).map(ours).chain([copies]).collect())]
            }
            // Startup is told by every system that starts, and the rest are not for GPUs.
            _ => Vec::new(),
        }
    }

    /// A norm by every algorithm and launch shape, beside the same in two steps, and the all-reduce alone.
    fn norm(&self, form: Form, bytes: usize, fp8: bool) -> Race {
        let task = |variant: &str, fused| Task {
            norm: Some(Norm { columns: NORM_COLUMNS, fp8, fused }),
            ..Task::new(BenchedWork::Norm, form, variant, bytes)
        };
        let beside = |name: &str, task| Contender { name: name.to_owned(), ours: false, ..ours(task) };
        let fused = self.algorithms.iter().flat_map(|name| self.shapes(task(name, true))).map(ours);
        let others = [
            beside("unfused", task("auto", false)),
            beside("all_reduce alone", Task::new(BenchedWork::AllReduce, form, "auto", bytes)),
        ];
        let op = format!("{}{}", Op::AllReduceRmsNorm, if fp8 { " fp8" } else { "" });
        Race::new(Case { op, form: Some(form), bytes, cold: false }, fused.chain(others).collect())
    }

    /// Products of every number of rows, in every way, beside the product and the collective `other` alone.
    fn products(&self, op: Op, work: BenchedWork, other: &str, ranks: usize) -> Vec<Race> {
        let rows: &[usize] = if self.is_quick { &QUICK_ROWS } else { &PRODUCT_ROWS };
        let divides = |rows: &&usize| rows.is_multiple_of(ranks) && PRODUCT_SIDE.is_multiple_of(ranks);
        let of = |rows: &usize| {
            let task = |variant: &str| Task::product(work, variant, *rows, ranks);
            let named = |name: String, variant| Contender { name, ..ours(task(variant)) };
            // The product is what the others are compared with.
            let product = Contender { ours: false, ..named("product alone".to_owned(), "product") };
            let contenders = vec![
                ours(task("auto")),
                named("symmem fused".to_owned(), "fused"),
                named("symmem unfused".to_owned(), "unfused"),
                product,
                named(format!("{other} alone"), other),
            ];
            let bytes = rows * PRODUCT_SIDE * ELEMENT;
            Race::new(Case { op: op.to_string(), form: None, bytes, cold: false }, contenders)
        };
        rows.iter().filter(divides).map(of).collect()
    }

    /// Ours with every algorithm and launch shape, and each operation of the peers for that form.
    fn everybody(&self, form: Form, task: &dyn Fn(&str) -> Task) -> Vec<Contender> {
        let algorithms = self.algorithms.iter().flat_map(|name| self.shapes(task(name)));
        let peers = self
            .peers
            .iter()
            .flat_map(|peer| peer.variants(form).iter().map(|variant| theirs(*peer, task(variant))));
        algorithms.map(ours).chain(peers).collect()
    }

    /// `task` with every launch shape.
    fn shapes(&self, task: Task) -> impl Iterator<Item = Task> {
        let shapes = self.grids.iter().flat_map(|grid| self.threads.iter().map(|threads| (*grid, *threads)));
        shapes.map(move |(grid, threads)| Task { grid, threads, ..task.clone() })
    }
}

fn ours(task: Task) -> Contender {
    Contender { system: System::Symmem, name: System::Symmem.name().to_owned(), ours: true, task }
}

fn theirs(system: System, task: Task) -> Contender {
    Contender { system, name: system.name().to_owned(), ours: false, task }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(ops: &[Op], peers: &[System]) -> Wanted {
        Wanted {
            ops: ops.to_vec(),
            forms: vec![Form::InPlace, Form::Out, Form::Private],
            sizes: vec![2 << 10, 32 << 20],
            norms: vec![NORM_ROW, 16 * NORM_ROW],
            cold: true,
            algorithms: vec!["auto".to_owned()],
            grids: vec![None],
            threads: vec![None],
            peers: peers.to_vec(),
            is_quick: false,
        }
    }

    fn names(race: &Race) -> Vec<String> {
        race.contenders.iter().map(|one| format!("{} {}", one.name, one.task.variant)).collect()
    }

    #[test]
    fn every_form_and_size_is_raced_warm_and_cold() {
        let races = wanted(&[Op::AllReduce], &[System::Torch]).races(4);
        assert_eq!(races.len(), 3 * 2 * 2);
        let cases: Vec<_> = races.iter().map(|race| race.case.to_string()).collect();
        assert_eq!(cases[..2], ["all_reduce in_place 2K", "all_reduce in_place 2K cold"]);
        assert_eq!(names(&races[0]), ["symmem auto", "torch two_shot_all_reduce_"]);
        let out = ["symmem auto", "torch one_shot_all_reduce_out", "torch two_shot_all_reduce_out"];
        assert_eq!(names(&races[4]), out);
        assert_eq!(names(&races[8]), ["symmem auto", "torch one_shot_all_reduce_copy_out"]);
        for race in &races {
            let slots: Vec<_> = race.contenders.iter().map(|one| one.task.slot).collect();
            assert_eq!(slots, (0..slots.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_systems_have_the_same_memory_in_a_race() {
        for race in wanted(&[Op::AllReduce], &[System::Torch, System::Nccl]).races(2) {
            let place = |task: &Task| {
                (
                    task.elements,
                    task.offset,
                    task.stride,
                    task.out_stride,
                    task.fill_elements,
                    task.fill_blocks,
                )
            };
            let first = place(&race.contenders[0].task);
            assert!(race.contenders.iter().all(|one| place(&one.task) == first));
        }
    }

    #[test]
    fn warm_memory_is_one_buffer_and_filled_before_every_operation() {
        let task = Task::new(BenchedWork::AllReduce, Form::Out, "auto", 2 << 10);
        assert_eq!((task.stride, task.out_stride, task.fill_each), (0, 0, true));
        assert_eq!((task.elements, task.fill_elements, task.fill_blocks), (1024, 1024, 1));
        assert_eq!(Task::new(BenchedWork::AllReduce, Form::Out, "auto", 32 << 20).fill_blocks, FILL_BLOCKS);
    }

    #[test]
    fn cold_memory_is_a_large_set_whose_tail_is_written_last() {
        for bytes in [2 << 10, 8 << 20, 32 << 20, 33_333_334] {
            let task = Task::new(BenchedWork::AllReduce, Form::Out, "auto", bytes).cold();
            let set = task.fill_elements * ELEMENT;
            assert!(set >= COLD_SET + COLD_TAIL && set >= NODES * bytes + COLD_TAIL, "{bytes}");
            assert!(task.stride >= task.elements && task.stride.is_multiple_of(ALIGNMENT), "{bytes}");
            // The tail is not part of any buffer, but for what rounding takes of it.
            let end = task.inputs() * ELEMENT;
            assert!(end <= set - COLD_TAIL + NODES * ALIGNMENT * ELEMENT, "{bytes}");
            assert!(!task.fill_each);
        }
    }

    #[test]
    fn a_misaligned_race_is_between_two_of_ours() {
        let races = wanted(&[Op::Misaligned], &[System::Torch]).races(2);
        assert_eq!(races.len(), 3);
        let [shifted, aligned] = &races[0].contenders[..] else { panic!("{races:?}") };
        assert_eq!(
            (shifted.ours, shifted.task.offset, aligned.ours, aligned.task.offset),
            (true, 1, false, 0)
        );
        assert_eq!(shifted.task.fill_elements, shifted.task.elements + 1);
    }

    #[test]
    fn norms_are_raced_beside_two_steps_and_the_all_reduce_alone() {
        let mut wanted = wanted(&[Op::AllReduceRmsNorm], &[System::Torch]);
        wanted.algorithms = vec!["auto".to_owned(), "two_shot".to_owned()];
        let races = wanted.races(2);
        let cases: Vec<_> = races.iter().map(|race| race.case.to_string()).collect();
        let first = [
            "all_reduce_rms_norm out 16K",
            "all_reduce_rms_norm fp8 out 16K",
            "all_reduce_rms_norm out 256K",
        ];
        assert_eq!((cases.len(), &cases[..3]), (8, &first.map(str::to_owned)[..]));
        let expected = ["symmem auto", "symmem two_shot", "unfused auto", "all_reduce alone auto"];
        for race in &races {
            assert_eq!(names(race), expected);
            let norms: Vec<_> = race.contenders.iter().map(|one| one.task.norm).collect();
            let norm = |fused| Some(Norm { columns: 8192, fp8: race.case.op.ends_with("fp8"), fused });
            assert_eq!(norms, [norm(true), norm(true), norm(false), None]);
            assert!(race.contenders.iter().all(|one| one.task.elements * ELEMENT == race.case.bytes));
            assert!(race.contenders.iter().all(|one| one.task.fill_each && one.task.stride == 0));
        }
    }

    #[test]
    fn products_are_raced_in_every_way_beside_their_parts() {
        let wanted = wanted(&[Op::AllGatherMatmul, Op::MatmulReduceScatter], &[System::Torch]);
        let races = wanted.races(4);
        assert_eq!(races.len(), 2 * PRODUCT_ROWS.len());
        let ways = [
            "symmem auto",
            "symmem fused fused",
            "symmem unfused unfused",
            "product alone product",
            "all_gather alone all_gather",
        ];
        assert_eq!(names(&races[0]), ways);
        let shapes = [&races[0], &races[5]].map(|race| {
            let task = &race.contenders[0].task;
            (race.case.to_string(), task.product, task.elements, race.contenders[4].task.variant.clone())
        });
        let (gather, scatter) = ("all_gather_matmul 8M".to_owned(), "matmul_reduce_scatter 64M".to_owned());
        assert_eq!(shapes[0], (gather, Some([1024, 4096, 4096]), 256 * 4096, "all_gather".to_owned()));
        assert_eq!(shapes[1], (scatter, Some([8192, 1024, 4096]), 8192 * 4096, "reduce_scatter".to_owned()));
        // Three ranks cannot share a product evenly.
        assert!(wanted.races(3).is_empty());
        assert_eq!(Wanted { is_quick: true, ..wanted }.races(2).len(), 2);
    }

    #[test]
    fn bandwidth_is_for_two_ranks() {
        let wanted = wanted(&[Op::Bandwidth, Op::Startup], &[]);
        assert!(wanted.races(4).is_empty());
        let races = wanted.races(2);
        assert_eq!(names(&races[0]), ["symmem two_shot", "copies copy"]);
        assert_eq!(races[0].traffic(2), Some(4 * BANDWIDTH_BYTES));
        assert_eq!(Wanted::arena_bytes(&races), BANDWIDTH_BYTES);
    }

    #[test]
    fn launch_shapes_multiply_and_are_ours_alone() {
        let mut wanted = wanted(&[Op::AllReduce], &[System::Torch]);
        wanted.algorithms = vec!["one_shot".to_owned(), "two_shot".to_owned()];
        wanted.grids = vec![Some(8), Some(16)];
        wanted.threads = vec![Some(256), Some(512)];
        let race = wanted.races(2).remove(0);
        assert_eq!(race.contenders.iter().filter(|one| one.ours).count(), 8);
        assert!(race.contenders.iter().filter(|one| !one.ours).all(|one| one.task.grid.is_none()));
    }
}
