//! Commands on a store that somebody serves.

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::json;
use symmem::store::{Store, StoreError, TcpStore, Wait};

use super::value;
use crate::args::{AddArgs, Address, DeleteArgs, GetArgs, ListArgs, SetArgs, Target, WaitArgs};
use crate::screen;

/// What PyTorch's clients and ours put before every key but their own.
const OF_CLIENTS: char = '/';

/// A store, and how long to wait for it: the timeout is one for the whole command.
struct Client {
    store: TcpStore,
    address: Address,
    wait: Wait<'static>,
}

impl Client {
    fn new(target: &Target) -> Result<Self> {
        let address = match &target.store {
            Some(address) => address.clone(),
            None => from_environment()?,
        };
        let port = address.port.filter(|port| *port != 0);
        let port = port
            .with_context(|| format!("the address {address} needs a port, such as {}:29500", address.host))?;
        let wait = Wait::for_at_most(target.timeout);
        Ok(Self { store: TcpStore::connect(&address.host, port, &wait)?, address, wait })
    }

    fn no_key(&self, key: &str) -> anyhow::Error {
        anyhow::anyhow!("there is no key {key:?} in the store at {}", self.address)
    }
}

fn from_environment() -> Result<Address> {
    let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let (Some(host), Some(port)) = (set("MASTER_ADDR"), set("MASTER_PORT")) else {
        bail!("which store? Hint: name it by --store HOST:PORT, or set MASTER_ADDR and MASTER_PORT");
    };
    let port =
        port.trim().parse().with_context(|| format!("MASTER_PORT is {port:?}, which is not a port"))?;
    Ok(Address { host, port: Some(port) })
}

/// `symmem store get`.
pub(super) fn get(args: &GetArgs) -> Result<()> {
    let client = Client::new(&args.target)?;
    if !args.wait && !client.store.check(&[&args.key], &client.wait)? {
        return Err(client.no_key(&args.key));
    }
    let bytes = client.store.get(&args.key, &client.wait)?;
    if args.target.json {
        screen::print_json(&value::as_json(&args.key, &bytes))
    } else if args.form.raw {
        let mut stdout = std::io::stdout();
        Ok(stdout.write_all(&bytes).and_then(|()| stdout.flush())?)
    } else if args.form.hex {
        screen::print(value::hex(&bytes))
    } else {
        screen::print(value::readable(&bytes))
    }
}

/// `symmem store set`.
pub(super) fn set(args: &SetArgs) -> Result<()> {
    let given = args.value.as_bytes();
    let bytes = if given == b"-" && !args.raw {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("reading the value from stdin")?;
        bytes
    } else {
        given.to_vec()
    };
    let bytes = if args.hex { value::from_hex(&String::from_utf8_lossy(&bytes))? } else { bytes };
    let client = Client::new(&args.target)?;
    client.store.set(&args.key, &bytes, &client.wait)?;
    if args.target.json { screen::print_json(&value::as_json(&args.key, &bytes)) } else { Ok(()) }
}

/// `symmem store add`.
pub(super) fn add(args: &AddArgs) -> Result<()> {
    let client = Client::new(&args.target)?;
    let sum = client.store.add(&args.key, args.amount, &client.wait).map_err(|error| match error {
        StoreError::Protocol { .. } => anyhow::anyhow!(
            "the store at {} did not add to key {:?}: its value may be no decimal number",
            client.address,
            args.key
        ),
        error => error.into(),
    })?;
    if args.target.json {
        screen::print_json(&json!({"key": args.key, "value": sum}))
    } else {
        screen::print(sum.to_string())
    }
}

/// `symmem store list`.
pub(super) fn list(args: &ListArgs) -> Result<()> {
    let client = Client::new(&args.target)?;
    let keys = client.store.list_keys(&client.wait).map_err(|error| match error {
        StoreError::Protocol { .. } => anyhow::anyhow!(
            "the store at {} cannot list its keys: servers of older versions of PyTorch do not know that request",
            client.address
        ),
        error => error.into(),
    })?;
    let mut keys: Vec<String> =
        keys.into_iter().map(as_given).filter(|key| key.starts_with(&args.prefix)).collect();
    keys.sort();
    if !args.values {
        return match args.target.json {
            true => screen::print_json(&keys),
            false => keys.iter().try_for_each(screen::print),
        };
    }
    let mut pairs = Vec::new();
    for key in keys {
        // Without this, a key that was deleted meanwhile, or one of the store's own, would be waited for.
        if client.store.check(&[&key], &client.wait)? {
            let bytes = client.store.get(&key, &client.wait)?;
            pairs.push((key, bytes));
        }
    }
    if args.target.json {
        let pairs: Vec<_> = pairs.iter().map(|(key, bytes)| value::as_json(key, bytes)).collect();
        return screen::print_json(&pairs);
    }
    let mut table = screen::table(&["key", "bytes", "value"]);
    for (key, bytes) in &pairs {
        table.add_row([key.as_str(), &bytes.len().to_string(), &value::short(bytes)]);
    }
    screen::print(table.to_string())
}

/// A key of the server as clients name it.
fn as_given(key: String) -> String {
    key.strip_prefix(OF_CLIENTS).map_or(key.clone(), str::to_owned)
}

/// `symmem store wait`.
pub(super) fn wait(args: &WaitArgs) -> Result<()> {
    let start = Instant::now();
    let client = Client::new(&args.target)?;
    let keys: Vec<&str> = args.keys.iter().map(String::as_str).collect();
    client.store.wait(&keys, &client.wait).map_err(|error| match error {
        StoreError::Timeout { .. } => {
            let short = Wait::for_at_most(std::time::Duration::from_secs(2));
            let missing = |key: &&&str| !client.store.check(&[key], &short).unwrap_or(false);
            let missing: Vec<String> = keys.iter().filter(missing).map(|key| format!("{key:?}")).collect();
            let within = args.target.timeout.as_secs_f64();
            anyhow::anyhow!("nobody has set {} within {within} s (--timeout)", missing.join(", "))
        }
        error => error.into(),
    })?;
    let seconds = start.elapsed().as_secs_f64();
    if args.target.json { screen::print_json(&json!({"keys": keys, "seconds": seconds})) } else { Ok(()) }
}

/// `symmem store delete`.
pub(super) fn delete(args: &DeleteArgs) -> Result<()> {
    let client = Client::new(&args.target)?;
    let mut deleted = Vec::new();
    for key in &args.keys {
        if client.store.delete(key, &client.wait)? {
            deleted.push(key);
        }
    }
    if args.target.json {
        screen::print_json(&json!({"deleted": deleted}))?;
    }
    match args.keys.iter().find(|key| !deleted.contains(key)) {
        Some(missing) => Err(client.no_key(missing)),
        None => Ok(()),
    }
}
