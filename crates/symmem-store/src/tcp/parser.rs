//! Takes requests out of a byte stream that may be cut anywhere and may be hostile.
//!
//! The parser keeps its place between calls, so each byte is looked at once however the stream was cut. It
//! refuses a length as soon as it has read it and stores only bytes that have arrived: a claim costs nothing.

use crate::tcp::protocol::{MAGIC, Query};
use crate::tcp::server::ServerLimits;

/// What a part costs beside its bytes, roughly.
const PART_OVERHEAD: usize = 64;

/// Why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the first request is of type {0}, not VALIDATE")]
    NotValidated(u8),
    #[error("VALIDATE with the wrong magic {0:#x}")]
    WrongMagic(u64),
    #[error("request type {0} is unknown")]
    UnknownQuery(u8),
    #[error("{0} keys in one request")]
    TooManyKeys(u64),
    #[error("a key of {0} bytes")]
    KeyTooLong(u64),
    #[error("a value of {0} bytes")]
    ValueTooLong(u64),
    #[error("the connection holds too much")]
    HoldsTooMuch,
    #[error("the store is full")]
    StoreFull,
    #[error("the counter holds something that is not a number")]
    NotNumeric,
}

/// A whole request: as many parts as its kind has keys and values, in order, and its number if it has one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) query: Query,
    pub(crate) parts: Vec<Vec<u8>>,
    /// The u32 or the bits of the i64.
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Key,
    Value,
    U32,
    I64,
}

/// The fields of a request, and whether it starts with a count and repeats them so often.
fn layout(query: Query) -> (&'static [Field], bool) {
    use Field::{I64, Key, U32, Value};
    match query {
        Query::Validate | Query::Ping => (&[U32], false),
        Query::Set | Query::Append | Query::QueuePush => (&[Key, Value], false),
        Query::CompareSet => (&[Key, Value, Value], false),
        Query::Get | Query::Delete | Query::QueuePop | Query::QueueLen => (&[Key], false),
        Query::Add | Query::Barrier => (&[Key, I64], false),
        Query::Check | Query::Wait | Query::MultiGet => (&[Key], true),
        Query::MultiSet => (&[Key, Value], true),
        Query::NumKeys | Query::CancelWait | Query::ListKeys => (&[], false),
    }
}

/// Where the parser of one connection stands.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    validated: bool,
    draft: Option<Draft>,
    integer: Integer,
}

impl Parser {
    /// Whether the connection has said VALIDATE.
    pub(crate) fn validated(&self) -> bool {
        self.validated
    }

    /// Bytes held for a request that is not whole yet.
    pub(crate) fn held(&self) -> usize {
        self.draft.as_ref().map_or(0, |draft| draft.held)
    }

    /// Takes bytes off the front of `input` until a request is whole (`Some`) or the input is used up
    /// (`None`).
    pub(crate) fn next(
        &mut self,
        input: &mut &[u8],
        limits: &ServerLimits,
    ) -> Result<Option<Request>, RequestError> {
        loop {
            let Some(draft) = &mut self.draft else {
                let Some((&kind, rest)) = input.split_first() else { return Ok(None) };
                *input = rest;
                self.draft = Some(self.begin(kind)?);
                continue;
            };
            if draft.left == Some(0) {
                return self.finish();
            }
            if !draft.step(input, &mut self.integer, limits)? {
                return Ok(None);
            }
        }
    }

    fn begin(&self, kind: u8) -> Result<Draft, RequestError> {
        match Query::from_byte(kind) {
            Some(query) if self.validated || query == Query::Validate => Ok(Draft::new(query)),
            Some(_) => Err(RequestError::NotValidated(kind)),
            None => Err(RequestError::UnknownQuery(kind)),
        }
    }

    fn finish(&mut self) -> Result<Option<Request>, RequestError> {
        let Some(Draft { query, parts, number, .. }) = self.draft.take() else { return Ok(None) };
        if query == Query::Validate && number != u64::from(MAGIC) {
            return Err(RequestError::WrongMagic(number));
        }
        self.validated = true;
        Ok(Some(Request { query, parts, number }))
    }
}

/// A request that is not whole yet.
#[derive(Debug)]
struct Draft {
    query: Query,
    fields: &'static [Field],
    /// Fields still to come; `None` while the count is still to come.
    left: Option<u64>,
    /// The part being read lacks so many bytes.
    missing: Option<usize>,
    parts: Vec<Vec<u8>>,
    number: u64,
    held: usize,
}

impl Draft {
    fn new(query: Query) -> Self {
        let (fields, repeats) = layout(query);
        let left = (!repeats).then_some(fields.len() as u64);
        Self { query, fields, left, missing: None, parts: Vec::new(), number: 0, held: 0 }
    }

    /// Reads one integer or (the rest of) one part; false if the input ran out.
    fn step(
        &mut self,
        input: &mut &[u8],
        integer: &mut Integer,
        limits: &ServerLimits,
    ) -> Result<bool, RequestError> {
        if let Some(missing) = self.missing {
            return Ok(self.read_part(input, missing));
        }
        let Some(left) = self.left else {
            let Some(count) = integer.read(input, 8) else { return Ok(false) };
            if count > limits.max_keys_per_request {
                return Err(RequestError::TooManyKeys(count));
            }
            self.left = Some(count.saturating_mul(self.fields.len() as u64));
            return Ok(true);
        };
        // Repeated fields are whole rounds, so counting from the end finds the field.
        let field =
            self.fields[(self.fields.len() - (left as usize % self.fields.len())) % self.fields.len()];
        let width = if matches!(field, Field::U32) { 4 } else { 8 };
        let Some(number) = integer.read(input, width) else { return Ok(false) };
        match field {
            Field::U32 | Field::I64 => {
                self.number = number;
                self.left = Some(left - 1);
            }
            Field::Key if number > limits.max_key_len => return Err(RequestError::KeyTooLong(number)),
            Field::Value if number > limits.max_value_len => return Err(RequestError::ValueTooLong(number)),
            Field::Key | Field::Value => self.begin_part(number, limits)?,
        }
        Ok(true)
    }

    fn begin_part(&mut self, len: u64, limits: &ServerLimits) -> Result<(), RequestError> {
        self.held += PART_OVERHEAD;
        if len.saturating_add(self.held as u64) > limits.max_connection_bytes as u64 {
            return Err(RequestError::HoldsTooMuch);
        }
        self.parts.push(Vec::new());
        self.missing = Some(len as usize);
        Ok(())
    }

    /// Moves what has arrived into the last part; false if it is not whole.
    fn read_part(&mut self, input: &mut &[u8], missing: usize) -> bool {
        let (now, rest) = input.split_at(missing.min(input.len()));
        *input = rest;
        self.held += now.len();
        self.missing = Some(missing - now.len());
        let Some(part) = self.parts.last_mut() else { return false };
        part.extend_from_slice(now);
        if now.len() < missing {
            return false;
        }
        part.shrink_to_fit();
        self.missing = None;
        self.left = self.left.map(|left| left - 1);
        true
    }
}

/// A little-endian integer, of which some bytes have arrived.
#[derive(Debug, Default)]
struct Integer {
    value: u64,
    bytes: u32,
}

impl Integer {
    /// Takes bytes until there are `width`; then returns the integer and starts again.
    fn read(&mut self, input: &mut &[u8], width: u32) -> Option<u64> {
        while self.bytes < width {
            let (&byte, rest) = input.split_first()?;
            *input = rest;
            self.value |= u64::from(byte) << (8 * self.bytes);
            self.bytes += 1;
        }
        Some(std::mem::take(self).value)
    }
}

#[cfg(test)]
mod tests;
