//! Connects the sockets of a candidate that has a network of its own. A network does not part sockets that have a path:
//! whoever sees the path of another program's socket could connect to it. So the kernel asks the supervisor for each
//! `connect`, and the supervisor makes the connection itself, to abstract names, which are the network's own, and to
//! sockets among the candidate's own files. What it connects to is what it has looked at: neither the address nor the
//! path is read twice. The peer sees the supervisor as the one that connected.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::asked::AskedCall;
use super::timer::Timer;

/// A call whose listener has no room yet.
struct Waiting {
    call: AskedCall,
    connection: Connection,
    /// When its socket gives up; `None`: never.
    end: Option<Instant>,
}

/// Connects sockets of one candidate.
pub(super) struct Connector {
    /// The device number of the file system that holds the candidate's files and nothing else.
    own: u64,
    /// Connections whose listener has no room yet.
    waiting: VecDeque<Waiting>,
}

impl Connector {
    pub fn within(own: u64) -> Connector {
        Connector { own, waiting: VecDeque::new() }
    }

    /// Connects as a candidate's call asks, now or at a later [`Connector::go_on`], and lets the call return.
    pub fn connect(&mut self, listener: &OwnedFd, call: AskedCall) {
        match Connection::wanted(&call, self.own) {
            Err(why) => call.answer(listener, Err(why)),
            // Its process has ended, and another may have its number.
            Ok(_) if !call.is_waiting(listener) => {}
            Ok(connection) => match connection.most_wait() {
                Err(why) => call.answer(listener, Err(why)),
                Ok(most) => {
                    let end = most.and_then(|most| Instant::now().checked_add(most));
                    self.attempt(listener, Waiting { call, connection, end });
                }
            },
        }
    }

    /// Tries one that waits, so that a look at the candidate takes little time.
    pub fn go_on(&mut self, listener: &OwnedFd) {
        if let Some(waiting) = self.waiting.pop_front()
            && waiting.call.is_waiting(listener)
        {
            self.attempt(listener, waiting);
        }
    }

    fn attempt(&mut self, listener: &OwnedFd, waiting: Waiting) {
        match waiting.connection.make() {
            Err(Errno::EINTR) if waiting.end.is_none_or(|end| Instant::now() < end) => self.waiting.push_back(waiting),
            // As the kernel answers a call that its socket's time has ended.
            Err(Errno::EINTR) => waiting.call.answer(listener, Err(Errno::EAGAIN)),
            done => waiting.call.answer(listener, done),
        }
    }
}

/// A connection to be made.
struct Connection {
    /// A descriptor of the candidate's own socket.
    socket: OwnedFd,
    address: libc::sockaddr_un,
    length: libc::socklen_t,
    /// What the address names by this process's descriptor.
    _target: Option<OwnedFd>,
}

const PATH: usize = offset_of!(libc::sockaddr_un, sun_path);

impl Connection {
    /// What a candidate's call wants, or why it is refused.
    fn wanted(call: &AskedCall, own: u64) -> Result<Connection, Errno> {
        let [socket, address, length, ..] = call.arguments();
        let given = address_of(call.thread(), address, length as u32 as usize)?;
        let socket = socket_of(call.thread(), socket as RawFd)?;
        let Some(path) = given.get(PATH..).filter(|path| !path.is_empty()) else { return Err(Errno::EINVAL) };
        if given[..PATH] != (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes() {
            return Err(Errno::EINVAL);
        }
        if path[0] == 0 {
            let (address, length) = unix_address(path);
            return Ok(Connection { socket, address, length, _target: None });
        }
        let target = socket_file(call.thread(), path, own)?;
        let (address, length) = unix_address(format!("/proc/self/fd/{}\0", target.as_raw_fd()).as_bytes());
        Ok(Connection { socket, address, length, _target: Some(target) })
    }

    /// How long the socket waits for room at its listener (`SO_SNDTIMEO`); `None`: without end.
    fn most_wait(&self) -> Result<Option<Duration>, Errno> {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let mut size = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: the kernel writes one struct and its size through the pointers, which outlive the call.
        let told = unsafe {
            let (at, size) = ((&raw mut time).cast(), &raw mut size);
            libc::getsockopt(self.socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, at, size)
        };
        Errno::result(told)?;
        let most = Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64);
        Ok((!most.is_zero()).then_some(most))
    }

    /// `EINTR` if the listener has no room.
    fn make(&self) -> Result<(), Errno> {
        let _timer = Timer::start();
        // SAFETY: the kernel reads `length` bytes of the address, which outlives the call.
        let done = unsafe { libc::connect(self.socket.as_raw_fd(), (&raw const self.address).cast(), self.length) };
        Errno::result(done).map(drop)
    }
}

/// An address with this path or abstract name, which has at most the length of the field.
fn unix_address(path: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeros is a value of this plain struct.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    (address, (PATH + path.len()) as libc::socklen_t)
}

/// The bytes of an address in the memory of a thread.
fn address_of(thread: u32, at: u64, length: usize) -> Result<Vec<u8>, Errno> {
    if length > size_of::<libc::sockaddr_un>() {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0u8; length];
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let there = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: length };
    // SAFETY: the kernel writes at most `length` bytes to `bytes`, which has room for them; it checks the other side.
    let read = unsafe { libc::process_vm_readv(thread as libc::pid_t, &raw const here, 1, &raw const there, 1, 0) };
    match Errno::result(read)? as usize == length {
        true => Ok(bytes),
        false => Err(Errno::EFAULT),
    }
}

/// A descriptor of the socket that has this number in the process of a thread.
fn socket_of(thread: u32, number: RawFd) -> Result<OwnedFd, Errno> {
    let facts = fs::read_to_string(format!("/proc/{thread}/status")).map_err(|_| Errno::EBADF)?;
    let process = facts.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok()).ok_or(Errno::EBADF)?;
    let opened = |fd: libc::c_long| {
        // SAFETY: the kernel has just opened this descriptor for us, and nothing else knows of it.
        Errno::result(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    };
    let process: libc::pid_t = process;
    // SAFETY: takes numbers and returns a new descriptor.
    let process = opened(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: as above.
    let socket = opened(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })?;
    let (mut domain, mut size): (libc::c_int, libc::socklen_t) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes one number and its size through the pointers, which outlive the call.
    let told = unsafe {
        let (at, size) = ((&raw mut domain).cast(), &raw mut size);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN, at, size)
    };
    Errno::result(told)?;
    if domain == libc::AF_UNIX { Ok(socket) } else { Err(Errno::EPERM) }
}

/// The socket with this path, as a thread sees it, if it lies in the file system `own`.
fn socket_file(thread: u32, path: &[u8], own: u64) -> Result<OwnedFd, Errno> {
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    let folder = CString::new(format!("/proc/{thread}/cwd")).map_err(|_| Errno::EINVAL)?;
    let folder = opened_path(libc::AT_FDCWD, &folder, 0)?;
    let file = opened_path(folder.as_raw_fd(), &path, libc::RESOLVE_NO_MAGICLINKS)?;
    // SAFETY: all zeros is a value of this plain struct.
    let mut facts: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one struct through the pointer, which outlives the call.
    Errno::result(unsafe { libc::fstat(file.as_raw_fd(), &raw mut facts) })?;
    match facts.st_mode & libc::S_IFMT == libc::S_IFSOCK {
        false => Err(Errno::ECONNREFUSED),
        true if facts.st_dev as u64 != own => Err(Errno::EACCES),
        true => Ok(file),
    }
}

/// A descriptor that names a file and cannot read it.
fn opened_path(folder: RawFd, path: &CString, resolve: u64) -> Result<OwnedFd, Errno> {
    // SAFETY: all zeros is a value of this plain struct.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    (how.flags, how.resolve) = ((libc::O_PATH | libc::O_CLOEXEC) as u64, resolve);
    // SAFETY: the kernel reads the path and `how`, whose size is given; both outlive the call.
    let opened =
        unsafe { libc::syscall(libc::SYS_openat2, folder, path.as_ptr(), &raw const how, size_of::<libc::open_how>()) };
    // SAFETY: the kernel has just opened this descriptor for us, and nothing else knows of it.
    Errno::result(opened).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
