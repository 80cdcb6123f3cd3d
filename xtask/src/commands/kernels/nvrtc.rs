//! NVIDIA's run-time compiler, installed once into an ignored folder. It needs neither a GPU nor a driver.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::environment;
use crate::plan::Job;

/// The version that PTX in the repository is made with: its PTX is understood by every driver from 580 on.
pub(super) const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.88";

/// Ignored by git; kept between runs.
const FOLDER: &str = ".nvrtc";
const SCRIPT: &str = "xtask/src/commands/kernels/compile.py";

/// The compiler.
pub(crate) struct Nvrtc {
    folder: PathBuf,
}

impl Nvrtc {
    /// Installs it unless it is there: about 90 MB.
    pub(crate) fn set_up(job: &Job) -> Result<Self> {
        let folder = job.workspace.path(FOLDER);
        environment::once(&folder, PACKAGE, || {
            println!("installing {PACKAGE}");
            job.run(&mut environment::venv(job.workspace, &folder))
                .context("no Python environment could be made (python3 with its venv module is needed)")?;
            job.run(&mut environment::pip(job.workspace, &folder, ["--no-deps", PACKAGE]))
        })?;
        Ok(Self { folder })
    }

    /// The Python environment that it lies in, where programs find it that are told of it by `VIRTUAL_ENV`.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Compiles each request, see `compile.py`. The folder with the results.
    pub(super) fn compile(&self, job: &Job, sources: &str, requests: &[String]) -> Result<PathBuf> {
        let out = job.workspace.target("kernels");
        fs::create_dir_all(&out).with_context(|| format!("{} cannot be made", out.display()))?;
        let mut python = job.workspace.program(self.folder.join("bin/python"));
        python.arg(job.workspace.path(SCRIPT)).arg(job.workspace.path(sources)).arg(&out).args(requests);
        job.run(&mut python).context("the kernels do not compile")?;
        Ok(out)
    }
}
