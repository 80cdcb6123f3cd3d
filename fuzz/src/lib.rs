//! What the targets share: they feed a target of the library by its name, and say at the end how much it was
//! fed.

use std::sync::Once;

/// Feeds `bytes` to the target called `name`.
pub fn feed(name: &str, bytes: &[u8]) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        // SAFETY: `report` is a function without arguments that does not unwind.
        unsafe { libc::atexit(report) };
    });
    symmem::fuzzing::feed(name, bytes);
}

extern "C" fn report() {
    let [inputs, bytes] = symmem::fuzzing::fed();
    eprintln!("fed {inputs} inputs, {bytes} bytes");
}
