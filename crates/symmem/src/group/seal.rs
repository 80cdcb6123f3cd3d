//! Seals: proof, on what ranks say through the store, that a holder of the job secret said it.
//!
//! The store is open to strangers, so with a secret everything that a rank believes from it is sealed:
//! HMAC-SHA256 over what kind of thing it is, which join or group it is for, who says it, its place in a
//! sequence, and the bytes. Used by the join and by the exchange across hosts. What it guarantees: what
//! [`Sealer::open`] returns was sealed by a rank of this job for this very place, so nothing can be forged,
//! moved, or repeated from another group. Without a secret it seals nothing.
//!
//! A hello is fresh to nobody but its sender: an old one of the same name can be repeated. It leads nowhere,
//! because everything later is sealed under the group id, which hashes the nonces of all ranks.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::sys::ids;
use crate::sys::secret::Secret;

/// Starts every sealed value: a rank without a secret knows it by that, and no plain value starts so.
const MARK: &[u8] = b"symmem sealed 1\n";
const TAG: usize = 32;
/// Bytes of a group id, which is also the fd channel's token.
pub(crate) const ID: usize = 16;

/// What a sealed value is, so that none can stand for one of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SealKind {
    Hello,
    Answer,
    Address,
    Vote,
    Part,
    Channel,
}

/// What a value claims to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) kind: SealKind,
    /// The boot name of a join, or the id of a group.
    pub(crate) scope: &'a str,
    pub(crate) sender: usize,
    pub(crate) sequence: u64,
}

impl<'a> Claim<'a> {
    /// A claim of something that a rank says once.
    pub(crate) fn once(kind: SealKind, scope: &'a str, sender: usize) -> Self {
        Self { kind, scope, sender, sequence: 0 }
    }
}

/// Why a value is not believed, as the end of a sentence about the rank it should be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsealed {
    /// It has no seal.
    #[error("its message carries no proof")]
    Missing,
    /// The seal is not the secret's, or is another value's.
    #[error("its proof is wrong")]
    Wrong,
    /// It is sealed, and this rank has no secret.
    #[error("it has a job secret and this rank has none")]
    Unexpected,
    /// It says that it is of another process than the one that is known to be that rank.
    #[error("its hello is of another process, so somebody changes what is in the store")]
    Foreign,
}

/// Seals with the job's secret, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Sealer {
    secret: Option<Secret>,
}

impl Sealer {
    pub(crate) fn new(config: &Config) -> Self {
        Self { secret: config.get_secret().cloned() }
    }

    /// Whether what is opened was proven.
    pub(crate) fn proves(&self) -> bool {
        self.secret.is_some()
    }

    /// `body` as it goes into the store.
    pub(crate) fn seal(&self, claim: &Claim<'_>, body: &[u8]) -> Vec<u8> {
        match &self.secret {
            None => body.to_vec(),
            Some(secret) => [MARK, &tag(secret, claim, body).finalize().into_bytes()[..], body].concat(),
        }
    }

    /// What was sealed, if `value` is what it claims to be.
    pub(crate) fn open<'v>(&self, claim: &Claim<'_>, value: &'v [u8]) -> Result<&'v [u8], Unsealed> {
        let sealed = value.strip_prefix(MARK);
        let Some(secret) = &self.secret else {
            return if sealed.is_none() { Ok(value) } else { Err(Unsealed::Unexpected) };
        };
        let (theirs, body) = sealed.ok_or(Unsealed::Missing)?.split_at_checked(TAG).ok_or(Unsealed::Wrong)?;
        // Takes as long whether the first or the last byte differs.
        tag(secret, claim, body).verify_slice(theirs).map_err(|_| Unsealed::Wrong)?;
        Ok(body)
    }

    /// The fd channel's token of the group `id`: known to holders of the secret only. Without one it is the
    /// id, which only tells jobs apart.
    pub(crate) fn token(&self, id: &GroupId) -> [u8; ID] {
        let Some(secret) = &self.secret else { return id.bytes };
        let whole = tag(secret, &Claim::once(SealKind::Channel, &id.text, 0), &[]).finalize().into_bytes();
        std::array::from_fn(|at| whole[at])
    }
}

/// The keyed hash of a claim and its bytes. Every part comes with its length, so no two lists of parts look
/// alike.
fn tag(secret: &Secret, claim: &Claim<'_>, body: &[u8]) -> Hmac<Sha256> {
    let numbers = [claim.kind as u64, claim.sender as u64, claim.sequence].map(u64::to_le_bytes).concat();
    let mut mac = match Hmac::<Sha256>::new_from_slice(secret.bytes()) {
        Ok(mac) => mac,
        // HMAC takes keys of any length.
        Err(_) => unreachable!("HMAC refused a key"),
    };
    for part in [b"symmem seal 1", &numbers[..], claim.scope.as_bytes(), body] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

/// A group's id: a hash of everything its ranks said first, nonces included. A rank that finds its own nonce
/// in it knows that nobody can have used the id before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupId {
    pub(crate) text: String,
    bytes: [u8; ID],
}

impl GroupId {
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in [&b"symmem group 1"[..]].iter().chain(parts) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let whole = hash.finalize();
        let bytes = std::array::from_fn(|at| whole[at]);
        Self { text: ids::hex(&bytes), bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(secret: Option<&[u8]>) -> Sealer {
        Sealer { secret: secret.map(|bytes| Secret::from_code(bytes).unwrap()) }
    }

    fn ours() -> Sealer {
        sealer(Some(&[7; 32]))
    }

    const CLAIM: Claim<'static> = Claim { kind: SealKind::Part, scope: "group", sender: 3, sequence: 9 };

    #[test]
    fn what_was_sealed_opens_for_the_same_claim_only() {
        let value = ours().seal(&CLAIM, b"bytes");
        assert_eq!(ours().open(&CLAIM, &value), Ok(&b"bytes"[..]));
        for other in [
            Claim { kind: SealKind::Vote, ..CLAIM },
            Claim { scope: "groups", ..CLAIM },
            Claim { sender: 2, ..CLAIM },
            Claim { sequence: 8, ..CLAIM },
        ] {
            assert_eq!(ours().open(&other, &value), Err(Unsealed::Wrong), "{other:?}");
        }
    }

    #[test]
    fn no_byte_can_be_changed_added_or_taken() {
        let value = ours().seal(&CLAIM, b"bytes");
        for at in 0..value.len() {
            let mut changed = value.clone();
            changed[at] ^= 1;
            assert!(ours().open(&CLAIM, &changed).is_err(), "byte {at}");
            assert!(ours().open(&CLAIM, &value[..at]).is_err(), "cut at {at}");
        }
        assert!(ours().open(&CLAIM, &[&value[..], b"x"].concat()).is_err());
    }

    #[test]
    fn parts_cannot_lend_each_other_bytes() {
        let value = ours().seal(&Claim { scope: "ab", ..CLAIM }, b"c");
        let body_moved = [&value[..value.len() - 1], b"bc"].concat();
        assert!(ours().open(&Claim { scope: "a", ..CLAIM }, &body_moved).is_err());
    }

    #[test]
    fn who_has_another_secret_or_none_is_told_apart() {
        let (other, none) = (sealer(Some(&[8; 32])), sealer(None));
        assert_eq!(ours().open(&CLAIM, &other.seal(&CLAIM, b"x")), Err(Unsealed::Wrong));
        assert_eq!(ours().open(&CLAIM, &none.seal(&CLAIM, b"x")), Err(Unsealed::Missing));
        assert_eq!(none.open(&CLAIM, &ours().seal(&CLAIM, b"x")), Err(Unsealed::Unexpected));
        assert_eq!(none.open(&CLAIM, &none.seal(&CLAIM, b"x")), Ok(&b"x"[..]));
    }

    #[test]
    fn the_token_is_the_id_for_those_without_a_secret_only() {
        let id = GroupId::of(&[b"a", b"b"]);
        assert_eq!(ids::hex(&sealer(None).token(&id)), id.text);
        assert_ne!(ids::hex(&ours().token(&id)), id.text);
        assert_ne!(ours().token(&id), sealer(Some(&[8; 32])).token(&id));
        assert_ne!(id, GroupId::of(&[b"ab", b""]));
    }

    #[test]
    fn the_seal_is_hmac_sha256() {
        // RFC 4231, test case 2 has a key of 4 bytes; this is the construction with a key that we take.
        let mut mac = Hmac::<Sha256>::new_from_slice(&[0xaa; 131]).unwrap();
        mac.update(b"Test Using Larger Than Block-Size Key - Hash Key First");
        let expected = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54";
        assert_eq!(ids::hex(&mac.finalize().into_bytes()), expected);
    }
}
