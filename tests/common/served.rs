//! A server of the built binary on the bundled demo model at a free port of the loopback, and a client of bare sockets.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long an answer may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running server, which ends with this value.
pub struct Served {
    pub address: SocketAddr,
    child: Child,
    errors: PathBuf,
    folder: tempfile::TempDir,
}

impl Served {
    /// Starts a server of the demo model with these options more.
    pub fn start(options: &[&str]) -> Served {
        Served::start_model(&Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo"), options)
    }

    /// Starts a server of a model folder, by whose name it is called.
    pub fn start_model(model: &Path, options: &[&str]) -> Served {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let errors = folder.path().join("errors.txt");
        let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
        command.args(["serve", "--port", "0", "--model"]).arg(model).args(options);
        command.current_dir(folder.path()).env_remove("RUST_LOG").env("CUDA_VISIBLE_DEVICES", "");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&errors).expect("the folder is writable"));
        let mut child = command.spawn().expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let said = |line: String| line.split_once("http://").map(|(_, url)| url.trim_end_matches("/v1").to_owned());
        let address = lines.map_while(Result::ok).find_map(said);
        let address = address.unwrap_or_else(|| panic!("it does not serve: {}", read(&errors)));
        Served { address: address.parse().expect("an address"), child, errors, folder }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// The names in the folder in which it runs.
    pub fn folder_entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("it is there");
        entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect()
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        Reply::of(&exchange(self.address, &message("POST", path, body.to_string().as_bytes())))
    }

    pub fn get(&self, path: &str) -> Reply {
        Reply::of(&exchange(self.address, &message("GET", path, b"")))
    }

    /// A value that `/metrics` shows without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("/metrics shows no {name}:\n{text}"))
    }

    /// It runs, and no thread of it has panicked.
    pub fn assert_well(&mut self) {
        let ended = self.child.try_wait().expect("it can be asked");
        let errors = read(&self.errors);
        assert!(ended.is_none() && !errors.contains("panicked"), "{ended:?}: {errors}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// An HTTP response.
#[derive(Debug)]
pub struct Reply {
    /// 0: none came.
    pub status: u16,
    /// The body, without the marks of its chunks if it came in chunks.
    pub text: String,
}

impl Reply {
    pub fn of(bytes: &[u8]) -> Reply {
        let whole = String::from_utf8_lossy(bytes);
        let (head, body) = whole.split_once("\r\n\r\n").unwrap_or((&whole, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Reply { status, text: if is_chunked { joined(body) } else { body.to_owned() } }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The chunks of a body, joined; as far as they came.
fn joined(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        let (Some(chunk), Some(after)) = (rest.get(..size), rest.get(size + 2..)) else { break };
        all.push_str(chunk);
        body = after;
    }
    all
}

/// A request after which the connection closes.
pub fn message(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the server accepts connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("above zero");
    stream.set_write_timeout(Some(PATIENCE)).expect("above zero");
    stream.set_nodelay(true).expect("a TCP socket");
    stream
}

/// What the server sends in answer to `bytes` until it closes the connection, which it must do in time.
pub fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    // A server may answer and close before it has read all.
    drop(stream.write_all(bytes));
    read_to_end(&mut stream)
}

/// Like `exchange`, and says that nothing more will come.
pub fn exchange_and_end(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    drop(stream.write_all(bytes));
    drop(stream.shutdown(Shutdown::Write));
    read_to_end(&mut stream)
}

/// What the server sends until it closes the connection, or nothing came for a while: it may wait for more bytes. What
/// a busy server answers later is not seen.
pub fn exchange_until_quiet(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    const QUIET: Duration = Duration::from_millis(700);
    let mut stream = connect(address);
    drop(stream.write_all(bytes));
    stream.set_read_timeout(Some(QUIET)).expect("above zero");
    let mut all = Vec::new();
    // What came before the time was over stays in `all`.
    drop(stream.read_to_end(&mut all));
    all
}

fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let (begun, mut all, mut piece) = (Instant::now(), Vec::new(), [0; 1 << 16]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(read) => all.extend(&piece[..read]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                panic!("no answer in {:?}: {:?}", begun.elapsed(), String::from_utf8_lossy(&all))
            }
            // Reset: it closed while more was sent.
            Err(_) => return all,
        }
    }
}
