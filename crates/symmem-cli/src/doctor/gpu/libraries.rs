//! NVIDIA's libraries, as the library itself finds them, and what each is good for here.

use symmem::machine::gpu;
use symmem::nccl::{self, Version};

use super::super::row::{Fact, split_hint};

/// What versions of NCCL bring, the newest last.
const NCCL: [(Version, &str); 5] = [
    (Version::new(2, 24, 3), "8-bit reductions"),
    (Version::new(2, 27, 3), "windows (SYMMEM_PROVIDER=nccl)"),
    (Version::new(2, 28, 3), "native all-to-all"),
    (Version::new(2, 29, 2), "peers' pointers, multicast and signals"),
    (Version::new(2, 30, 3), "several ranks on one GPU"),
];

pub(super) fn facts() -> Vec<Fact> {
    let library = nccl::library().map(|library| (library.version, library.path.display().to_string()));
    vec![
        nvrtc(gpu::nvrtc().map_err(|error| error.to_string())),
        nccl_fact(library.map_err(|error| error.to_string())),
        found("NVSHMEM", gpu::nvshmem(), "symmem does not use it yet"),
        cublaslt(gpu::cublaslt().map_err(|error| error.to_string())),
    ]
}

fn nvrtc(version: Result<(i32, i32), String>) -> Fact {
    match version {
        Ok((major, minor)) => {
            Fact::ok("NVRTC", format!("{major}.{minor}: kernels are compiled for this GPU"))
        }
        Err(problem) => {
            let (found, hint) = split_hint(&problem);
            let hint = hint.unwrap_or_else(|| "pip install nvidia-cuda-nvrtc".to_owned());
            Fact::warn("NVRTC", format!("{found}; only kernels that were compiled ahead can run"), hint)
        }
    }
}

fn nccl_fact(library: Result<(Version, String), String>) -> Fact {
    const NAME: &str = "NCCL";
    let (version, path) = match library {
        Ok(found) => found,
        Err(problem) => {
            let (found, hint) = split_hint(&problem);
            let hint = hint.map(|hint| format!("; to have it: {hint}")).unwrap_or_default();
            return Fact::skip(NAME, format!("{found}; no memory across machines{hint}"));
        }
    };
    let (has, lacks): (Vec<_>, Vec<_>) = NCCL.iter().partition(|(since, _)| version >= *since);
    let has: Vec<&str> = has.iter().map(|(_, what)| *what).collect();
    let has = if has.is_empty() { "collectives".to_owned() } else { has.join(", ") };
    let lacks: Vec<String> = lacks.iter().map(|(since, what)| format!("{what} ({since})")).collect();
    let found = format!("{version} ({path}): {has}");
    match lacks.is_empty() {
        true => Fact::ok(NAME, found),
        false => Fact::ok(NAME, format!("{found}; newer versions add {}", lacks.join(", "))),
    }
}

fn cublaslt(version: Result<String, String>) -> Fact {
    const NAME: &str = "cuBLASLt";
    match version {
        Ok(version) => Fact::ok(NAME, format!("{version}: products that gather or scatter on GPUs")),
        Err(problem) => {
            let (found, hint) = split_hint(&problem);
            let hint = hint.map(|hint| format!("; to have it: {hint}")).unwrap_or_default();
            Fact::skip(NAME, format!("{found}; no products that gather or scatter on GPUs{hint}"))
        }
    }
}

fn found(name: &str, version: Option<String>, use_of_it: &str) -> Fact {
    match version {
        Some(version) => Fact::ok(name, format!("{version}; {use_of_it}")),
        None => Fact::skip(name, format!("not found; {use_of_it}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::row::Status;
    use super::*;

    #[test]
    fn versions_of_nccl_are_told_by_what_they_bring() {
        let of = |minor, patch| nccl_fact(Ok((Version::new(2, minor, patch), "/x".to_owned())));
        assert!(of(30, 7).found.ends_with("several ranks on one GPU"), "{:?}", of(30, 7));
        let old = of(27, 5).found;
        assert!(
            old.contains("windows") && old.contains("newer versions add native all-to-all (2.28.3)"),
            "{old}"
        );
        assert!(of(19, 1).found.contains(": collectives; newer"), "{:?}", of(19, 1));
    }

    #[test]
    fn what_is_missing_is_told_with_where_to_get_it() {
        let fact = nvrtc(Err("NVRTC cannot be used: not found. Hint: install it".to_owned()));
        assert_eq!((fact.status, fact.hint.as_deref()), (Status::Warn, Some("install it")));
        assert_eq!(nccl_fact(Err("no NCCL. Hint: install it".to_owned())).status, Status::Skip);
        let none = cublaslt(Err("no cuBLASLt. Hint: install it".to_owned()));
        assert!(none.status == Status::Skip && none.found.ends_with("to have it: install it"), "{none:?}");
        assert_eq!(cublaslt(Ok("13.1.0".to_owned())).status, Status::Ok);
        assert_eq!(found("NVSHMEM", None, "unused").status, Status::Skip);
    }
}
