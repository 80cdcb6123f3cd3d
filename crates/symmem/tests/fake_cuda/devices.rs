//! Which devices may meet: overlapping ones, ones that do not reach each other, and multicast among them.

use symmem::cuda::{Device, Engine};
use symmem::{Error, Group, Result};

use crate::common::{config, config_with_secret, same_ranks_with};
use crate::{DEVICES, check, engine, everybodys, fake};

/// Ranks 0 and 1 on one device, the others on their own.
fn overlapping(group: &Group) -> Result<Engine> {
    Engine::new(group, &Device::new(group.rank().saturating_sub(1))?)
}

#[test]
fn overlapping_devices_are_refused() {
    fake::run("devices::overlapping_devices_are_refused", &[DEVICES], || {
        symmem::spawn(3, |group| {
            for said in everybodys(&group, &overlapping(&group))? {
                assert!(said.contains("ranks [0, 1]") && said.contains("device 0 (Fake GPU"), "{said}");
            }
            assert!(matches!(overlapping(&group), Err(Error::OverlappingDevices { .. })));
            // Some of those concerned are not enough.
            let allowing = same_ranks_with(&group, config().allow_overlapping_devices(group.rank() != 1))?;
            assert!(matches!(overlapping(&allowing), Err(Error::OverlappingDevices { .. })));
            // Somebody else may still refuse for itself.
            let allowing = same_ranks_with(&group, config().allow_overlapping_devices(group.rank() != 2))?;
            let engine = overlapping(&allowing)?;
            check(&engine.device().alloc::<f32>(64)?.rendezvous(&engine)?)
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn overlapping_devices_are_allowed_by_either_variable() {
    const NAME: &str = "devices::overlapping_devices_are_allowed_by_either_variable";
    for variable in ["SYMMEM_ALLOW_OVERLAPPING_DEVICES", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] {
        fake::run(NAME, &[(variable, "1")], || {
            symmem::spawn(3, |group| {
                let engine = Engine::new(&group, &Device::new(0)?)?;
                check(&engine.device().alloc::<f32>(64)?.rendezvous(&engine)?)
            })
            .unwrap();
        });
    }
}

#[test]
fn devices_without_peer_access_are_named() {
    let vars = [DEVICES, ("FAKECUDA_NO_PEER", "1"), ("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1")];
    fake::run("devices::devices_without_peer_access_are_named", &vars, || {
        symmem::spawn(3, |group| {
            let result = overlapping(&group);
            for said in everybodys(&group, &result)? {
                // Ranks 0 and 1 are on the same device.
                assert!(said.contains("rank 0") && said.contains("rank 2"), "{said}");
                assert!(said.contains("device 0 (Fake GPU") && said.contains("device 1 (Fake GPU"), "{said}");
            }
            assert!(matches!(result, Err(Error::NoPeerAccess { .. })), "{result:?}");
            // Where nobody needs another device, nobody misses it.
            Engine::new(&group, &Device::new(0)?).map(drop)
        })
        .unwrap();
    });
}

#[test]
fn devices_without_native_atomics_between_them_are_named() {
    let vars = [DEVICES, ("FAKECUDA_NO_ATOMICS", "1"), ("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1")];
    fake::run("devices::devices_without_native_atomics_between_them_are_named", &vars, || {
        symmem::spawn(3, |group| {
            let result = overlapping(&group);
            assert!(matches!(&result, Err(Error::NoPeerAccess { rank: 0, peer: 2, .. })), "{result:?}");
            for said in everybodys(&group, &result)? {
                assert!(said.contains("native atomics") && said.contains("device 1 (Fake GPU"), "{said}");
            }
            // A device has them with itself.
            let engine = Engine::new(&group, &Device::new(0)?)?;
            check(&engine.device().alloc::<f32>(64)?.rendezvous(&engine)?)
        })
        .unwrap();
    });
}

#[test]
fn a_part_of_a_gpu_is_named() {
    fake::run("devices::a_part_of_a_gpu_is_named", &[DEVICES, ("FAKECUDA_MIG", "2")], || {
        assert!(Device::new(2).unwrap().is_mig() && !Device::new(1).unwrap().is_mig());
        symmem::spawn(3, |group| {
            let result = engine(&group);
            assert!(matches!(&result, Err(Error::NoPeerAccess { rank: 0, peer: 2, .. })), "{result:?}");
            for said in everybodys(&group, &result)? {
                assert!(said.contains("MIG") && said.contains("device 2 (Fake GPU"), "{said}");
            }
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn a_device_whose_memory_cannot_be_exported_is_named() {
    const NAME: &str = "devices::a_device_whose_memory_cannot_be_exported_is_named";
    fake::run(NAME, &[DEVICES, ("FAKECUDA_NO_EXPORT", "1")], || {
        symmem::spawn(3, |group| {
            let result = engine(&group);
            assert!(matches!(&result, Err(Error::NoPeerAccess { rank: 0, peer: 1, .. })), "{result:?}");
            for said in everybodys(&group, &result)? {
                assert!(said.contains("cannot be exported") && said.contains("WSL"), "{said}");
            }
            Ok(())
        })
        .unwrap();
        // A rank alone exports to nobody.
        symmem::spawn(1, |group| {
            let engine = Engine::new(&group, &Device::new(1)?)?;
            check(&engine.device().alloc::<f32>(64)?.rendezvous(&engine)?)
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn network_cards_reach_memory_where_they_may() {
    const NAME: &str = "devices::network_cards_reach_memory_where_they_may";
    for (rdma, has) in [("1", true), ("0", false), ("refused", false)] {
        fake::run(NAME, &[DEVICES, ("FAKECUDA_RDMA", rdma)], || {
            symmem::spawn(2, |group| {
                let engine = engine(&group)?;
                check(&engine.device().alloc::<f32>(64)?.rendezvous(&engine)?)
            })
            .unwrap();
            let (plain, with) = fake::made();
            // Control blocks, memory and pads: of all, or of none.
            assert_eq!((plain, with), if has { (0, 6) } else { (6, 0) }, "{rdma}");
        });
    }
}

#[test]
fn ranks_of_different_hosts_are_named() {
    fake::run("devices::ranks_of_different_hosts_are_named", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let apart =
                same_ranks_with(&group, config_with_secret().host_id(format!("host {}", group.rank())))?;
            let result = engine(&apart);
            assert!(matches!(&result, Err(Error::NoPeerAccess { rank: 0, peer: 1, .. })), "{result:?}");
            group.barrier()
        })
        .unwrap();
    });
}

#[test]
fn a_driver_that_does_not_start_is_told() {
    fake::run("devices::a_driver_that_does_not_start_is_told", &[("FAKECUDA_FAIL", "1")], || {
        let result = Device::new(0);
        assert!(
            matches!(&result, Err(Error::NoCuda { problem }) if problem.contains("cuInit")),
            "{result:?}"
        );
    });
}

#[test]
fn multicast_is_there_if_all_have_it() {
    let vars = [DEVICES, ("FAKECUDA_MULTICAST", "1")];
    fake::run("devices::multicast_is_there_if_all_have_it", &vars, || {
        symmem::spawn(3, |group| {
            let engine = engine(&group)?;
            let x = engine.device().alloc::<f32>(1000)?;
            let memory = x.rendezvous(&engine)?;
            let address = memory.multicast_ptr().expect("all have multicast");
            assert_eq!(memory.slice(2..)?.multicast_ptr(), Some(address + 8));
            // No one address is everybody's where offsets differ.
            assert_eq!(x.rendezvous_at(&engine, group.rank())?.multicast_ptr(), None);
            check(&memory)?;
            // One that has switched it off is enough.
            let without = same_ranks_with(&group, config().multicast(group.rank() != 1))?;
            let engine = Engine::new(&without, engine.device())?;
            let memory = x.rendezvous(&engine)?;
            assert_eq!(memory.multicast_ptr(), None);
            check(&memory)
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
        assert_eq!(fake::violations(), 0);
    });
}

#[test]
fn overlapping_devices_have_no_multicast() {
    let vars = [DEVICES, ("FAKECUDA_MULTICAST", "1"), ("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1")];
    fake::run("devices::overlapping_devices_have_no_multicast", &vars, || {
        symmem::spawn(3, |group| {
            let engine = overlapping(&group)?;
            let memory = engine.device().alloc::<f32>(64)?.rendezvous(&engine)?;
            assert_eq!(memory.multicast_ptr(), None);
            check(&memory)
        })
        .unwrap();
    });
}
