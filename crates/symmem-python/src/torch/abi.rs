//! libtorch's stable C interface, found in the torch that this process has imported.
//!
//! Everything `unsafe` about it that other files of this folder need is behind safe functions here or in
//! `value`. The interface is that of torch 2.10, the first with strings and lists; what a later torch adds is
//! not used. A torch without one of the functions has none of them here ([`abi`] is `None`), and Python
//! registers in its own way.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

use symmem::DType;

use crate::dtype;

/// A tensor, string, list or library of torch's.
pub(super) type TorchHandle = *mut c_void;
/// 0 where a call succeeded.
type Code = i32;
/// A kernel: the arguments lie where the results go. It may raise through its caller, which is C++.
pub(super) type Kernel = extern "C-unwind" fn(*mut u64, u64, u64);

/// The layout of values that this code was written for, torch 2.10, as torch packs versions.
pub(super) const WRITTEN_FOR: u64 = (2 << 56) | (10 << 48);

/// What counts writes of tensors: functions of torch's C++, which take the address of an `at::Tensor`, as a
/// handle is one. They are no part of the stable interface and may be missing.
struct Writes {
    /// `torch::autograd::impl::bump_version(const at::Tensor&)`: raises for tensors that count no writes.
    count: TakesTensor<()>,
    /// `at::native::is_inference(const at::Tensor&)`: whether the tensor is one of those.
    counts_none: TakesTensor<bool>,
}

type TakesTensor<R> = unsafe extern "C-unwind" fn(TorchHandle) -> R;

impl Writes {
    fn find(library: *mut c_void) -> Option<Self> {
        let count = symbol(library, c"_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE")?;
        let counts_none = symbol(library, c"_ZN2at6native12is_inferenceERKNS_6TensorE")?;
        // SAFETY: C++ has the types in these names, and a reference is an address.
        unsafe {
            Some(Self {
                count: std::mem::transmute::<*mut c_void, TakesTensor<()>>(count),
                counts_none: std::mem::transmute::<*mut c_void, TakesTensor<bool>>(counts_none),
            })
        }
    }
}

macro_rules! interface {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)? = $symbol:literal,)*) => {
        /// The functions, by what they do. One of them raises through its caller.
        pub(super) struct Abi {
            $(pub(super) $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
            writes: Option<Writes>,
            /// Torch's numbers of the CPU and of CUDA devices.
            pub(super) kinds: [i32; 2],
            dtypes: Vec<(i32, DType)>,
        }

        impl Abi {
            /// All of them, if the library has all of them.
            #[allow(clippy::missing_transmute_annotations)] // The fields of `Abi` have the types.
            fn find(library: *mut c_void) -> Option<Self> {
                $(let $name = symbol(library, $symbol)?;)*
                // SAFETY: functions of torch's interface by these names have these types.
                unsafe {
                    Some(Self {
                        $($name: std::mem::transmute::<*mut c_void, _>($name),)*
                        writes: Writes::find(library),
                        kinds: [number(library, c"aoti_torch_device_type_cpu")?, number(library, c"aoti_torch_device_type_cuda")?],
                        dtypes: dtypes(library),
                    })
                }
            }
        }
    };
}

interface! {
    new_fragment: fn(*const c_char, *const c_char, u32, *mut TorchHandle) -> Code = c"aoti_torch_library_init_fragment",
    new_kernels: fn(*const c_char, *const c_char, *const c_char, u32, *mut TorchHandle) -> Code = c"aoti_torch_library_init_impl",
    define: fn(TorchHandle, *const c_char) -> Code = c"aoti_torch_library_def",
    implement: fn(TorchHandle, *const c_char, Kernel, u64) -> Code = c"torch_library_impl",
    delete_library: fn(TorchHandle) -> Code = c"aoti_torch_delete_library_object",
    check: fn(bool, *const c_char, *const c_char, u32, *const c_char) = c"aoti_torch_check",
    call: fn(*const c_char, *const c_char, *mut u64, u64) -> Code = c"torch_call_dispatcher",
    data: fn(TorchHandle, *mut *mut c_void) -> Code = c"aoti_torch_get_data_ptr",
    dims: fn(TorchHandle, *mut i64) -> Code = c"aoti_torch_get_dim",
    sizes: fn(TorchHandle, *mut *const i64) -> Code = c"aoti_torch_get_sizes",
    strides: fn(TorchHandle, *mut *const i64) -> Code = c"aoti_torch_get_strides",
    dtype: fn(TorchHandle, *mut i32) -> Code = c"aoti_torch_get_dtype",
    device_type: fn(TorchHandle, *mut i32) -> Code = c"aoti_torch_get_device_type",
    device_index: fn(TorchHandle, *mut i32) -> Code = c"aoti_torch_get_device_index",
    empty: fn(i64, *const i64, *const i64, i32, i32, i32, *mut TorchHandle) -> Code = c"aoti_torch_empty_strided",
    another_handle: fn(TorchHandle, *mut TorchHandle) -> Code = c"aoti_torch_new_tensor_handle",
    delete_tensor: fn(TorchHandle) -> Code = c"aoti_torch_delete_tensor_object",
    string_length: fn(TorchHandle, *mut usize) -> Code = c"torch_string_length",
    string_bytes: fn(TorchHandle, *mut *const c_char) -> Code = c"torch_string_c_str",
    delete_string: fn(TorchHandle) -> Code = c"torch_delete_string",
    list_size: fn(TorchHandle, *mut usize) -> Code = c"torch_list_size",
    list_item: fn(TorchHandle, usize, *mut u64) -> Code = c"torch_list_get_item",
    delete_list: fn(TorchHandle) -> Code = c"torch_delete_list",
    makes_graphs: fn() -> bool = c"aoti_torch_grad_mode_is_enabled",
    make_graphs: fn(bool) = c"aoti_torch_grad_mode_set_enabled",
    delete_box: fn(*mut c_void) = c"_ZdlPv",
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: an open library and a name that ends.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// What the function of this name says: one of those of torch's interface that take nothing and give a
/// number.
fn number(library: *mut c_void, name: &CStr) -> Option<i32> {
    let address = symbol(library, name)?;
    // SAFETY: such a function has this type, and no preconditions.
    Some(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(address)() })
}

/// Torch's numbers of the element types that there are here.
fn dtypes(library: *mut c_void) -> Vec<(i32, DType)> {
    let number = |dtype: &DType| {
        let name = CString::new(format!("aoti_torch_dtype_{}", dtype::name(*dtype))).ok()?;
        Some((self::number(library, &name)?, *dtype))
    };
    DType::ALL.iter().filter_map(number).collect()
}

/// The interface; `None` where no torch is imported, or an older one than 2.10.
pub(super) fn abi() -> Option<&'static Abi> {
    static ABI: OnceLock<Abi> = OnceLock::new();
    if let Some(abi) = ABI.get() {
        return Some(abi);
    }
    let found = Abi::find(loaded(c"libtorch_cpu.so")?)?;
    Some(ABI.get_or_init(|| found))
}

/// The handle of the current stream of a device; `None` where this torch cannot tell.
pub(super) fn current_stream(ordinal: i32) -> Option<usize> {
    type Ask = unsafe extern "C-unwind" fn(i32, *mut *mut c_void) -> Code;
    static ASK: OnceLock<Option<Ask>> = OnceLock::new();
    let ask = (*ASK.get_or_init(|| {
        let address = symbol(loaded(c"libtorch_cuda.so")?, c"aoti_torch_get_current_cuda_stream")?;
        // SAFETY: the function of torch's interface by this name has this type.
        Some(unsafe { std::mem::transmute::<*mut c_void, Ask>(address) })
    }))?;
    let mut stream = std::ptr::null_mut();
    // SAFETY: room for the answer.
    (unsafe { ask(ordinal, &mut stream) } == 0).then_some(stream as usize)
}

/// A library that is loaded; it stays so, because this is never given back.
fn loaded(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name that ends; loads and runs nothing.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!library.is_null()).then_some(library)
}

impl Abi {
    /// Counts a write of a tensor, if this torch can be told of it.
    ///
    /// # Safety
    /// A live tensor.
    pub(super) unsafe fn count_write(&self, tensor: TorchHandle) -> bool {
        // SAFETY: as the caller promises.
        self.writes.as_ref().is_some_and(|writes| unsafe {
            if !(writes.counts_none)(tensor) {
                (writes.count)(tensor);
            }
            true
        })
    }

    /// The element type that torch has this number for.
    pub(super) fn element(&self, number: i32) -> Option<DType> {
        self.dtypes.iter().find(|(other, _)| *other == number).map(|(_, dtype)| *dtype)
    }
}

/// Raises `text` as torch's error, through the caller. Nothing that must be dropped may be alive in the
/// frames in between.
pub(super) fn throw(text: &CStr) {
    if let Some(abi) = abi() {
        // SAFETY: strings that end; the caller, a kernel, may be unwound.
        unsafe { (abi.check)(false, c"symmem".as_ptr(), c"symmem".as_ptr(), 0, text.as_ptr()) };
    }
}
