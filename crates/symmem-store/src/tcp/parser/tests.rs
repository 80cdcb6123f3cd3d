//! The parser against bytes of any kind, cut in any way. The corpus in `tests/corpus` is replayed too.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

/// Small enough for random lengths to hit every limit.
fn tight() -> ServerLimits {
    ServerLimits {
        max_keys_per_request: 40,
        max_key_len: 60,
        max_value_len: 300,
        max_connection_bytes: 2000,
        ..ServerLimits::default()
    }
}

/// All requests of a stream that arrives in `pieces`, and how it ended.
fn parse(pieces: &[&[u8]], limits: &ServerLimits) -> (Vec<Request>, Option<RequestError>) {
    let mut parser = Parser::default();
    let mut requests = Vec::new();
    let mut fed = 0;
    for piece in pieces {
        fed += piece.len();
        let mut input = *piece;
        loop {
            let next = parser.next(&mut input, limits);
            assert_memory(&parser, fed, limits);
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

/// What is allocated follows what has arrived, never what was announced, and stays within the limit.
fn assert_memory(parser: &Parser, fed: usize, limits: &ServerLimits) {
    assert!(parser.held() <= limits.max_connection_bytes + PART_OVERHEAD);
    let Some(draft) = &parser.draft else { return };
    let allocated: usize = draft.parts.iter().map(Vec::capacity).sum();
    assert!(allocated <= 2 * fed + 8 * draft.parts.len(), "{allocated} bytes allocated for {fed}");
    assert!(draft.parts.capacity() <= 4 + 2 * draft.parts.len());
}

/// The same stream cut at `cuts`.
fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort();
    at.windows(2).map(|window| &bytes[window[0]..window[1]]).collect()
}

const VALIDATE: &[u8] = b"\x00\xCE\xF7\x85\x3C";

fn string(limit: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..limit)
        .prop_map(|bytes| [&(bytes.len() as u64).to_le_bytes()[..], &bytes].concat())
}

/// Something like a request: a type, maybe a count, some strings.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let strings = prop::collection::vec(string(70), 0..4);
    (0u8..20, prop::option::of(0u64..5), strings).prop_map(|(kind, count, strings)| {
        let mut bytes = vec![kind];
        bytes.extend(count.into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(strings.concat());
        bytes
    })
}

/// Mostly streams that begin well.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..300);
    let tail = prop_oneof![noise, prop::collection::vec(plausible(), 0..8).prop_map(|parts| parts.concat())];
    (prop::bool::weighted(0.9), tail).prop_map(
        |(validated, tail)| {
            if validated { [VALIDATE, &tail].concat() } else { tail }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_cut_of_any_stream_gives_the_same_requests(
        bytes in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let whole = parse(&[&bytes], &tight());
        prop_assert_eq!(&parse(&cut(&bytes, &cuts), &tight()), &whole);
        prop_assert_eq!(&parse(&bytes.chunks(1).collect::<Vec<_>>(), &tight()), &whole);
    }
}

#[test]
fn the_corpus_ends_as_its_names_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = fs::read(&path).unwrap();
        let whole = parse(&[&bytes], &ServerLimits::default());
        assert_eq!(whole.1.is_some(), name.starts_with("bad-"), "{name}: {:?}", whole.1);
        for middle in 0..bytes.len().min(300) {
            let (head, tail) = bytes.split_at(middle);
            assert_eq!(parse(&[head, tail], &ServerLimits::default()), whole, "{name} cut at {middle}");
        }
        seen += 1;
    }
    assert!(seen >= 15);
}

#[test]
fn a_length_is_refused_with_its_last_byte() {
    let bytes = [VALIDATE, &[3], &8193u64.to_le_bytes()].concat();
    let (last, rest) = bytes.split_last().unwrap();
    let mut parser = Parser::default();
    let limits = ServerLimits::default();
    let mut input = rest;
    assert!(matches!(parser.next(&mut input, &limits), Ok(Some(_))));
    assert_eq!(parser.next(&mut input, &limits), Ok(None));
    assert_eq!(parser.next(&mut &[*last][..], &limits), Err(RequestError::KeyTooLong(8193)));
}

#[test]
fn many_parts_together_may_not_exceed_what_a_connection_may_hold() {
    let mut bytes = [VALIDATE, &[6], &40u64.to_le_bytes()].concat();
    for _ in 0..40 {
        bytes.extend(60u64.to_le_bytes());
        bytes.extend([b'k'; 60]);
    }
    assert_eq!(parse(&[&bytes], &tight()).1, Some(RequestError::HoldsTooMuch));
}
