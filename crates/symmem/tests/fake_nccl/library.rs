//! Which NCCL, and why; none, another one, and one that is too old.

use symmem::nccl::{self, Communicator, UniqueId, Version, Why};
use symmem::{Error, ReduceOp};

use crate::common::assert_error;
use crate::{DEVICES, communicator, cuda, fake};

/// The error in one line, with all of `words`.
fn told(error: &Error, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

#[test]
fn the_library_says_where_it_came_from() {
    fake::run("library::the_library_says_where_it_came_from", &[], || {
        let loaded = nccl::library().unwrap();
        assert_eq!(loaded.path, fake::path().canonicalize().unwrap());
        assert_eq!((loaded.why, loaded.version), (Why::Variable, Version::new(2, 30, 7)));
        assert_eq!(loaded.suffix(), "");
        assert!(nccl::is_available());
        assert_eq!(loaded.version.code(), 23007);
    });
}

#[test]
fn a_missing_library_is_one_clear_error() {
    const NAME: &str = "library::a_missing_library_is_one_clear_error";
    cuda::run(NAME, &[("SYMMEM_NCCL_LIBRARY", "/no/such/libnccl.so.2"), DEVICES], || {
        let error = nccl::library().unwrap_err();
        assert!(matches!(error, Error::NoLibrary { .. }));
        told(&error, &["NCCL cannot be used", "/no/such/libnccl.so.2", "SYMMEM_NCCL_LIBRARY", "Hint"]);
        assert!(!nccl::is_available());
        assert_error!(UniqueId::new(), Error::NoLibrary { .. });
        // Every rank gets the same, as the error of the first that has none.
        let all = symmem::spawn(2, |group| Ok(communicator(&group).unwrap_err().to_string())).unwrap();
        assert!(all.iter().all(|said| said.contains("rank 0 failed: NCCL cannot be used")), "{all:?}");
    });
}

#[test]
fn a_library_that_is_not_nccl_is_told() {
    let other = fake::beside("libsymmem_fakecuda.so");
    let vars = [("SYMMEM_NCCL_LIBRARY", other.to_str().unwrap())];
    cuda::run("library::a_library_that_is_not_nccl_is_told", &vars, || {
        let error = nccl::version().unwrap_err();
        assert!(matches!(error, Error::NoLibrary { .. }));
        told(&error, &["is not NCCL", "ncclGetVersion"]);
    });
}

#[test]
fn a_library_that_is_too_old_for_anything_is_told() {
    const NAME: &str = "library::a_library_that_is_too_old_for_anything_is_told";
    fake::run(NAME, &[("FAKENCCL_VERSION", "2.18.5")], || {
        let error = nccl::version().unwrap_err();
        assert!(matches!(&error, Error::LibraryTooOld { needed, .. } if &**needed == "2.19.1"), "{error}");
        told(&error, &["needs NCCL 2.19.1 or newer", "2.18.5", "libsymmem_fakenccl.so", "Hint"]);
    });
}

/// Tries everything that needs a newer version; what is missing names the one that has it.
fn try_gates(version: Version) {
    symmem::spawn(2, |group| {
        let communicator = communicator(&group)?;
        let stream = symmem::cuda::Stream::new(communicator.device())?;
        let gates: [(&str, Version, symmem::Result<()>); 3] = [
            ("ncclSignal", Version::new(2, 29, 2), communicator.signal(group.next(), &stream)),
            ("ncclCommShrink", Version::new(2, 27, 3), communicator.shrink(&[], false).map(drop)),
            ("ncclCommRevoke", Version::new(2, 28, 9), communicator.revoke()),
        ];
        for (what, since, result) in gates {
            match result {
                Ok(()) => assert!(version >= since, "{what} worked with {version}"),
                Err(Error::LibraryTooOld { what: said, needed, found, .. }) => {
                    assert!(version < since && said.contains(what), "{said} with {version}");
                    assert_eq!((&*needed, &*found), (&*since.to_string(), &*version.to_string()));
                }
                Err(other) => panic!("{what} with {version}: {other}"),
            }
        }
        // 8-bit floats are moved by every version, and reduced by those that know them. Not on what was
        // revoked.
        let communicator = crate::communicator(&group)?;
        let mut small = symmem::cuda::Buffer::<symmem::F8E4M3>::new(communicator.device(), 8)?;
        communicator.broadcast(&mut small, 0, &stream)?;
        let reduced = communicator.all_reduce_in_place(&mut small, ReduceOp::Sum, &stream);
        if version < Version::new(2, 24, 3) {
            assert_error!(reduced, Error::LibraryTooOld { .. });
        }
        group.barrier()
    })
    .unwrap();
    assert_eq!(fake::violations(), 0);
}

#[test]
fn each_gate_names_the_version_it_needs() {
    const NAME: &str = "library::each_gate_names_the_version_it_needs";
    for text in ["2.19.3", "2.26.2", "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.32.3"] {
        fake::run(NAME, &[("FAKENCCL_VERSION", text), DEVICES], || {
            let parts: Vec<u32> = text.split('.').map(|part| part.parse().unwrap()).collect();
            let version = Version::new(parts[0], parts[1], parts[2]);
            assert_eq!(nccl::version().unwrap(), version);
            try_gates(version);
        });
    }
}

#[test]
fn ids_have_a_length() {
    fake::run("library::ids_have_a_length", &[], || {
        let id = UniqueId::new().unwrap();
        assert_eq!(id.as_bytes().len(), 128);
        assert_eq!(UniqueId::from_bytes(id.as_bytes()).unwrap(), id);
        let error = UniqueId::from_bytes(&[1, 2, 3]).unwrap_err();
        told(&error, &["expected 128 bytes, got 3"]);
        // SAFETY: null is refused.
        let error = unsafe { Communicator::adopt(std::ptr::null_mut(), None) }.unwrap_err();
        told(&error, &["null"]);
    });
}
