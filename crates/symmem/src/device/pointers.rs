//! Tables of addresses in device memory, for kernels: in what this rank's pad leaves of its last granule.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::Device;
use crate::provider::{LocalMemory, write_on};
use crate::{Error, Result};

/// Where the tables begin after the pad: a multiple of this.
const ALIGNMENT: usize = 256;
/// Tables that have room in any case.
const TABLES: usize = 16;

/// Those of one rendezvous.
#[derive(Debug)]
pub(crate) struct Pointers {
    device: Device,
    memory: Arc<dyn LocalMemory>,
    tables: Mutex<PointerTables>,
}

#[derive(Debug)]
struct PointerTables {
    /// The next free byte.
    next: usize,
    /// Those that were made, by what is in them. None is ever overwritten: a kernel may still read it.
    made: HashMap<Vec<u64>, u64>,
}

impl Pointers {
    /// Bytes of a pad of `pad_bytes` with tables of `world` ranks behind it.
    pub(crate) fn bytes_with(pad_bytes: usize, world: usize) -> usize {
        pad_bytes.next_multiple_of(ALIGNMENT) + TABLES * size_of::<u64>() * world
    }

    /// Behind the `pad_bytes` of a pad that is in `memory`.
    pub(crate) fn new(device: &Device, memory: Arc<dyn LocalMemory>, pad_bytes: usize) -> Self {
        let tables = PointerTables { next: pad_bytes.next_multiple_of(ALIGNMENT), made: HashMap::new() };
        Self { device: device.clone(), memory, tables: Mutex::new(tables) }
    }

    /// The device address of a table of `addresses`, which is made if there is none.
    pub(crate) fn table_of(&self, addresses: &[u64]) -> Result<u64> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = tables.made.get(addresses) {
            return Ok(*address);
        }
        let start = tables.next;
        let end = start + size_of_val(addresses);
        if end > self.memory.mapped_bytes() {
            let problem = format!(
                "{} are there already and no more fit. Hint: keep and reuse slices, or pass peer_ptrs by value",
                tables.made.len()
            );
            return Err(Error::invalid("tables of addresses on the device", problem));
        }
        write_on(&self.device, &*self.memory, start, bytemuck::cast_slice(addresses))?;
        let address = self.memory.address() + start as u64;
        tables.next = end;
        tables.made.insert(addresses.to_vec(), address);
        Ok(address)
    }
}
