//! The arguments of a collective: checked in the reference's order and words, and carried out as one group of
//! calls.
//!
//! The reference knows one process, where as many arrays are passed as there are ranks, and counts those.
//! With communicators of the caller's that reach other processes it is their ranks that count: roots are
//! theirs, and so many parts has an output.

use std::ffi::c_int;

use pyo3::prelude::*;
use symmem::cuda::{Owner, Stream};
use symmem::nccl::{Communicator, GroupCall};

use super::communicator::{self, with_cached};
use super::item::{NcclArray, items};
use crate::cuda::{device, stream};
use crate::error::{raise, refused};
use crate::interrupt::blocking;
use crate::registry::Registered;

/// What all collectives are given.
pub(super) struct NcclCall<'py> {
    inputs: Vec<NcclArray<'py>>,
    /// None: the current ones.
    streams: Option<Vec<Bound<'py, PyAny>>>,
    /// None: those that are kept for the devices.
    communicators: Option<Vec<Communicator>>,
}

/// One rank's part of a collective.
pub(super) struct RankPart<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) stream: &'a Stream,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl<'py> NcclCall<'py> {
    pub(super) fn new(
        inputs: &Bound<'py, PyAny>,
        streams: Option<&Bound<'py, PyAny>>,
        comms: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let inputs = items(inputs)?;
        let streams = streams.map(|streams| unpack_streams(streams, inputs.len())).transpose()?;
        let communicators = comms.map(|comms| communicator::unpack(comms, inputs.len())).transpose()?;
        Ok(Self { inputs, streams, communicators })
    }

    /// Number of ranks.
    pub(super) fn world(&self) -> usize {
        match self.communicators.as_deref() {
            Some([first, ..]) => first.size(),
            _ => self.inputs.len(),
        }
    }

    /// Elements of an input.
    pub(super) fn count(&self) -> usize {
        self.inputs.first().map_or(0, |input| input.len)
    }

    /// NCCL's number for the type of all arrays.
    pub(super) fn dtype(&self) -> PyResult<c_int> {
        let first = self.inputs.first().ok_or_else(nothing)?;
        first.number.ok_or_else(|| refused(format!("Unconvertible NCCL type {}", first.dtype)))
    }

    /// `root`, if it is a rank.
    pub(super) fn root(&self, root: i64) -> PyResult<usize> {
        let found = usize::try_from(root).ok().filter(|root| *root < self.world());
        found.ok_or_else(|| refused(format!("invalid root: {root} of {} ranks", self.world())))
    }

    /// Checks inputs and their outputs, which are `times_in / times_out` as long.
    pub(super) fn check_outputs(
        &self,
        outputs: &[NcclArray<'_>],
        times_in: usize,
        times_out: usize,
    ) -> PyResult<()> {
        if self.inputs.is_empty() {
            return Err(nothing());
        }
        if self.inputs.len() != outputs.len() {
            return Err(refused(format!(
                "inputs and outputs sequences have to be of the same length, but got input of length {} and output of length {}",
                self.inputs.len(),
                outputs.len()
            )));
        }
        for (at, output) in outputs.iter().enumerate() {
            self.check_input(at)?;
            self.check_against(at, output, times_in, times_out)?;
            self.check_alone(at)?;
        }
        self.check_devices()
    }

    /// Checks inputs that are outputs too.
    pub(super) fn check_in_place(&self) -> PyResult<()> {
        self.check_outputs(&self.inputs, 1, 1)
    }

    /// Checks inputs, and the output of `root` if that rank is here; none: the root's input.
    pub(super) fn check_output(&self, output: Option<&NcclArray<'_>>, root: usize) -> PyResult<()> {
        if self.inputs.is_empty() {
            return Err(nothing());
        }
        for (at, input) in self.inputs.iter().enumerate() {
            self.check_input(at)?;
            if self.rank(at) == root {
                self.check_against(at, output.unwrap_or(input), 1, 1)?;
            }
            self.check_alone(at)?;
        }
        self.check_devices()
    }

    fn rank(&self, at: usize) -> usize {
        self.communicators.as_ref().map_or(at, |communicators| communicators[at].rank())
    }

    fn check_input(&self, at: usize) -> PyResult<()> {
        let (input, first) = (&self.inputs[at], &self.inputs[0]);
        self.check_one(input)?;
        if input.len != first.len {
            let detail = format!("input {at} has {}, input 0 {}", input.len, first.len);
            return Err(refused(format!("all inputs must have the same number of elements: {detail}")));
        }
        Ok(())
    }

    /// What holds for every array, be it input or output.
    fn check_one(&self, item: &NcclArray<'_>) -> PyResult<()> {
        if item.ordinal().is_none() {
            let place = item.place.map_or("no device (it is sparse)".to_owned(), |place| place.to_string());
            return Err(refused(format!(
                "input and output elements have to be cuda dense Tensors: NCCL only supports CUDA tensors, but got a tensor on {place}"
            )));
        }
        let first = &self.inputs[0];
        if item.dtype != first.dtype {
            let detail = format!("there are {} and {}", first.dtype, item.dtype);
            return Err(refused(format!(
                "all inputs and outputs must be of the same Tensor dtype: {detail}"
            )));
        }
        if !item.dense {
            return Err(refused("all inputs and outputs have to be contiguous"));
        }
        Ok(())
    }

    fn check_against(
        &self,
        at: usize,
        output: &NcclArray<'_>,
        times_in: usize,
        times_out: usize,
    ) -> PyResult<()> {
        self.check_one(output)?;
        let input = &self.inputs[at];
        if input.ordinal() != output.ordinal() {
            return Err(refused("input and output must be on the same device"));
        }
        let (have, need) = (output.len.checked_mul(times_out), self.count().checked_mul(times_in));
        if have.is_none() || have != need {
            let text = "output must be of size input_size * size_multiplier";
            let (out, count) = (output.len, self.count());
            return Err(refused(format!("{text}: {out} is not {count} * {times_in} / {times_out}")));
        }
        if !output.writable {
            return Err(refused("an output is read-only, or does not say that it may be written"));
        }
        Ok(())
    }

    fn check_alone(&self, at: usize) -> PyResult<()> {
        let device = self.inputs[at].ordinal();
        if self.inputs[..at].iter().any(|other| other.ordinal() == device) {
            return Err(refused("inputs must be on unique devices"));
        }
        Ok(())
    }

    /// The caller's communicators must be on the devices of the inputs.
    fn check_devices(&self) -> PyResult<()> {
        let Some(communicators) = &self.communicators else { return Ok(()) };
        for (at, (input, communicator)) in self.inputs.iter().zip(communicators).enumerate() {
            let theirs = communicator.device().ordinal();
            if let Some(ordinal) = input.ordinal()
                && usize::try_from(ordinal) != Ok(theirs)
            {
                let problem =
                    format!("communicator {at} is on cuda:{theirs}, and its input on cuda:{ordinal}");
                return Err(refused(problem));
            }
        }
        Ok(())
    }

    /// Makes `each` of every rank's part, as one group. Everything was checked; `outputs`: none where they
    /// are the inputs.
    pub(super) fn run(
        self,
        py: Python<'py>,
        outputs: Option<&[NcclArray<'_>]>,
        each: impl Fn(&RankPart<'_>) -> symmem::Result<()> + Send + Sync,
    ) -> PyResult<()> {
        let ordinals: Vec<i32> = self.inputs.iter().filter_map(NcclArray::ordinal).collect();
        let streams = self.open_streams(py, &ordinals)?;
        let from: Vec<u64> = self.inputs.iter().map(|input| input.address).collect();
        let to: Vec<u64> = outputs.unwrap_or(&self.inputs).iter().map(|output| output.address).collect();
        let given = self.communicators;
        let issue = |communicators: &[Communicator]| {
            let group = GroupCall::start()?;
            for (at, communicator) in communicators.iter().enumerate() {
                keep_if_captured(&streams[at], [from[at], to[at]])?;
                each(&RankPart { communicator, stream: &streams[at], from: from[at], to: to[at] })?;
            }
            group.end()
        };
        blocking(py, || match given {
            Some(communicators) => issue(&communicators),
            None => with_cached(&ordinals, issue),
        })
        // `self.inputs` live until here: the arrays must not go before the calls were made.
    }

    fn open_streams(&self, py: Python<'py>, ordinals: &[i32]) -> PyResult<Vec<Stream>> {
        let open = |(at, ordinal): (usize, &i32)| {
            let device = py.detach(|| device(*ordinal)).map_err(raise)?;
            stream(py, &device, self.streams.as_ref().map(|streams| &streams[at]))
        };
        ordinals.iter().enumerate().map(open).collect()
    }
}

/// Graphs keep memory of this module's that their operations are given.
fn keep_if_captured(stream: &Stream, addresses: [u64; 2]) -> symmem::Result<()> {
    let mut kept = addresses.into_iter().filter_map(|address| Registered(address).keep());
    kept.try_for_each(|what| stream.keep_in_capture(what).map(drop))
}

fn unpack_streams<'py>(streams: &Bound<'py, PyAny>, count: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let Ok(iterator) = streams.try_iter() else {
        return Err(refused("streams have to be a sequence, with a stream or None for each input"));
    };
    let streams = iterator.collect::<PyResult<Vec<_>>>()?;
    if streams.len() != count {
        let detail = format!("{} and {count}", streams.len());
        return Err(refused(format!("number of streams is not equal to number of inputs: {detail}")));
    }
    Ok(streams)
}

#[cold]
fn nothing() -> PyErr {
    refused("input sequence can't be empty")
}
