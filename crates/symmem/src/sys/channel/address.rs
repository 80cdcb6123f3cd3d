//! Where an endpoint listens, as text for the store.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::error::{Error, Result};
use crate::sys::ids;

/// `abstract:<network namespace>:<hex digits>` or `path:<network namespace>:<absolute path>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChannelAddress {
    /// The network namespace of the listener; 0 when unknown.
    net_ns: u64,
    name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    /// Random hex digits of an abstract name: exists only in one network namespace, and only while somebody
    /// listens.
    Abstract(String),
    /// A socket file.
    File(String),
}

impl ChannelAddress {
    /// A name that nobody can guess.
    pub(super) fn random(dir: Option<&Path>) -> Result<Self> {
        let id = ids::hex(&ids::random::<16>()?);
        let name = match dir {
            None => Name::Abstract(id),
            Some(dir) => Name::File(file_in(dir, &id)?),
        };
        Ok(Self { net_ns: ids::net_ns(), name })
    }

    /// Reads what `to_string` wrote.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let (net_ns, name) = rest.split_once(':')?;
        let name = match kind {
            "abstract" if name.len() == 32 && ids::unhex(name).is_some() => Name::Abstract(name.to_owned()),
            "path" if name.starts_with('/') => Name::File(name.to_owned()),
            _ => return None,
        };
        Some(Self { net_ns: net_ns.parse().ok()?, name })
    }

    pub(super) fn to_socket(&self) -> Result<SocketAddrUnix> {
        let socket = match &self.name {
            Name::Abstract(id) => SocketAddrUnix::new_abstract_name(format!("symmem-{id}").as_bytes()),
            Name::File(path) => SocketAddrUnix::new(path.as_str()),
        };
        socket.map_err(|e| {
            Error::sys_hint(
                "address of the fd channel",
                e,
                "a socket folder's path may have 60 characters at most",
            )
        })
    }

    /// The socket file, if the address has one.
    pub(super) fn into_file(self) -> Option<PathBuf> {
        match self.name {
            Name::Abstract(_) => None,
            Name::File(path) => Some(path.into()),
        }
    }

    /// Whether it is in another network namespace than this process.
    pub(super) fn is_elsewhere(&self) -> bool {
        let ours = ids::net_ns();
        self.net_ns != 0 && ours != 0 && self.net_ns != ours
    }

    /// Why a connection to this address failed with `error`, from a process in network namespace
    /// `our_net_ns`.
    pub(super) fn explain(&self, error: Errno, our_net_ns: u64) -> String {
        let namespaces_differ = self.net_ns != 0 && our_net_ns != 0 && self.net_ns != our_net_ns;
        match (&self.name, error) {
            (Name::Abstract(_), Errno::CONNREFUSED) if namespaces_differ => format!(
                "the peer is in network namespace {} and this process in {our_net_ns}, where its socket cannot be \
                 reached. Hint: set SYMMEM_SOCKET_DIR to a folder that all ranks share",
                self.net_ns
            ),
            (Name::File(_), Errno::NOENT) => {
                "the socket file is not there: the peer has ended, or it sees another \
                 file system. Hint: SYMMEM_SOCKET_DIR must be a folder that all ranks share"
                    .into()
            }
            (_, Errno::CONNREFUSED) => "nobody listens there (the peer may have died)".into(),
            (_, error) => error.to_string(),
        }
    }
}

impl fmt::Display for ChannelAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Name::Abstract(id) => write!(f, "abstract:{}:{id}", self.net_ns),
            Name::File(path) => write!(f, "path:{}:{path}", self.net_ns),
        }
    }
}

/// The socket file's path: absolute, since peers may run elsewhere, and text, since it travels through the
/// store.
fn file_in(dir: &Path, id: &str) -> Result<String> {
    let path = std::path::absolute(dir.join(format!("symmem-{id}.sock")));
    let path = path.map_err(|e| Error::sys("path of the socket folder", e))?;
    path.into_os_string()
        .into_string()
        .map_err(|path| Error::invalid("socket folder", format!("{path:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_travel_as_text() {
        for dir in [None, Some(Path::new("/tmp")), Some(Path::new("relative"))] {
            let address = ChannelAddress::random(dir).unwrap();
            assert_eq!(ChannelAddress::parse(&address.to_string()), Some(address));
        }
        for bad in
            ["", "abstract", "abstract:1", "abstract:1:xyz", "abstract:x:00", "path:1:relative", "other:1:/x"]
        {
            assert_eq!(ChannelAddress::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_folder_with_a_long_path_is_refused() {
        let address = ChannelAddress::random(Some(Path::new(&format!("/{}", "x".repeat(100))))).unwrap();
        assert!(address.to_socket().unwrap_err().to_string().contains("60 characters"));
    }

    #[test]
    fn the_namespace_is_named_only_when_it_differs() {
        let address = ChannelAddress::random(None).unwrap();
        let here = ids::net_ns();
        assert!(address.explain(Errno::CONNREFUSED, here).contains("may have died"));
        assert!(address.explain(Errno::CONNREFUSED, 0).contains("may have died"));
        assert!(address.explain(Errno::CONNREFUSED, here + 1).contains("SYMMEM_SOCKET_DIR"));
    }
}
