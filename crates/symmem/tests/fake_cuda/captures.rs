//! Graphs keep what their operations were given, whoever made them of a capture. The list of all operations
//! is beside the fake NCCL, `fake_nccl/captures.rs`.

use symmem::cuda::cudarc::driver::sys;
use symmem::cuda::{Buffer, Device, Stream};

use crate::{DEVICES, fake};

#[test]
fn a_replay_does_not_write_into_a_later_buffer() {
    fake::run("captures::a_replay_does_not_write_into_a_later_buffer", &[DEVICES], || {
        let device = Device::new(0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let buffer = Buffer::<u8>::new(&device, 4096).unwrap();
        stream.begin_capture().unwrap();
        buffer.fill_bytes(5, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        drop(buffer);
        let innocents: Vec<_> =
            (0..4).map(|_| Buffer::from_slice(&device, &[9u8; 4096], &stream).unwrap()).collect();
        graph.launch(&stream).unwrap();
        for innocent in innocents {
            assert_eq!(innocent.read(&stream).unwrap(), [9; 4096]);
        }
    });
}

/// A parent that has `child` as its only node, ready to launch.
fn parent_of(child: sys::CUgraph) -> sys::CUgraphExec {
    let (mut parent, mut node, mut ready) =
        (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: live handles; places for what is made.
    unsafe {
        sys::cuGraphCreate(&mut parent, 0).result().unwrap();
        sys::cuGraphAddChildGraphNode(&mut node, parent, std::ptr::null(), 0, child).result().unwrap();
        sys::cuGraphInstantiateWithFlags(&mut ready, parent, 0).result().unwrap();
        sys::cuGraphDestroy(parent).result().unwrap();
    }
    ready
}

#[test]
fn whatever_others_make_of_a_capture_keeps_what_was_captured() {
    const NAME: &str = "captures::whatever_others_make_of_a_capture_keeps_what_was_captured";
    fake::run(NAME, &[DEVICES], || {
        let device = Device::new(0).unwrap();
        let _context = symmem::cuda::cudarc::driver::CudaContext::new(0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let buffer = Buffer::<u8>::new(&device, 4096).unwrap();
        let (mut graph, mut clone) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut ready = [std::ptr::null_mut(); 3];
        // SAFETY: live handles; places for what is made. As another library captures, copies and
        // instantiates.
        unsafe {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            sys::cuStreamBeginCapture_v2(stream.raw(), mode).result().unwrap();
            buffer.fill_bytes(5, &stream).unwrap();
            sys::cuStreamEndCapture(stream.raw(), &mut graph).result().unwrap();
            sys::cuGraphClone(&mut clone, graph).result().unwrap();
            for (ready, from) in ready.iter_mut().zip([graph, graph, clone]) {
                sys::cuGraphInstantiateWithFlags(ready, from, 0).result().unwrap();
            }
        }
        let mut ready = ready.to_vec();
        ready.push(parent_of(clone));
        // SAFETY: as above.
        unsafe {
            sys::cuGraphDestroy(graph).result().unwrap();
            sys::cuGraphDestroy(clone).result().unwrap();
        }
        drop(buffer);
        let innocents: Vec<_> =
            (0..4).map(|_| Buffer::from_slice(&device, &[9u8; 4096], &stream).unwrap()).collect();
        for one in ready {
            // SAFETY: live handles; each is destroyed once.
            unsafe {
                sys::cuGraphLaunch(one, stream.raw()).result().unwrap();
                sys::cuGraphExecDestroy(one).result().unwrap();
            }
        }
        assert_eq!(fake::stale(), 0);
        for innocent in innocents {
            assert_eq!(innocent.read(&stream).unwrap(), [9; 4096]);
        }
    });
}
