//! What a profiler hears.

use symmem::cuda::{Device, Engine, Stream};

use crate::fake;

#[test]
fn a_profiler_hears_which_operation_launches() {
    fake::run("profile::a_profiler_hears_which_operation_launches", &[], || {
        let heard = std::env::temp_dir().join(format!("symmem-nvtx-{}", std::process::id()));
        // SAFETY: before any other thread of this process is started.
        unsafe {
            std::env::set_var("NVTX_INJECTION64_PATH", fake::library());
            std::env::set_var("FAKECUDA_NVTX", &heard);
        }
        symmem::spawn(1, |group| {
            let device = Device::new(0)?;
            let engine = Engine::new(&group, &device)?;
            engine.barrier(&Stream::new(&device)?)
        })
        .unwrap();
        let text = std::fs::read_to_string(&heard).expect("the profiler was told");
        let _ = std::fs::remove_file(&heard);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].starts_with("push symmem.") && lines[0].contains("barrier"), "{text}");
        assert_eq!(lines[1], "pop");
    });
}
