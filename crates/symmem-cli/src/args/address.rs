//! Addresses of stores on the command line: `HOST:PORT`, `HOST`, `[::1]:PORT`.

use std::fmt;

/// A host, and a port where one was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// The address that `text` names.
pub(crate) fn parse(text: &str) -> Result<Address, String> {
    let wrong = || format!("{text:?} is not an address, such as node0:29500 or [::1]:29500");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(wrong)?) };
            (host, port)
        }
        // More than one colon: an IPv6 address without a port.
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse().map_err(|_| wrong())).transpose()?;
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(wrong());
    }
    Ok(Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_hosts_and_maybe_ports() {
        for (text, host, port) in [
            ("node0", "node0", None),
            ("node0:1", "node0", Some(1)),
            ("[::1]:65535", "::1", Some(65535)),
            ("[::1]", "::1", None),
            ("::1", "::1", None),
        ] {
            assert_eq!(parse(text), Ok(Address { host: host.to_owned(), port }), "{text}");
        }
        for text in ["", ":1", "a:", "a:65536", "a:b", "[::1", "[::1]1", "a b:1", "[]:1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let shown = |text| parse(text).unwrap().to_string();
        assert_eq!((shown("::1"), shown("a:1")), ("[::1]".to_owned(), "a:1".to_owned()));
    }
}
