//! seccomp filters: the system calls that a candidate cannot make. A call that no honest program makes ends the
//! candidate and is named in the verdict; a call that libraries try but do not need is refused with an error.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, Ge, Le, MaskedEq, Ne};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule, sock_filter};
use serde::{Deserialize, Serialize};

use super::asked::AskedCall;

/// System calls by name, as libc numbers them.
macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

type SystemCalls = &'static [(&'static str, libc::c_long)];

/// Tracing and other processes' memory, the kernel's keys, code and clocks, mounts, namespaces: calling one ends the
/// candidate.
const HOSTILE: SystemCalls = calls![
    SYS_acct SYS_add_key SYS_adjtimex SYS_bpf SYS_chroot SYS_clock_adjtime SYS_clock_settime SYS_delete_module
    SYS_fanotify_init SYS_finit_module SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_init_module
    SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_mount SYS_mount_setattr SYS_move_mount SYS_name_to_handle_at
    SYS_open_by_handle_at SYS_open_tree SYS_perf_event_open SYS_pidfd_getfd SYS_pivot_root SYS_process_vm_readv
    SYS_process_vm_writev SYS_ptrace SYS_quotactl SYS_quotactl_fd SYS_reboot SYS_request_key SYS_setdomainname
    SYS_sethostname SYS_setns SYS_settimeofday SYS_swapoff SYS_swapon SYS_umount2 SYS_unshare SYS_userfaultfd
    SYS_vhangup
];
#[cfg(target_arch = "x86_64")]
const HOSTILE_HERE: SystemCalls = calls![SYS_iopl SYS_ioperm SYS_kexec_file_load SYS_modify_ldt SYS_uselib];
#[cfg(not(target_arch = "x86_64"))]
const HOSTILE_HERE: SystemCalls = &[];

/// Calls whose effects outlive the process or reach other processes.
const REFUSED: SystemCalls = calls![
    SYS_fanotify_mark SYS_inotify_add_watch SYS_ioprio_set SYS_kcmp SYS_lookup_dcookie SYS_migrate_pages SYS_move_pages
    SYS_mq_open SYS_mq_unlink SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_process_madvise SYS_process_mrelease
    SYS_sched_setattr SYS_semctl SYS_semget SYS_semop SYS_semtimedop SYS_shmat SYS_shmctl SYS_shmget SYS_syslog
    SYS_vmsplice
];

/// The network. A candidate with a network of its own may make sockets of the kind AF_UNIX, with which its processes
/// reach one another: abstract names are a network's own, and where a path leads is looked at by the supervisor, which
/// connects them (`connections`).
const NETWORK: SystemCalls = calls![SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_listen SYS_socket];

/// Reported as missing, as on an older kernel, for which libraries have a fallback: `clone3` hides its flags from
/// filters, a memory file hides its size from the supervisor, io_uring bypasses filters, and all programs of a machine
/// share the places of asynchronous input and output.
const ABSENT: SystemCalls = calls![
    SYS_clone3 SYS_io_setup SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_memfd_create
    SYS_memfd_secret
];

/// Needed only if the candidate's files are measured: messages can hold descriptors of files that no process has open.
const MESSAGES: SystemCalls = calls![SYS_sendmmsg SYS_sendmsg];
/// As above: reported as what the file system cannot do, because it makes files grow faster than they are measured.
const ALLOCATION: SystemCalls = calls![SYS_fallocate];

/// Needed only if the candidate runs as the caller's user and sees the machine's files: Landlock does not protect a
/// file's metadata.
const METADATA: SystemCalls = calls![
    SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_fremovexattr SYS_fsetxattr SYS_lremovexattr SYS_lsetxattr
    SYS_removexattr SYS_setxattr SYS_utimensat
];
#[cfg(target_arch = "x86_64")]
const METADATA_HERE: SystemCalls = calls![SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_futimesat];
#[cfg(not(target_arch = "x86_64"))]
const METADATA_HERE: SystemCalls = &[];
/// fchmodat2, setxattrat and removexattrat, newer than libc's list.
const METADATA_NEW: [libc::c_long; 3] = [452, 463, 466];

/// All calls of the x32 personality of x86-64 have this bit; a filter by number would not know them.
const X32_BIT: u32 = 0x4000_0000;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// Whether the candidate shares its user with the caller and other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CandidateUser {
    Own,
    Shared,
}

/// Whether the kernel bounds the candidate's files, or the supervisor measures them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileBound {
    Kernel,
    Measured,
}

/// Whether each candidate has a network of its own, an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CandidateNetwork {
    Own,
    Machine,
}

/// The filters, compiled.
#[derive(Debug)]
pub(super) struct SeccompFilters {
    /// What neither a candidate nor the server and its supervisors need: set once, on the server, and inherited.
    of_server: Vec<BpfProgram>,
    refusing: Vec<BpfProgram>,
    hostile: BpfProgram,
    /// Asks the supervisor about hostile calls, which end the candidate, and about those that it makes itself.
    asking: BpfProgram,
    /// Instead of `asking`, where the kernel cannot ask.
    refusing_connections: Option<BpfProgram>,
    messages: Option<BpfProgram>,
}

impl SeccompFilters {
    pub fn new(
        user: CandidateUser,
        files: FileBound,
        network: CandidateNetwork,
    ) -> Result<SeccompFilters, BackendError> {
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> = always(REFUSED);
        let only = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
        let argument = SeccompCondition::new;
        // Streams and sequences of packets, whose other end is fixed once; a datagram goes wherever it is addressed.
        const KIND: u64 = 0xf;
        let but_connected = || -> Result<Vec<SeccompRule>, BackendError> {
            Ok(vec![
                only(vec![argument(0, Dword, Ne, libc::AF_UNIX as u64)?])?,
                only(vec![argument(1, Dword, MaskedEq(KIND), libc::SOCK_DGRAM as u64)?])?,
                only(vec![argument(1, Dword, MaskedEq(KIND), libc::SOCK_RAW as u64)?])?,
            ])
        };
        // A pair reaches no other process; Rust's library starts programs with one.
        refused.insert(libc::SYS_socketpair, but_connected()?);
        match network {
            CandidateNetwork::Own => refused.insert(libc::SYS_socket, but_connected()?),
            CandidateNetwork::Machine => {
                refused.extend(always(NETWORK));
                None
            }
        };
        let typed = |call: u64| only(vec![argument(1, Dword, Eq, call)?]);
        const TIOCLINUX: u64 = 0x541c;
        refused.insert(libc::SYS_ioctl, vec![typed(libc::TIOCSTI)?, typed(TIOCLINUX)?]);
        // A pipe of the usual size holds 64 KiB.
        refused.insert(libc::SYS_fcntl, vec![typed(libc::F_SETPIPE_SZ as u64)?]);
        let another = || only(vec![argument(0, Dword, Ne, 0)?]);
        refused.insert(libc::SYS_prlimit64, vec![another()?]);
        refused.insert(libc::SYS_setpriority, vec![another()?, only(vec![argument(1, Dword, Ne, 0)?])?]);
        const ASK: u64 = 0xffff_ffff;
        refused
            .insert(libc::SYS_personality, vec![only(vec![argument(0, Dword, Ne, ASK)?, argument(0, Dword, Ne, 0)?])?]);
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        let mut refusing = Vec::new();
        let mut messages = None;
        if user == CandidateUser::Shared {
            let mut metadata = always(METADATA);
            metadata.extend(always(METADATA_HERE));
            metadata.extend(METADATA_NEW.map(|call| (call, Vec::new())));
            refusing.push(compiled(metadata, refuse.clone())?);
        }
        // A process that is not dumpable shows its supervisor neither its descriptors nor its mappings.
        const DUMPABLE: u64 = 1;
        let hide = vec![argument(0, Dword, Eq, libc::PR_SET_DUMPABLE as u64)?, argument(1, Dword, Ne, DUMPABLE)?];
        let hiding = BTreeMap::from([(libc::SYS_prctl, vec![only(hide)?])]);
        refusing.push(compiled(hiding, refuse.clone())?);
        if files == FileBound::Measured {
            refusing.push(compiled(always(ALLOCATION), SeccompAction::Errno(libc::EOPNOTSUPP as u32))?);
            messages = Some(compiled(always(MESSAGES), refuse.clone())?);
        }
        for call in [libc::SYS_sched_setaffinity, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler] {
            refused.insert(call, vec![another()?]);
        }
        refusing.push(compiled(without_effect()?, SeccompAction::Errno(0))?);
        let mut hostile = always(HOSTILE);
        hostile.extend(always(HOSTILE_HERE));
        let namespaces = [
            libc::CLONE_NEWNS,
            libc::CLONE_NEWCGROUP,
            libc::CLONE_NEWUTS,
            libc::CLONE_NEWIPC,
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWPID,
            libc::CLONE_NEWNET,
        ];
        let with = |flag: i32| only(vec![argument(0, Dword, MaskedEq(flag as u64), flag as u64)?]);
        hostile.insert(libc::SYS_clone, namespaces.into_iter().map(with).collect::<Result<_, _>>()?);
        let connecting = match network {
            CandidateNetwork::Own => always(calls![SYS_connect]),
            CandidateNetwork::Machine => BTreeMap::new(),
        };
        let mut asked = hostile.clone();
        asked.extend(connecting.clone());
        let refusing_connections = match connecting.is_empty() {
            true => None,
            false => Some(compiled(connecting, refuse.clone())?),
        };
        let absent = compiled(always(ABSENT), SeccompAction::Errno(libc::ENOSYS as u32))?;
        let of_server = vec![absent, compiled(refused, refuse)?];
        let hostile = compiled(hostile, SeccompAction::KillProcess)?;
        let asking = compiled(asked, SeccompAction::KillProcess)?
            .into_iter()
            .map(|step| match step {
                sock_filter { k: KILL, .. } => sock_filter { k: libc::SECCOMP_RET_USER_NOTIF, ..step },
                step => step,
            })
            .collect();
        Ok(SeccompFilters { of_server, refusing, hostile, asking, refusing_connections, messages })
    }

    /// Sets the filters of the server on this process, which has given up new privileges.
    pub fn confine_server(&self) -> io::Result<()> {
        self.of_server.iter().try_for_each(|filter| set(filter, 0).map(drop))
    }

    /// Sets all other filters on this process but [`SeccompFilters::refuse_messages`]. Returns a descriptor that
    /// reports hostile calls and connections; `None` if the machine allows no listener: then the kernel kills the
    /// caller of a hostile call, and refuses connections.
    pub fn confine(&self) -> io::Result<Option<OwnedFd>> {
        for filter in &self.refusing {
            set(filter, 0)?;
        }
        const LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        // A signal to a process whose connection is being made does not interrupt it. Older kernels lack that.
        const UNINTERRUPTED: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        match set(&self.asking, LISTENER | UNINTERRUPTED).or_else(|_| set(&self.asking, LISTENER)) {
            // SAFETY: the kernel has just opened this descriptor for us, and nothing else knows of it.
            Ok(listener) => Ok(Some(unsafe { OwnedFd::from_raw_fd(listener) })),
            Err(_) => {
                self.refusing_connections
                    .iter()
                    .chain([&self.hostile])
                    .try_for_each(|filter| set(filter, 0).map(drop))?;
                Ok(None)
            }
        }
    }

    /// Sets the last filter, when this process has handed over its listener by a message.
    pub fn refuse_messages(&self) -> io::Result<()> {
        self.messages.as_ref().map_or(Ok(()), |filter| set(filter, 0).map(drop))
    }
}

/// Calls that are answered as done, and are not: a process that gives up its turns waits for a core without end on a
/// busy machine, and a socket with a larger buffer holds more than its supervisor counts.
fn without_effect() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let argument = SeccompCondition::new;
    let own = || argument(0, Dword, Eq, 0);
    // SAFETY: takes no pointers; the own process has a priority.
    let priority = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // A lower priority is a larger number; a higher one the kernel refuses.
    let lower = |from: i32, to: i32| {
        let (from, to) =
            (argument(2, Dword, Ge, u64::from(from as u32))?, argument(2, Dword, Le, u64::from(to as u32))?);
        SeccompRule::new(vec![own()?, argument(1, Dword, Eq, 0)?, from, to])
    };
    let mut lowers = vec![lower(priority.max(0), i32::MAX)?];
    if priority < 0 {
        lowers.push(lower(priority, -1)?);
    }
    const RESET_ON_FORK: u64 = 0x4000_0000;
    let idle = |policy: i32| {
        SeccompRule::new(vec![own()?, argument(1, Dword, MaskedEq(0xffff_ffff & !RESET_ON_FORK), policy as u64)?])
    };
    let buffer =
        vec![argument(1, Dword, Eq, libc::SOL_SOCKET as u64)?, argument(2, Dword, Eq, libc::SO_SNDBUF as u64)?];
    Ok(BTreeMap::from([
        (libc::SYS_setpriority, lowers),
        (libc::SYS_sched_setscheduler, vec![idle(libc::SCHED_IDLE)?, idle(libc::SCHED_BATCH)?]),
        (libc::SYS_setsockopt, vec![SeccompRule::new(buffer)?]),
    ]))
}

/// Lets this process send signals only to itself and its group, for kernels with a Landlock that does not scope
/// signals.
pub(super) fn signal_only_itself() -> io::Result<()> {
    let own = u64::from(std::process::id());
    let group = u64::from((std::process::id() as i32).wrapping_neg() as u32);
    let rules = || -> Result<BpfProgram, BackendError> {
        let argument = |value: u64| SeccompCondition::new(0, Dword, Ne, value);
        let mut refused = always(calls![SYS_pidfd_send_signal SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo]);
        refused.insert(libc::SYS_kill, vec![SeccompRule::new(vec![argument(own)?, argument(0)?, argument(group)?])?]);
        refused.insert(libc::SYS_tkill, vec![SeccompRule::new(vec![argument(own)?])?]);
        refused.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![argument(own)?])?]);
        let owner = |command: i32| SeccompRule::new(vec![SeccompCondition::new(1, Dword, Eq, command as u64)?]);
        const F_SETOWN_EX: i32 = 15;
        refused.insert(libc::SYS_fcntl, vec![owner(libc::F_SETOWN)?, owner(F_SETOWN_EX)?]);
        compiled(refused, SeccompAction::Errno(libc::EPERM as u32))
    };
    set(&rules().map_err(io::Error::other)?, 0).map(drop)
}

/// The name of a hostile call.
pub(super) fn hostile_call(call: &AskedCall) -> String {
    let number = call.number();
    let known = HOSTILE.iter().chain(HOSTILE_HERE).find(|(_, known)| *known == number).map(|(name, _)| *name);
    match known {
        Some(name) => name.trim_start_matches("SYS_").into(),
        None if number == libc::SYS_clone => "clone into new namespaces".into(),
        None => "a system call of another architecture".into(),
    }
}

fn always(calls: SystemCalls) -> BTreeMap<i64, Vec<SeccompRule>> {
    calls.iter().map(|(_, number)| (*number, Vec::new())).collect()
}

fn compiled(rules: BTreeMap<i64, Vec<SeccompRule>>, action: SeccompAction) -> Result<BpfProgram, BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let filter: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, action, arch).and_then(BpfProgram::try_from)?;
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let mut whole = vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32_BIT),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, KILL),
    ];
    whole.extend(filter);
    Ok(whole)
}

fn set(filter: &BpfProgram, flags: libc::c_ulong) -> io::Result<i32> {
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies `len` instructions, which outlive the call; both crates mirror the kernel's struct of
    // them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    Ok(Errno::result(done)? as i32)
}
