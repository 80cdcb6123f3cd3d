//! Fabric handles: memory that travels within an NVLink domain, over hosts too, and by descriptors where
//! there is none.

use symmem::cuda::{Engine, SymmetricMemory};
use symmem::{Error, Group, ProcessSpawner, Result};

use crate::common::{config_with_secret, same_ranks_with};
use crate::{DEVICES, check, engine, everybodys, fake};

/// Fabric handles work.
pub(crate) const FABRIC: (&str, &str) = ("FAKECUDA_FABRIC", "1");
/// All devices are in one domain.
pub(crate) const ONE_CLIQUE: (&str, &str) = ("FAKECUDA_CLIQUES", "7,7,7,7");

/// Collective. The same ranks, each on a host of its own.
pub(crate) fn apart(group: &Group) -> Result<Group> {
    same_ranks_with(group, config_with_secret().host_id(format!("host {}", group.rank())))
}

/// Collective. Memory that everybody has looked at.
fn shared(engine: &Engine) -> Result<SymmetricMemory<f32>> {
    let memory = engine.device().alloc::<f32>(1000)?.rendezvous(engine)?;
    check(&memory)?;
    Ok(memory)
}

fn share(group: Group) -> Result<()> {
    let memory = shared(&engine(&group)?)?;
    assert_eq!(fake::imports().0, 0, "nothing goes by descriptor");
    assert!(fake::imports().1 >= 3, "control block, memory and pad: {:?}", fake::imports());
    drop(memory);
    group.barrier()
}

#[test]
fn memory_travels_by_fabric_handle_within_a_domain() {
    const NAME: &str = "fabric::memory_travels_by_fabric_handle_within_a_domain";
    fake::run(NAME, &[DEVICES, FABRIC, ONE_CLIQUE], || {
        symmem::spawn(3, share).unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
        ProcessSpawner::new(NAME, 2).run(share).unwrap();
    });
}

#[test]
fn memory_of_another_domain_travels_by_descriptor() {
    const NAME: &str = "fabric::memory_of_another_domain_travels_by_descriptor";
    fake::run(NAME, &[DEVICES, FABRIC, ("FAKECUDA_CLIQUES", "7,7,8")], || {
        symmem::spawn(3, |group| shared(&engine(&group)?).map(drop)).unwrap();
        // Control block, memory and pad, for every ordered pair: two of them are in one domain.
        assert_eq!(fake::imports(), (3 * 4, 3 * 2));
    });
}

#[test]
fn a_domain_spans_hosts() {
    let vars = [DEVICES, FABRIC, ("FAKECUDA_CLIQUES", "7,7,8")];
    fake::run("fabric::a_domain_spans_hosts", &vars, || {
        symmem::spawn(2, |group| {
            let apart = apart(&group)?;
            let memory = shared(&engine(&apart)?)?;
            assert_eq!(fake::imports().0, 0);
            assert!(fake::imports().1 >= 3, "{:?}", fake::imports());
            drop(memory);
            group.barrier()
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
        // The third is in another clique.
        symmem::spawn(3, |group| {
            let result = engine(&apart(&group)?);
            assert!(matches!(&result, Err(Error::NoPeerAccess { rank: 0, peer: 2, .. })), "{result:?}");
            for said in everybodys(&group, &result)? {
                assert!(said.contains("not in one NVLink domain"), "{said}");
            }
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn multicast_objects_travel_by_fabric_handle_over_hosts() {
    let vars = [DEVICES, FABRIC, ONE_CLIQUE, ("FAKECUDA_MULTICAST", "1")];
    fake::run("fabric::multicast_objects_travel_by_fabric_handle_over_hosts", &vars, || {
        symmem::spawn(3, |group| {
            let memory = shared(&engine(&apart(&group)?)?)?;
            assert!(memory.multicast_ptr().is_some(), "all have multicast");
            drop(memory);
            group.barrier()
        })
        .unwrap();
        assert_eq!(fake::imports().0, 0);
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
        assert_eq!(fake::violations(), 0);
    });
}

#[test]
fn devices_without_descriptors_meet_by_fabric_handles() {
    let vars = [DEVICES, FABRIC, ONE_CLIQUE, ("FAKECUDA_NO_EXPORT", "0,1,2"), ("FAKECUDA_MULTICAST", "1")];
    fake::run("fabric::devices_without_descriptors_meet_by_fabric_handles", &vars, || {
        symmem::spawn(3, |group| {
            let memory = shared(&engine(&group)?)?;
            assert!(memory.multicast_ptr().is_some(), "all have multicast");
            Ok(())
        })
        .unwrap();
        assert_eq!(fake::imports().0, 0);
    });
}
