//! A forked child: the driver is not its own.

use symmem::cuda::{Buffer, Device, Stream};
use symmem::{Error, ReduceOp, Result};

use crate::{check, engine, fake};

/// Runs `body` in a forked child, and waits for it; its number says what failed, 0 is nothing.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs on this thread only, takes no lock that another thread may hold, and ends by
    // `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = body();
        // SAFETY: ends the child at once, without the parent's exit handlers.
        unsafe { libc::_exit(code) }
    }
    assert!(child > 0, "fork");
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:x}");
    libc::WEXITSTATUS(status)
}

fn is_forked<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Forked { .. }))
}

/// The place of the first that is not true, counted from 1; 0 if all are.
fn first_wrong(all: &[bool]) -> i32 {
    all.iter().position(|fine| !fine).map_or(0, |at| at as i32 + 1)
}

#[test]
fn a_forked_child_is_told_and_leaves_the_driver_alone() {
    fake::run("forked::a_forked_child_is_told_and_leaves_the_driver_alone", &[], || {
        symmem::spawn(1, |group| {
            let engine = engine(&group)?;
            let device = engine.device().clone();
            let stream = Stream::new(&device)?;
            let x = device.alloc::<f32>(100)?;
            let memory = x.rendezvous(&engine)?;
            let buffer = Buffer::<f32>::new(&device, 100)?;
            let kept = (engine.clone(), memory.clone());
            let wrong = in_child(|| {
                let before = fake::calls();
                let told = [
                    is_forked(Device::count()),
                    is_forked(Device::new(0)),
                    is_forked(Stream::new(&device)),
                    is_forked(stream.synchronize()),
                    is_forked(device.alloc::<f32>(1)),
                    is_forked(x.read(&stream)),
                    is_forked(buffer.read(&stream)),
                    is_forked(x.rendezvous(&engine)),
                    is_forked(memory.reaches(0)),
                    is_forked(memory.peer_ptr(0)),
                    is_forked(memory.pad_ptr(0)),
                    is_forked(engine.barrier(&stream)),
                    is_forked(memory.all_reduce(ReduceOp::Sum, &stream)),
                    is_forked(engine.sync(&stream, std::time::Duration::from_secs(1))),
                ];
                // What it inherited is the rank's, and stays.
                drop((buffer, memory, x, stream, engine));
                let left_alone = fake::calls() == before;
                first_wrong(&[&told[..], &[left_alone]].concat())
            });
            assert_eq!(wrong, 0, "the number of what was not refused; the last is calls of the driver");
            // The rank goes on.
            check(&kept.1)?;
            check(&device.alloc::<f32>(10)?.rendezvous(&kept.0)?)
        })
        .unwrap();
    });
}
