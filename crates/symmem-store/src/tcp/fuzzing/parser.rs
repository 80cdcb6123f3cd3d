//! The parser: a stream gives the same requests however it is cut, and holds no more than it may.

use crate::tcp::parser::{Parser, Request, RequestError};
use crate::tcp::server::ServerLimits;

/// What all parts of a connection may cost beyond its limit: one part's overhead.
const SLACK: usize = 64;

pub(crate) fn run(bytes: &[u8]) {
    // The first byte says where to cut, and how tight the limits are.
    let Some((choice, stream)) = bytes.split_first() else { return };
    let limits = if choice & 1 == 0 { super::script::tight() } else { ServerLimits::default() };
    let whole = parse(&[stream], &limits);
    let (head, tail) = stream.split_at(usize::from(*choice) * stream.len() / 256);
    assert_eq!(parse(&[head, tail], &limits), whole);
    let pieces: Vec<&[u8]> = stream.chunks(1 + usize::from(choice >> 5)).collect();
    assert_eq!(parse(&pieces, &limits), whole);
}

/// All requests of a stream that arrives in `pieces`, and how it ended.
fn parse(pieces: &[&[u8]], limits: &ServerLimits) -> (Vec<Request>, Option<RequestError>) {
    let mut parser = Parser::default();
    let mut requests = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        loop {
            let next = parser.next(&mut input, limits);
            assert!(parser.held() <= limits.max_connection_bytes + SLACK);
            match next {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(refusal) => return (requests, Some(refusal)),
            }
        }
        assert!(input.is_empty(), "the parser left input it could not use");
    }
    (requests, None)
}

/// Every request there is, behind each kind of first byte.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let streams = super::script::streams();
    [0, 1, 0x80, 0xff]
        .into_iter()
        .flat_map(|choice| streams.iter().map(move |stream| [&[choice], &stream[..]].concat()))
        .collect()
}
