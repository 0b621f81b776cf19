//! A client of torch's `TCPStore`, the key-value server of a trainer's process, as far as a rendezvous takes it: the
//! client announces itself, waits for a key and reads its value. What the value means is left to `unique_id`.
//!
//! Numbers are little-endian. A string is its length (u64) and its bytes; a request is a byte that says its kind and
//! what that kind has.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// The first request, with `MAGIC`, says that the client speaks this protocol. It has no reply.
const VALIDATE: u8 = 0;
const MAGIC: u32 = 0x3C85_F7CE;
/// Key; the reply is the value: its length (u64) and bytes.
const GET: u8 = 3;
/// Key and amount (i64); the reply is the new count (i64).
const ADD: u8 = 4;
/// Number of keys (u64) and keys; the reply comes once all are there.
const WAIT: u8 = 6;
/// The reply to `WAIT`.
const STOP_WAITING: u8 = 0;

/// The key that counts the store's clients. Unlike users' keys it has no `/` before it.
const CLIENTS: &str = "init/";
/// Longest value that is read, in bytes.
const MOST_OF_VALUE: u64 = 64 << 10;
/// Between two attempts to reach a trainer that does not listen yet.
const AGAIN: Duration = Duration::from_millis(50);

/// A connection to a store.
pub struct StoreClient {
    stream: TcpStream,
    deadline: Instant,
}

impl StoreClient {
    /// Connects, as soon as somebody listens there, and announces one more client. Nothing of the connection takes
    /// longer than until `deadline`.
    pub fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<StoreClient> {
        let stream = loop {
            match reach(host, port, deadline) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() + AGAIN >= deadline => return Err(error),
                Err(_) => thread::sleep(AGAIN),
            }
        };
        stream.set_nodelay(true)?;
        let mut client = StoreClient { stream, deadline };
        let mut hello = vec![VALIDATE];
        hello.extend(MAGIC.to_le_bytes());
        hello.push(ADD);
        push_text(&mut hello, CLIENTS);
        hello.extend(1i64.to_le_bytes());
        client.send(&hello)?;
        client.number()?;
        Ok(client)
    }

    /// The value of a user's key, once there is one.
    pub fn wait_for(&mut self, key: &str) -> io::Result<Vec<u8>> {
        let key = format!("/{key}");
        let mut request = vec![WAIT];
        request.extend(1u64.to_le_bytes());
        push_text(&mut request, &key);
        self.send(&request)?;
        let [reply] = self.receive()?;
        if reply != STOP_WAITING {
            return Err(wrong(format!("{reply} instead of the end of a wait")));
        }
        let mut request = vec![GET];
        push_text(&mut request, &key);
        self.send(&request)?;
        let length = self.number()?;
        if length > MOST_OF_VALUE {
            return Err(wrong(format!("a value of {length} bytes")));
        }
        let mut value = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.receive_into(&mut value)?;
        Ok(value)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write_all(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.receive()?))
    }

    fn receive<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.receive_into(&mut bytes)?;
        Ok(bytes)
    }

    fn receive_into(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(left(self.deadline)?))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => bytes = &mut bytes[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A connection to the first of the host's addresses at which somebody listens.
fn reach(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let host = host.to_owned();
    for address in in_time(deadline, move || Ok((&*host, port).to_socket_addrs()?.collect::<Vec<SocketAddr>>()))? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What `work` returns, if it does so before `deadline`. Looking up a host has no time limit of its own: the thread
/// that does it may wait on.
fn in_time<T: Send + 'static>(
    deadline: Instant,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let left = left(deadline)?;
    let (sender, receiver) = sync_channel(1);
    // Who waited may be gone.
    thread::Builder::new().name("look-up".to_owned()).spawn(move || drop(sender.send(work())))?;
    receiver.recv_timeout(left).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The time until `deadline`.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn push_text(request: &mut Vec<u8>, text: &str) {
    request.extend((text.len() as u64).to_le_bytes());
    request.extend(text.as_bytes());
}

fn wrong(found: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the trainer's store sent {found}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// What a client of torch 2.15 sends for one key, but for the PING that may be left out, and what the store of that
    /// version answers to each part.
    fn recorded(value: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let key = b"/broadcast_from/0/0";
        let key_text = [&[0x13, 0, 0, 0, 0, 0, 0, 0][..], key].concat();
        let hello =
            [&[0x00, 0xce, 0xf7, 0x85, 0x3c, 0x04, 5, 0, 0, 0, 0, 0, 0, 0][..], b"init/", &[1, 0, 0, 0, 0, 0, 0, 0]]
                .concat();
        vec![
            (hello, vec![2, 0, 0, 0, 0, 0, 0, 0]),
            ([&[0x06, 1, 0, 0, 0, 0, 0, 0, 0][..], &key_text].concat(), vec![0]),
            ([&[0x03][..], &key_text].concat(), [&(value.len() as u64).to_le_bytes()[..], value].concat()),
        ]
    }

    /// A store that expects these bytes, answers each part with the ones beside it, and then says whether all came.
    fn store(exchange: Vec<(Vec<u8>, Vec<u8>)>) -> (u16, JoinHandle<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let serve = move || {
            let (mut stream, _) = listener.accept().expect("a client");
            exchange.iter().all(|(expected, answer)| {
                let mut got = vec![0; expected.len()];
                // Answers in pieces, as networks have them.
                stream.read_exact(&mut got).is_ok()
                    && got == *expected
                    && answer.iter().all(|byte| stream.write_all(&[*byte]).is_ok())
            })
        };
        (port, std::thread::spawn(serve))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn the_bytes_are_those_of_torch() {
        let value: Vec<u8> = (0..247).collect();
        let (port, served) = store(recorded(&value));
        let mut client = StoreClient::connect("127.0.0.1", port, soon()).expect("it listens");
        assert_eq!(client.wait_for("broadcast_from/0/0").expect("a value"), value);
        assert!(served.join().expect("no panic"), "all of its bytes were those recorded");
    }

    #[test]
    fn a_trainer_may_begin_to_listen_later() {
        let place = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = place.local_addr().expect("it is bound").port();
        drop(place);
        let client = std::thread::spawn(move || StoreClient::connect("localhost", port, soon()).map(drop));
        std::thread::sleep(AGAIN * 3);
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free still");
        let (mut stream, _) = listener.accept().expect("the client");
        stream.read_exact(&mut [0; 27]).expect("its hello");
        stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0]).expect("it reads");
        client.join().expect("no panic").expect("it is connected");
    }

    /// As looking up a host is, whose server of names does not answer.
    #[test]
    fn what_has_no_time_limit_is_left_at_the_deadline() {
        let (never, waits) = std::sync::mpsc::channel::<()>();
        let looked_up = in_time(Instant::now() + Duration::from_millis(50), move || Ok(waits.recv().is_ok()));
        assert_eq!(looked_up.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        drop(never);
        assert_eq!(in_time(soon(), || Ok(7)).expect("it is in time"), 7);
        let past = in_time(Instant::now(), || Ok(7));
        assert_eq!(past.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[test]
    fn silence_and_nonsense_end() {
        let short = || Instant::now() + Duration::from_millis(300);
        // Somebody listens and says nothing.
        let place = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = place.local_addr().expect("it is bound").port();
        let silent = StoreClient::connect("127.0.0.1", port, short()).map(drop);
        assert_eq!(silent.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        // Nobody listens.
        drop(place);
        assert!(StoreClient::connect("127.0.0.1", port, short()).is_err());
        let [hello, wait, get] = <[_; 3]>::try_from(recorded(b"")).expect("three parts");
        let too_long = (get.0.clone(), u64::MAX.to_le_bytes().to_vec());
        for exchange in [
            vec![hello.clone(), (wait.0.clone(), vec![7])],
            vec![hello.clone(), wait.clone(), too_long],
            vec![hello.clone(), wait.clone(), (get.0.clone(), vec![1])],
        ] {
            let (port, served) = store(exchange);
            let mut client = StoreClient::connect("127.0.0.1", port, soon()).expect("it listens");
            assert!(client.wait_for("broadcast_from/0/0").is_err());
            drop(client);
            served.join().expect("no panic");
        }
    }
}
