//! Confined processes: an untrusted program runs in one folder, under limits on time, memory, output and processes,
//! without network and without other files; when it ends, all its processes and files are removed. The rest of the
//! judge decides what the end of a program means for a verdict.
//!
//! Three processes stand between the caller and a candidate. The *sandbox server*, started once, is our own executable,
//! run again ([`enter_if_helper`]); small and single-threaded, it can fork cheaply. For each candidate it forks a
//! *supervisor*, some ahead of need, which sets up the isolation, watches all processes of the candidate and kills
//! them. The candidate itself is a child of the supervisor and confines itself before it executes the program. When a
//! caller ends, its server and its supervisors notice that its process has ended, whoever else holds its sockets.
//!
//! In a mount namespace the folder and `/dev/shm` of a candidate are a file system in memory, which the kernel keeps
//! below the output limit; in a control group its pages count towards the memory limit too. Without namespaces the
//! folder is on the machine's disk and measured, and there is no `/dev/shm`, because the machine's is shared: programs
//! that need one (Python's multiprocessing locks, queues, pools and shared memory) fail with RE.

mod confined;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::{Running, Sandbox, WorkFolder, enter_if_helper};

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{Running, Sandbox, WorkFolder, enter_if_helper};

pub use confined::{
    Confined, Ended, How, InForce, Isolation, Limit, SandboxSetup, StdinMode, StdoutMode, WallLimit, WarmInterpreter,
};
