//! The three MPIs, each from its wheel, each behind a shim built from `peers/mpi_shim.c`.
//!
//! The bench pins the ranks itself, so no launcher may bind them. Beyond that each runs with its own
//! defaults: the alternatives tried on two ranks (transports, copy methods, algorithms, tuning files) were no
//! faster. Intel MPI and Open MPI yield by themselves when ranks outnumber cores.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::manifest::{Entry, Kind, Variable};
use super::setup::Setup;

/// What differs from MPI to MPI.
struct Mpi {
    name: &'static str,
    package: &'static str,
    release: &'static str,
    title: &'static str,
    library: &'static str,
    /// The peer whose wheel has the headers.
    headers: &'static str,
    defines: &'static [&'static str],
    /// `{venv}` stands for its Python environment, here and in the variables.
    launch: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    env_oversubscribed: &'static [(&'static str, &'static str)],
}

const MPICH: Mpi = Mpi {
    name: "mpich",
    package: "mpich",
    release: "5.0.2",
    title: "MPICH",
    library: "libmpi.so.12",
    headers: "mpich",
    defines: &[],
    launch: &["{venv}/bin/mpiexec.hydra", "-bind-to", "none", "-n", "{ranks}"],
    env: &[],
    // It spins without yielding, which costs whole time slices when ranks share a core. Sleeping after a
    // fruitless poll, and collectives that poll that way too, measured two to five times faster there.
    env_oversubscribed: &[
        ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
        ("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "1"),
        ("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "mpir"),
        ("MPIR_CVAR_BARRIER_POSIX_INTRA_ALGORITHM", "mpir"),
    ],
};

const IMPI: Mpi = Mpi {
    name: "impi",
    package: "impi-rt",
    release: "2021.16.2",
    title: "Intel MPI",
    library: "libmpi.so.12",
    // The wheel has none of its own, and both keep to the one binary interface.
    headers: "mpich",
    // Its MPIX_C_BF16; the shim tries it before it claims it.
    defines: &["-DPEER_BF16_TYPE=0x4c000247"],
    launch: &["{venv}/bin/mpiexec.hydra", "-n", "{ranks}"],
    env: &[("I_MPI_ROOT", "{venv}"), ("I_MPI_FABRICS", "shm"), ("I_MPI_PIN", "0")],
    env_oversubscribed: &[],
};

const OPENMPI: Mpi = Mpi {
    name: "openmpi",
    package: "openmpi",
    release: "5.0.11",
    title: "Open MPI",
    library: "libmpi.so.40",
    headers: "openmpi",
    defines: &[],
    launch: &["{venv}/bin/mpiexec", "--bind-to", "none", "--oversubscribe", "-n", "{ranks}"],
    // It refuses to run as root, as one does in a container, unless told twice.
    env: &[
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ],
    env_oversubscribed: &[],
};

pub(super) fn impi(setup: &Setup) -> Result<Entry> {
    install(setup, &MPICH)?;
    set_up(setup, &IMPI)
}

pub(super) fn mpich(setup: &Setup) -> Result<Entry> {
    set_up(setup, &MPICH)
}

pub(super) fn openmpi(setup: &Setup) -> Result<Entry> {
    set_up(setup, &OPENMPI)
}

fn set_up(setup: &Setup, mpi: &Mpi) -> Result<Entry> {
    install(setup, mpi)?;
    setup.say("building the shim");
    let entry = mpi.entry(&venv(setup, mpi.name), build(setup, mpi)?);
    setup.say("verifying every operation on 2 ranks");
    check(setup, mpi, &entry)?;
    Ok(entry)
}

/// The Python environment with the wheel of an MPI.
fn venv(setup: &Setup, name: &str) -> PathBuf {
    setup.path(&format!("{name}/venv"))
}

fn install(setup: &Setup, mpi: &Mpi) -> Result<()> {
    let venv = venv(setup, mpi.name);
    let package = format!("{}=={}", mpi.package, mpi.release);
    setup.once(&venv, &package, || {
        setup.say(&format!("installing {package}"));
        setup.venv(&venv)?;
        setup.pip(&venv, [package.as_str()]).with_context(|| format!("{package} cannot be had"))
    })
}

impl Mpi {
    fn entry(&self, venv: &Path, shim: PathBuf) -> Entry {
        let venv = venv.display().to_string();
        let filled = |text: &str| text.replace("{venv}", &venv);
        let variables = |list: &[(&'static str, &str)]| -> Vec<Variable> {
            list.iter().map(|&(name, value)| (name, filled(value))).collect()
        };
        Entry {
            kind: Kind::Shim(shim),
            version: format!("{} {}", self.title, self.release),
            launch: self.launch.iter().map(|word| filled(word)).collect(),
            env: variables(self.env),
            env_oversubscribed: variables(self.env_oversubscribed),
        }
    }
}

/// Compiles the shim against the wheel. Quick, so it always does.
fn build(setup: &Setup, mpi: &Mpi) -> Result<PathBuf> {
    let shim = setup.path(&format!("{}/libpeer.so", mpi.name));
    let mut cc = setup.cc();
    cc.args(["-shared", "-fPIC", "peers/mpi_shim.c"]).args(mpi.defines);
    cc.arg("-I").arg(venv(setup, mpi.headers).join("include"));
    cc.arg("-L").arg(venv(setup, mpi.name).join("lib"));
    // The shim finds the library beside itself, wherever the checkout is moved to.
    cc.arg(format!("-l:{}", mpi.library)).args(["-ldl", "-Wl,-rpath,$ORIGIN/venv/lib", "-o"]).arg(&shim);
    setup.run(&mut cc).context("the shim cannot be built (a C compiler is needed)")?;
    Ok(shim)
}

/// Verifies every operation, on ranks launched as the bench will launch them.
fn check(setup: &Setup, mpi: &Mpi, entry: &Entry) -> Result<()> {
    let program = setup.path(&format!("{}/check_shim", mpi.name));
    let shim = setup.path(&format!("{}/libpeer.so", mpi.name));
    setup.run(setup.cc().arg("peers/check_shim.c").args(["-ldl", "-o"]).arg(&program))?;
    setup.check(setup.launch(entry, 2).arg(program).arg(shim)).context("it does not work on this machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_no_place_left_to_fill_but_the_ranks() {
        for mpi in [IMPI, MPICH, OPENMPI] {
            let entry = mpi.entry(Path::new("/w/venv"), "/w/libpeer.so".into());
            assert!(entry.launch[0].starts_with("/w/venv/bin/"), "{:?}", entry.launch);
            assert!(entry.launch.iter().any(|word| word == "{ranks}"), "{:?}", entry.launch);
            let variables = entry.env.iter().chain(&entry.env_oversubscribed);
            assert!(variables.clone().all(|(_, value)| !value.contains('{')));
        }
    }
}
