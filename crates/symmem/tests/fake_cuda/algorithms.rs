//! The algorithm that a setting prefers: every one of the library's table, by its name.

use symmem::cuda::{Algorithm, Device, Engine, Form, Settings, Stream};
use symmem::{Config, DType, Error, ReduceOp};

use crate::common::assert_error;
use crate::{DEVICES, fake, unanimous};

#[test]
fn every_algorithm_can_be_preferred_and_carries_what_it_can() {
    fake::run("algorithms::every_algorithm_can_be_preferred_and_carries_what_it_can", &[DEVICES], || {
        for algorithm in Algorithm::EVERY.iter().filter(|algorithm| **algorithm != Algorithm::Multimem) {
            symmem::spawn(2, move |group| {
                let device = Device::new(group.rank())?;
                let config = Config::from_env()?.device_algorithm(algorithm.name());
                let engine = Engine::with(&group, &device, Settings::from_config(&config))?;
                let stream = Stream::new(&device)?;
                let memory = engine.alloc::<f32>(1 << 10)?.rendezvous(&engine)?;
                memory.all_reduce(ReduceOp::Sum, &stream)?;
                let mut carried = 0;
                for form in Form::ALL {
                    let asked = engine.using(*algorithm).plan(form, DType::F32, 4 << 10);
                    let chosen = engine.plan(form, DType::F32, 4 << 10)?.algorithm;
                    // Where it cannot, another one does.
                    assert_eq!(chosen == *algorithm, asked.is_ok(), "{algorithm} {form}");
                    carried += usize::from(asked.is_ok());
                }
                assert!(carried > 0, "{algorithm}");
                group.barrier()
            })
            .unwrap();
        }
    });
}

#[test]
fn ranks_that_prefer_different_algorithms_have_no_engine() {
    fake::run("algorithms::ranks_that_prefer_different_algorithms_have_no_engine", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let device = Device::new(group.rank())?;
            let by = |algorithm: &str| {
                let settings = Settings { algorithm: algorithm.to_owned(), ..Settings::default() };
                Engine::with(&group, &device, settings)
            };
            let refused = by(["two_shot", "one_shot"][group.rank()]);
            assert_error!(&refused, Error::Mismatch { what: "the engine", .. });
            assert!(unanimous(&group, &refused)?.contains("all-reduces by one_shot"));
            let unknown = by("ring");
            assert!(unanimous(&group, &unknown)?.contains("none of low_latency"));
            let multicast = by("multimem");
            assert!(unanimous(&group, &multicast)?.contains("multimem gives other bits"));
            by("").map(drop)
        })
        .unwrap();
    });
}
