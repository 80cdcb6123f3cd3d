//! The neutral form of host memory.

use std::time::Duration;

use symmem::tuning::{Algorithm, Collective};
use symmem::{Allocation, Cause, DType, Group, ReduceOp, Result, Symmetric, SymmetricMemory};

use crate::suite::run::patience;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::value::Value;

/// A rank in host memory.
pub(crate) struct Host {
    pub(crate) group: Group,
}

impl Host {
    pub(crate) fn new(group: &Group) -> Self {
        Self { group: group.within(patience()) }
    }
}

impl Seat for Host {
    type Block<T: Value> = Allocation<T>;
    type Memory<T: Value> = SymmetricMemory<T>;

    fn soon(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn group(&self) -> &Group {
        &self.group
    }

    fn again(&self) -> Result<Self> {
        Ok(Self { group: self.group.try_clone()? })
    }

    fn with_deadline(&self, deadline: Duration) -> Result<Self> {
        Ok(Self { group: self.group.try_clone()?.within(deadline) })
    }

    fn among(&self, group: Group, _: &[usize]) -> Result<Self> {
        Ok(Self { group })
    }

    fn alloc<T: Value>(&self, len: usize) -> Result<Allocation<T>> {
        self.group.alloc(len)
    }

    fn reaches(&self, _: usize) -> bool {
        true
    }

    fn reaches_pad(&self, _: usize) -> bool {
        true
    }

    fn works(&self) -> bool {
        true
    }

    fn meet(&self) -> Result<()> {
        self.group.barrier()
    }

    fn failure(&self) -> Option<(usize, Cause)> {
        self.group.failure()
    }

    fn reduces(&self, dtype: DType, op: ReduceOp) -> Option<bool> {
        let is_bitwise = matches!(op, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor);
        Some(match dtype {
            DType::Bool => is_bitwise,
            _ => !(dtype.is_float() && is_bitwise),
        })
    }

    fn reduces_columns(&self) -> bool {
        true
    }

    fn channels(&self, pad_bytes: usize) -> usize {
        pad_bytes / 4 / self.world()
    }

    fn algorithms(&self) -> Vec<&'static str> {
        Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect()
    }

    fn is_choosy(&self) -> bool {
        true
    }

    fn has_multicast(&self) -> bool {
        self.group.context().has_multicast_support()
    }

    fn slack(&self) -> usize {
        0
    }

    fn fail_call(&self, _: u64) {
        #[cfg(feature = "faults")]
        symmem::fault::inject(symmem::fault::FailingCall::Map, libc::ENOMEM);
    }

    /// What is injected fails the next rendezvous, whatever it is, so nothing is left.
    fn fail_no_more(&self) {}
}

impl<T: Value> Block<T, Host> for Allocation<T> {
    fn len(&self) -> usize {
        <Allocation<T>>::len(self)
    }

    fn write(&mut self, values: &[T]) -> Result<()> {
        self.local_mut()?.copy_from_slice(values);
        Ok(())
    }

    fn read(&self) -> Result<Vec<T>> {
        Ok(self.local()?.to_vec())
    }

    fn salvage(&self) -> Result<Vec<T>> {
        Ok(<Allocation<T>>::salvage(self))
    }

    fn rendezvous(&self, seat: &Host) -> Result<SymmetricMemory<T>> {
        <Allocation<T>>::rendezvous(self, &seat.group)
    }

    fn rendezvous_at(&self, seat: &Host, offset: usize) -> Result<SymmetricMemory<T>> {
        <Allocation<T>>::rendezvous_at(self, &seat.group, offset)
    }

    fn rendezvous_as<U: Value>(&self, seat: &Host, offset: usize, len: usize) -> Result<SymmetricMemory<U>> {
        <Allocation<T>>::rendezvous_as(self, &seat.group, offset, len)
    }
}

/// `len` zeros, for an output.
fn zeros<T: Value>(len: usize) -> Vec<T> {
    vec![T::of(0); len]
}

impl<T: Value> Memory<T> for SymmetricMemory<T> {
    fn rank(&self) -> usize {
        <SymmetricMemory<T>>::rank(self)
    }

    fn world_size(&self) -> usize {
        <SymmetricMemory<T>>::world_size(self)
    }

    fn len(&self) -> usize {
        <SymmetricMemory<T>>::len(self)
    }

    fn offset(&self) -> usize {
        <SymmetricMemory<T>>::offset(self)
    }

    fn buffer_size(&self) -> usize {
        <SymmetricMemory<T>>::buffer_size(self)
    }

    fn signal_pad_size(&self) -> usize {
        <SymmetricMemory<T>>::signal_pad_size(self)
    }

    fn peer_ptr(&self, peer: usize) -> Result<u64> {
        let address = <SymmetricMemory<T>>::peer_ptr(self, peer)? as u64;
        assert_eq!(address, self.peer(peer)?.as_ptr() as u64);
        Ok(address)
    }

    fn pad_ptr(&self, peer: usize) -> Result<u64> {
        let address = <SymmetricMemory<T>>::pad_ptr(self, peer)? as u64;
        assert_eq!(address, self.signal_pad(peer)?.as_ptr() as u64);
        Ok(address)
    }

    fn reaches(&self, peer: usize) -> Result<bool> {
        <SymmetricMemory<T>>::reaches(self, peer)
    }

    fn multicast_ptr(&self) -> Option<u64> {
        <SymmetricMemory<T>>::multicast_ptr(self)
    }

    fn anywhere(&mut self) -> impl Symmetric<Element = T> {
        self.same()
    }

    fn same(&self) -> Self {
        self.on_terms_of(self.group())
    }

    fn slice(&self, start: usize, len: usize) -> Result<Self> {
        <SymmetricMemory<T>>::slice(self, start..start.saturating_add(len))
    }

    fn write(&mut self, values: &[T]) -> Result<()> {
        self.local_mut()?.copy_from_slice(values);
        Ok(())
    }

    fn read(&self) -> Result<Vec<T>> {
        Ok(self.local()?.to_vec())
    }

    fn salvage(&self) -> Result<Vec<T>> {
        Ok(<SymmetricMemory<T>>::salvage(self))
    }

    fn get(&self, peer: usize, start: usize, len: usize) -> Result<Vec<T>> {
        let mut out = zeros(len);
        <SymmetricMemory<T>>::get(self, peer, start, &mut out)?;
        Ok(out)
    }

    fn pad(&self) -> Result<Vec<u32>> {
        self.signal_pad(<SymmetricMemory<T>>::rank(self))?.to_vec()
    }

    fn put_signal(&self, peer: usize, channel: usize) -> Result<()> {
        <SymmetricMemory<T>>::put_signal(self, peer, channel)
    }

    fn wait_signal(&self, peer: usize, channel: usize) -> Result<()> {
        <SymmetricMemory<T>>::wait_signal(self, peer, channel)
    }

    fn barrier(&self, channel: usize) -> Result<()> {
        <SymmetricMemory<T>>::barrier(self, channel)
    }

    fn using(&self, algorithm: &str) -> Self {
        <SymmetricMemory<T>>::using(self, algorithm.parse().expect("an algorithm of the table"))
    }

    fn carries(&self, algorithm: &str, collective: &str) -> bool {
        let all =
            Collective::ALL.into_iter().find(|row| row.name() == collective).map(Collective::algorithms);
        all.is_some_and(|all| all.iter().any(|row| row.name() == algorithm))
    }

    fn all_reduce(&mut self, op: ReduceOp) -> Result<()> {
        <SymmetricMemory<T>>::all_reduce(self, op)
    }

    fn all_reduce_out(&mut self, op: ReduceOp) -> Result<Vec<T>> {
        let mut out = zeros(<SymmetricMemory<T>>::len(self));
        <SymmetricMemory<T>>::all_reduce_out(self, op, &mut out)?;
        Ok(out)
    }

    fn all_reduce_private(&mut self, op: ReduceOp, own: &[T]) -> Result<Vec<T>> {
        let mut own = own.to_vec();
        self.group().all_reduce(op, &mut own)?;
        Ok(own)
    }

    fn reduce(&mut self, op: ReduceOp, root: usize) -> Result<Option<Vec<T>>> {
        let mut out = zeros(<SymmetricMemory<T>>::len(self));
        <SymmetricMemory<T>>::reduce(self, op, root, &mut out)?;
        Ok((<SymmetricMemory<T>>::rank(self) == root).then_some(out))
    }

    fn reduce_scatter(&mut self, op: ReduceOp) -> Result<Vec<T>> {
        let mut out = zeros(<SymmetricMemory<T>>::len(self) / SymmetricMemory::world_size(self));
        <SymmetricMemory<T>>::reduce_scatter(self, op, &mut out)?;
        Ok(out)
    }

    fn reduce_scatter_columns(&mut self, op: ReduceOp, width: usize) -> Result<Vec<T>> {
        let mut out = zeros(<SymmetricMemory<T>>::len(self) / SymmetricMemory::world_size(self));
        <SymmetricMemory<T>>::reduce_scatter_columns(self, op, width, &mut out)?;
        Ok(out)
    }

    fn all_gather(&mut self) -> Result<Vec<T>> {
        let mut out = zeros(<SymmetricMemory<T>>::len(self) * SymmetricMemory::world_size(self));
        <SymmetricMemory<T>>::all_gather(self, &mut out)?;
        Ok(out)
    }

    fn all_to_all(&mut self) -> Result<Vec<T>> {
        let mut out = zeros(<SymmetricMemory<T>>::len(self));
        <SymmetricMemory<T>>::all_to_all(self, &mut out)?;
        Ok(out)
    }

    fn broadcast(&mut self, root: usize) -> Result<()> {
        <SymmetricMemory<T>>::broadcast(self, root)
    }

    fn gather(&mut self, root: usize) -> Result<Option<Vec<T>>> {
        let is_root = <SymmetricMemory<T>>::rank(self) == root;
        let len = <SymmetricMemory<T>>::len(self) * SymmetricMemory::world_size(self);
        let mut out = zeros(if is_root { len } else { 0 });
        <SymmetricMemory<T>>::gather(self, root, &mut out)?;
        Ok(is_root.then_some(out))
    }

    fn scatter(&mut self, root: usize) -> Result<Vec<T>> {
        let mut out = zeros(<SymmetricMemory<T>>::len(self) / SymmetricMemory::world_size(self));
        <SymmetricMemory<T>>::scatter(self, root, &mut out)?;
        Ok(out)
    }

    fn close(self) -> Result<()> {
        <SymmetricMemory<T>>::close(self)
    }
}
