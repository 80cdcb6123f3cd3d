//! All-reduce, the addition of a residual, and RMSNorm, as one operation.

use std::fmt;
use std::marker::PhantomData;

use crate::cuda::owner::OwnedAddress;
use crate::cuda::{Buffer, Device, DeviceSlice, DeviceSliceMut, Stream};
use crate::engine::cuda::ops::{MAX_ROW, RowsToNormalise, UNIT, Written};
use crate::memory::device::SymmetricMemory;
use crate::numeric::{Element, F8E4M3, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

const OP: Op = Op::AllReduceRmsNorm;

/// Memory of the caller's that a norm touches: what it is called, where it is, its elements and bytes, its
/// device, and whether it is written.
#[derive(Clone, Copy, Debug)]
struct NormPart<'a> {
    what: &'static str,
    place: OwnedAddress<'a>,
    len: usize,
    bytes: usize,
    device: &'a Device,
    is_written: bool,
}

impl<'a> NormPart<'a> {
    fn read<T: Element>(what: &'static str, slice: DeviceSlice<'a, T>) -> Self {
        let (len, bytes) = (slice.len(), slice.len() * size_of::<T>());
        Self { what, place: slice.place(), len, bytes, device: slice.device(), is_written: false }
    }

    fn written<T: Element>(what: &'static str, slice: &DeviceSliceMut<'a, T>) -> Self {
        let (len, bytes) = (slice.len(), slice.len() * size_of::<T>());
        Self { what, place: slice.place(), len, bytes, device: slice.device(), is_written: true }
    }

    fn overlaps(&self, address: u64, bytes: usize) -> bool {
        let own = self.place.address;
        own < address + bytes as u64 && address < own + self.bytes as u64
    }
}

/// How rows are reduced and normalised: the sum over all ranks, plus a residual, over the root of `epsilon`
/// and the mean of its squares, times a weight. For [`SymmetricMemory::all_reduce_rms_norm_with`].
#[derive(Debug)]
pub struct RmsNorm<'a, T: Element> {
    columns: usize,
    epsilon: f32,
    reduce: ReduceOp,
    is_fused: bool,
    weight: Option<NormPart<'a>>,
    residual: Option<NormPart<'a>>,
    input: Option<NormPart<'a>>,
    _elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> RmsNorm<'a, T> {
    /// Of rows of `columns` elements: sums, without residual and weight.
    pub fn new(columns: usize, epsilon: f32) -> Self {
        let (weight, residual, input) = (None, None, None);
        let (reduce, is_fused) = (ReduceOp::Sum, true);
        Self { columns, epsilon, reduce, is_fused, weight, residual, input, _elements: PhantomData }
    }

    /// With what each column is multiplied by.
    #[must_use]
    pub fn weight(self, weight: impl Into<DeviceSlice<'a, T>>) -> Self {
        Self { weight: Some(NormPart::read("weight", weight.into())), ..self }
    }

    /// With what is added, and becomes the sum with it.
    #[must_use]
    pub fn residual(self, residual: impl Into<DeviceSliceMut<'a, T>>) -> Self {
        Self { residual: Some(NormPart::written("residual", &residual.into())), ..self }
    }

    /// Of private memory in place of the symmetric one, which then is a place to work in and holds nothing of
    /// use afterwards.
    #[must_use]
    pub fn input(self, input: impl Into<DeviceSlice<'a, T>>) -> Self {
        Self { input: Some(NormPart::read("input", input.into())), ..self }
    }

    /// With another reduction: sum or average.
    #[must_use]
    pub fn reduce(self, reduce: ReduceOp) -> Self {
        Self { reduce, ..self }
    }

    /// By an all-reduce and another kernel, one after the other, with the same bits, unless multicast is
    /// chosen for that. All ranks must choose alike, and then also whether there is an
    /// [`input`](RmsNorm::input) and whether fp8 is written.
    #[must_use]
    pub fn unfused(self) -> Self {
        Self { is_fused: false, ..self }
    }
}

/// Where normalised rows go, and how they are written: elements as they are (from a slice or a `Buffer`), or
/// fp8.
pub struct Normed<'a, T: Element> {
    out: NormPart<'a>,
    scales: Option<NormPart<'a>>,
    written: Written,
    _elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> Normed<'a, T> {
    /// fp8 (e4m3): each element is multiplied by one over the one `scale`, and rounded; what is too large
    /// becomes the largest, 448. With a scale of 0 zeros become NaN, and all else 448.
    pub fn fp8(out: impl Into<DeviceSliceMut<'a, F8E4M3>>, scale: impl Into<DeviceSlice<'a, f32>>) -> Self {
        let (out, scales) = (NormPart::written("out", &out.into()), NormPart::read("scale", scale.into()));
        Self { out, scales: Some(scales), written: Written::Fp8ByTensor, _elements: PhantomData }
    }

    /// fp8 (e4m3) with a scale for each row, by which its largest element becomes 448, the largest of fp8.
    /// The scales are written too.
    pub fn fp8_by_row(
        out: impl Into<DeviceSliceMut<'a, F8E4M3>>,
        scales: impl Into<DeviceSliceMut<'a, f32>>,
    ) -> Self {
        let (out, scales) = (out.into(), scales.into());
        let (out, scales) = (NormPart::written("out", &out), NormPart::written("scales", &scales));
        Self { out, scales: Some(scales), written: Written::Fp8ByRow, _elements: PhantomData }
    }
}

impl<'a, T: Element> From<DeviceSliceMut<'a, T>> for Normed<'a, T> {
    fn from(out: DeviceSliceMut<'a, T>) -> Self {
        let out = NormPart::written("out", &out);
        Self { out, scales: None, written: Written::Plain, _elements: PhantomData }
    }
}

impl<'a, T: Element> From<&'a mut Buffer<T>> for Normed<'a, T> {
    fn from(out: &'a mut Buffer<T>) -> Self {
        out.as_slice_mut().into()
    }
}

impl<T: Element> fmt::Debug for Normed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Normed")
            .field("written", &self.written)
            .field("out", &self.out)
            .finish_non_exhaustive()
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. The memory is rows as long as `weight`. `residual` becomes
    /// itself and the sum of everybody's memory, which stays as it is, and `out` the RMSNorm of that: each
    /// row over the root of `epsilon` and the mean of its squares, times `weight`. `residual` and `out` are
    /// as long as the memory; ranks that give the same residual, weight and epsilon get the same bits, by
    /// every algorithm.
    ///
    /// After a failure `residual` and `out` have rows from before and rows from after: restore them before
    /// it is done again.
    ///
    /// `bf16`, `f16` and `f32`. A row has a multiple of 16 bytes, 32 KiB at most, and everything begins at a
    /// multiple of 16 bytes. `out` is what [`Normed`] can be made of: memory of the same type, or fp8. Where
    /// kernels do not reach everybody's memory, NCCL carries the sum, and with fp8 the memory holds it
    /// afterwards.
    ///
    /// ```no_run
    /// # use symmem::cuda::{Buffer, Stream, SymmetricMemory};
    /// # use symmem::{Result, bf16};
    /// # fn layer(partial: &SymmetricMemory<bf16>, weight: &Buffer<bf16>, residual: &mut Buffer<bf16>,
    /// #     out: &mut Buffer<bf16>, stream: &Stream) -> Result<()> {
    /// partial.all_reduce_rms_norm(residual, weight, 1e-5, out, stream)
    /// # }
    /// ```
    pub fn all_reduce_rms_norm<'a>(
        &self,
        residual: impl Into<DeviceSliceMut<'a, T>>,
        weight: impl Into<DeviceSlice<'a, T>>,
        epsilon: f32,
        out: impl Into<Normed<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let weight = weight.into();
        let norm = RmsNorm::new(weight.len(), epsilon).weight(weight).residual(residual);
        self.all_reduce_rms_norm_with(norm, out, stream)
    }

    /// [`SymmetricMemory::all_reduce_rms_norm`] as `norm` says: without residual or weight, of private
    /// memory, an average, or [unfused](RmsNorm::unfused). Unfused with fp8, this memory holds the sum
    /// afterwards.
    ///
    /// ```no_run
    /// # use symmem::cuda::{Buffer, Normed, RmsNorm, Stream, SymmetricMemory};
    /// # use symmem::{F8E4M3, Result, bf16};
    /// # fn layer(partial: &SymmetricMemory<bf16>, weight: &Buffer<bf16>, out: &mut Buffer<F8E4M3>,
    /// #     scales: &mut Buffer<f32>, stream: &Stream) -> Result<()> {
    /// let norm = RmsNorm::new(8192, 1e-5).weight(weight);
    /// partial.all_reduce_rms_norm_with(norm, Normed::fp8_by_row(out, scales), stream)
    /// # }
    /// ```
    pub fn all_reduce_rms_norm_with<'a>(
        &self,
        norm: RmsNorm<'a, T>,
        out: impl Into<Normed<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let out = out.into();
        self.told(OP, stream, || {
            let work = self.rows_to_normalise(&norm, &out)?;
            self.region().all_reduce_rms_norm(&work, stream)
        })
    }

    /// What the engine is to do, once everything is checked.
    fn rows_to_normalise<'a>(
        &self,
        norm: &RmsNorm<'a, T>,
        out: &Normed<'a, T>,
    ) -> Result<RowsToNormalise<'a>> {
        let rows = self.check_rows(norm.columns)?;
        let scales = if out.written == Written::Fp8ByRow { rows } else { 1 };
        let parts = [
            (Some(out.out), self.len()),
            (norm.residual, self.len()),
            (norm.input, self.len()),
            (norm.weight, norm.columns),
            (out.scales, scales),
        ];
        for (part, len) in parts.iter().filter_map(|(part, len)| Some((part.as_ref()?, *len))) {
            self.check_norm_part(part, len)?;
        }
        check_norm_parts_apart(&parts.map(|(part, _)| part), out.written)?;
        let place = |part: Option<NormPart<'a>>| part.map_or(OwnedAddress::bare(0), |part| part.place);
        Ok(RowsToNormalise {
            reduce: norm.reduce,
            dtype: T::DTYPE,
            rows,
            columns: norm.columns,
            epsilon: norm.epsilon,
            input: norm.input.map_or(self.region().own_place(), |input| input.place),
            residual: place(norm.residual),
            weight: place(norm.weight),
            scales: place(out.scales),
            out: out.out.place,
            written: out.written,
            is_fused: norm.is_fused,
        })
    }

    /// How many rows of `columns` elements this memory is.
    fn check_rows(&self, columns: usize) -> Result<usize> {
        let (len, row) = (self.len(), columns.saturating_mul(size_of::<T>()));
        if !len.is_multiple_of(columns) {
            return Err(Error::invalid(OP.name(), format!("{len} elements are no rows of {columns}")));
        }
        if columns > 0 && (!row.is_multiple_of(UNIT) || row > MAX_ROW) {
            let problem = format!(
                "a row has {row} bytes. Hint: on a device it can have a multiple of {UNIT}, up to {MAX_ROW}"
            );
            return Err(Error::invalid(OP.name(), problem));
        }
        if len > 0 {
            check_aligned("symmetric memory", self.region().own_address())?;
        }
        Ok(len.checked_div(columns).unwrap_or(0))
    }

    /// An error unless `part` has `len` elements, is on this device, begins at a unit, and lies outside of
    /// this memory.
    fn check_norm_part(&self, part: &NormPart<'_>, len: usize) -> Result<()> {
        let what = part.what;
        if part.len != len {
            let problem = format!("it has {} elements, {len} are needed. Hint: cut it with slice", part.len);
            return Err(Error::invalid(what, problem));
        }
        self.engine().check_memory(what, part.device)?;
        if part.overlaps(self.region().own_address(), self.region().bytes) {
            return Err(Error::invalid(what, "it overlaps the symmetric memory, which peers read meanwhile"));
        }
        // Scales are read and written one by one.
        if what.starts_with("scale") { Ok(()) } else { check_aligned(what, part.place.address) }
    }
}

fn check_aligned(what: &'static str, address: u64) -> Result<()> {
    if address.is_multiple_of(UNIT as u64) {
        return Ok(());
    }
    let problem =
        format!("it does not begin at a multiple of {UNIT} bytes. Hint: allocate it, or cut it there");
    Err(Error::invalid(what, problem))
}

/// An error if what is written overlaps anything else. Plain rows may become what they were made of.
fn check_norm_parts_apart(parts: &[Option<NormPart<'_>>], written: Written) -> Result<()> {
    let parts: Vec<&NormPart<'_>> = parts.iter().flatten().collect();
    for (at, one) in parts.iter().enumerate() {
        for other in &parts[at + 1..] {
            let in_place = written == Written::Plain
                && (one.what, other.what) == ("out", "input")
                && one.place.address == other.place.address;
            let shared = one.overlaps(other.place.address, other.bytes) && !in_place;
            if shared && (one.is_written || other.is_written) {
                return Err(Error::invalid(one.what, format!("it overlaps the {}", other.what)));
            }
        }
    }
    Ok(())
}
