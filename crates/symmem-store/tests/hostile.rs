//! Twenty thousand hostile connections beside one good client.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use common::{VALIDATE, eventually, hex, open_fds, patient, raise_file_limit, server};
use rustix::net::sockopt::set_socket_linger;
use symmem_store::{ServerLimits, Store, TcpStore};

const CONNECTIONS: usize = 20_000;
const HALF_OPEN: usize = 500;
const ATTACKERS: usize = 4;
const PORT: &str = "SYMMEM_TEST_PORT";
/// Longer than the server takes to close any of these connections.
const ATTACKER_PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn a_good_client_notices_nothing_of_20_000_hostile_ones() {
    raise_file_limit();
    if let Ok(port) = env::var(PORT) {
        return attack(port.parse().unwrap());
    }
    let server = server(ServerLimits::default());
    let good = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    good.set("warm", b"up", &patient()).unwrap();
    let (fds, memory) = (open_fds(), resident());

    // Attackers in a process of their own, so that descriptors and memory here are the server's.
    let started = Instant::now();
    let mut attackers = Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_good_client_notices_nothing_of_20_000_hostile_ones", "--nocapture"])
        .env(PORT, server.port().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut times, mut peak) = (Vec::new(), 0);
    let status = loop {
        times.push(be_good(&good, times.len()));
        peak = peak.max(resident());
        if let Some(status) = attackers.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success(), "the attackers failed");
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    let growth = peak.saturating_sub(memory) >> 20;
    println!(
        "{CONNECTIONS} connections in {:.1?}: {} rounds, p50 {:.1?}, p99 {p99:.1?}, max {:.1?}, memory +{growth} MiB",
        started.elapsed(),
        times.len(),
        times[times.len() / 2],
        times[times.len() - 1]
    );
    assert!(p99 < Duration::from_secs(1), "{p99:?}");
    assert!(growth < 64, "{growth} MiB");
    eventually("descriptors are back", || open_fds() <= fds);
}

/// One round of a good client; how long its slowest call took.
fn be_good(store: &TcpStore, round: usize) -> Duration {
    let key = format!("good/{}", round % 16);
    let value = round.to_string();
    let mut slowest = Duration::ZERO;
    let mut time = |call: &mut dyn FnMut()| {
        let started = Instant::now();
        call();
        slowest = slowest.max(started.elapsed());
    };
    time(&mut || store.set(&key, value.as_bytes(), &patient()).unwrap());
    time(&mut || assert_eq!(store.get(&key, &patient()).unwrap(), value.as_bytes()));
    time(&mut || assert_eq!(store.add("good/count", 1, &patient()).unwrap(), round as i64 + 1));
    time(&mut || store.wait(&[&key, "good/count"], &patient()).unwrap());
    thread::sleep(Duration::from_millis(1));
    slowest
}

/// Resident bytes of this process.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// All the hostile connections, from a few threads, while the half-open ones stay.
fn attack(port: u16) {
    let half_open: Vec<_> = (0..HALF_OPEN).map(|i| half_open(port, i)).collect();
    let attackers: Vec<_> = (0..ATTACKERS)
        .map(|attacker| {
            thread::spawn(move || {
                let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (attacker as u64 + 1));
                for _ in 0..CONNECTIONS / ATTACKERS {
                    assail(port, &hostile_bytes(&mut random), &mut random);
                }
            })
        })
        .collect();
    attackers.into_iter().for_each(|attacker| attacker.join().unwrap());
    drop(half_open);
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(ATTACKER_PATIENCE)).unwrap();
    stream.set_write_timeout(Some(ATTACKER_PATIENCE)).unwrap();
    // Reset on close: twenty thousand connections must not use up the ports.
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    stream
}

/// A connection that stops in the middle of something.
fn half_open(port: u16, i: usize) -> TcpStream {
    let mut stream = connect(port);
    let beginning = match i % 4 {
        0 => Vec::new(),
        1 => VALIDATE[..3].to_vec(),
        2 => [VALIDATE, &hex("01 02.. 2F61 000080.. 5555")].concat(),
        _ => [VALIDATE, &hex("06 01.. 05.. 6E65766572")].concat(),
    };
    stream.write_all(&beginning).unwrap();
    stream
}

/// Sends `bytes`, sometimes with eight megabytes behind them, and reads whatever comes until the server
/// closes.
fn assail(port: u16, bytes: &[u8], random: &mut Random) {
    static LARGE: [u8; (8 << 20) + 1] = [0x55; (8 << 20) + 1];
    let mut stream = connect(port);
    let sent = stream.write_all(bytes);
    if sent.is_ok() && random.below(400) == 0 {
        let _ = stream.write_all(&LARGE);
    }
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert_ne!(
                    error.kind(),
                    ErrorKind::WouldBlock,
                    "the server holds on to a hostile connection"
                );
                return;
            }
        }
    }
}

/// One in ten is garbage; the others begin well and then go wrong.
fn hostile_bytes(random: &mut Random) -> Vec<u8> {
    if random.below(10) == 0 {
        return (0..random.below(400)).map(|_| random.next() as u8).collect();
    }
    let mut bytes = transcript(random);
    match random.below(5) {
        0 => (0..1 + random.below(8)).for_each(|_| {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }),
        1 => bytes.truncate(random.below(bytes.len())),
        2 => {
            let at = random.below(bytes.len());
            bytes.splice(at..at, [0xFF; 8]);
        }
        3 => bytes.extend(many_keys(random)),
        _ => bytes.extend(hex("01 02.. 2F61 010080..")),
    }
    [VALIDATE, &bytes].concat()
}

/// A few good requests.
fn transcript(random: &mut Random) -> Vec<u8> {
    const REQUESTS: &[&str] = &[
        "0D 78563412",
        "01 02.. 2F61 01.. 76",
        "02 02.. 2F61 01.. 76 02.. 7778",
        "03 02.. 2F61",
        "04 02.. 2F6E 05..",
        "05 02.. 02.. 2F61 02.. 2F6E",
        "06 02.. 02.. 2F61 02.. 2F7A",
        "07",
        "08 02.. 2F61",
        "09 02.. 2F61 01.. 79",
        "0A 02.. 02.. 2F62 02.. 2F61",
        "0B 02.. 02.. 2F62 01.. 31 02.. 2F63 00..",
        "0C",
        "0E 02.. 2F71 02.. 7831",
        "0F 02.. 2F71",
        "10 02.. 2F71",
        "11",
        "12 02.. 2F67 7F..",
    ];
    (0..1 + random.below(8)).flat_map(|_| hex(REQUESTS[random.below(REQUESTS.len())])).collect()
}

/// 131072 keys announced; a few of them, or in rare cases all, follow.
fn many_keys(random: &mut Random) -> Vec<u8> {
    static KEYS: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..131_072u64).flat_map(|i| [8u64.to_le_bytes(), i.to_le_bytes()]).flatten().collect()
    });
    let query = [5, 6, 10][random.below(3)];
    let sent = if random.below(100) == 0 { KEYS.len() } else { random.below(800) };
    [&[query], &hex("000002..")[..], &KEYS[..sent]].concat()
}

/// A xorshift generator: the same attack every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
