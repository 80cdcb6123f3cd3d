//! Memory beyond 32 bits, and how much memory a large collective needs.
//!
//! They take gigabytes, and are ignored in a build without optimisations: `cargo xtask test --only large`
//! runs them.

#[path = "trial/mod.rs"]
mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use symmem::{Group, ProcessSpawner, ReduceOp, Result};

use trial::Pattern;

const GIB: u64 = 1 << 30;
const RANKS: usize = 2;

/// A number of a file in /proc that has lines like `name:   123 kB`, in bytes.
fn read(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).expect("a file of the kernel");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or_else(|| panic!("{file} has no {name}")) * 1024
}

/// Whether there is so much memory to be had; says so if not.
fn is_available(bytes: u64) -> bool {
    let available = read("/proc/meminfo", "MemAvailable");
    if available < bytes {
        println!("skipped: {} GiB of memory are available, {} are needed", available / GIB, bytes / GIB);
    }
    available >= bytes
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes 9 GiB of memory and a build with optimisations")]
fn more_than_2_to_the_32_bytes_come_out_right() {
    // Odd, and in no step with the data.
    const LEN: usize = (1 << 32) + 4097;
    if !is_available(16 * GIB) {
        return;
    }
    let inputs: Vec<Pattern<u8>> = (0..RANKS).map(|rank| Pattern::new(1, rank, LEN)).collect();
    let sum = Pattern::reduced(ReduceOp::Sum, &inputs);
    symmem::spawn(RANKS, |group| {
        let input = &inputs[group.rank()];
        let mut memory = group.alloc::<u8>(LEN)?.rendezvous(&group)?;
        input.write(0, &mut memory.local_mut()?);
        memory.all_reduce(ReduceOp::Sum)?;
        sum.check(0, &memory.local()?).expect("all_reduce");
        input.write(0, &mut memory.local_mut()?);
        memory.broadcast(1)?;
        inputs[1].check(0, &memory.local()?).expect("broadcast");
        memory.close()?;
        let mut private = vec![0; LEN];
        input.write(0, &mut private);
        group.all_reduce(ReduceOp::Sum, &mut private)?;
        sum.check(0, &private).expect("all_reduce of private memory");
        Ok(())
    })
    .unwrap();
}

/// What a process needs.
#[derive(Debug, Serialize, Deserialize)]
struct Footprint {
    /// The bytes of each of the library's segments that it maps or holds, by inode: peers name the same ones.
    segments: BTreeMap<u64, u64>,
    /// Most memory of its own at any moment.
    anonymous: u64,
}

impl Footprint {
    /// Runs `work` twice and looks at what the process needs meanwhile, `excluded` bytes of it being the
    /// user's. What the first run keeps is there when the second one starts; and all shared pages are mapped
    /// by then, so that nothing grows but memory of its own.
    fn of(excluded: u64, mut work: impl FnMut() -> Result<()>) -> Result<Self> {
        work()?;
        let status = |name| read("/proc/self/status", name);
        let (resident, anonymous) = (status("VmRSS"), status("RssAnon"));
        // The peak counts from here on.
        fs::write("/proc/self/clear_refs", "5").expect("resetting the peak");
        work()?;
        let growth = status("VmHWM").saturating_sub(resident);
        Ok(Self { segments: segments(), anonymous: (anonymous + growth).saturating_sub(excluded) })
    }
}

/// The library's segments in this process: what is mapped, and what is open.
fn segments() -> BTreeMap<u64, u64> {
    let mut segments = BTreeMap::new();
    let maps = fs::read_to_string("/proc/self/maps").expect("the maps");
    for line in maps.lines().filter(|line| line.contains("/memfd:symmem")) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let hex = |text| u64::from_str_radix(text, 16).expect("a number");
        let (start, end) = fields[0].split_once('-').expect("a range");
        let bytes = hex(end) - hex(start) + hex(fields[2]);
        let known = segments.entry(fields[4].parse().expect("an inode")).or_insert(0);
        *known = bytes.max(*known);
    }
    for entry in fs::read_dir("/proc/self/fd").expect("the open files").flatten() {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        let is_ours = link.to_string_lossy().starts_with("/memfd:symmem");
        if let (true, Ok(file)) = (is_ours, fs::metadata(entry.path())) {
            let known = segments.entry(file.ino()).or_insert(0);
            *known = file.len().max(*known);
        }
    }
    segments
}

/// Checks that all ranks together need what they reduce and 64 MiB each at most. `private`: what they reduce
/// is their own.
fn check(what: &str, footprints: &[Footprint], private: bool) {
    let mut segments = BTreeMap::new();
    footprints.iter().for_each(|footprint| segments.extend(footprint.segments.clone()));
    let shared: u64 = segments.values().sum();
    let anonymous: u64 = footprints.iter().map(|footprint| footprint.anonymous).sum();
    let mib = |bytes: u64| bytes >> 20;
    println!("{what}: {} MiB in {} segments, {} MiB anonymous", mib(shared), segments.len(), mib(anonymous));
    let data = RANKS as u64 * GIB;
    assert!(private || shared >= data, "the segments must have been found");
    assert!(shared + anonymous <= data + RANKS as u64 * (64 << 20), "{what}: {footprints:?}");
}

const ELEMENTS: usize = GIB as usize / size_of::<f32>();

fn in_place(group: &Group) -> Result<Footprint> {
    let mut memory = group.alloc::<f32>(ELEMENTS)?.rendezvous(group)?;
    memory.fill(group.rank() as f32)?;
    let footprint = Footprint::of(0, || memory.all_reduce(ReduceOp::Max))?;
    assert!(memory.local()?.iter().all(|value| *value == 1.0));
    memory.close()?;
    Ok(footprint)
}

fn of_private_input(group: &Group) -> Result<Footprint> {
    let mut data = vec![0f32; ELEMENTS];
    data.fill(group.rank() as f32);
    let footprint = Footprint::of(GIB, || group.all_reduce(ReduceOp::Max, &mut data))?;
    assert!(data.iter().all(|value| *value == 1.0));
    Ok(footprint)
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes 2 GiB of memory and a build with optimisations")]
fn an_all_reduce_of_a_gib_needs_little_more_than_its_data() {
    if !is_available(4 * GIB) {
        return;
    }
    const NAME: &str = "an_all_reduce_of_a_gib_needs_little_more_than_its_data";
    let both = |group: Group| Ok((in_place(&group)?, of_private_input(&group)?));
    let (in_place, private): (Vec<_>, Vec<_>) =
        ProcessSpawner::new(NAME, RANKS).run(both).unwrap().into_iter().unzip();
    check("in place", &in_place, false);
    check("private input", &private, true);
}
