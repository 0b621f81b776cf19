//! The isolation mechanisms of a sandbox server: prepared once, used by every supervisor.

use std::io;
use std::path::PathBuf;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

use super::calls::{CandidateNetwork, CandidateUser, FileBound, SeccompFilters};
use super::delays::DelaySource;
use super::files::{self, CommonRules};
use super::groups::GroupFacts;
use super::identity::{self, Identity};
use super::probe::SandboxProbe;
use super::root::CommonRoot;
use super::{InForce, base};

/// The available layers.
#[derive(Debug)]
pub(super) struct Confinement {
    pub identity: Identity,
    pub landlock: Option<u32>,
    pub filters: Option<SeccompFilters>,
    /// `None`: real time counts in full.
    pub delays: Option<DelaySource>,
    /// Existing files and folders that no candidate can read, by all their names.
    pub hidden: Vec<PathBuf>,
    /// With namespaces: what all candidates see and may read.
    pub common_root: Option<CommonRoot>,
    pub common_rules: Option<CommonRules>,
}

/// The state of each layer, for the caller: by which means it is in force, or why it is not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ConfinementFacts {
    pub namespaces: Result<String, String>,
    /// The other layers by name.
    layers: Vec<(String, Result<String, String>)>,
    /// The folders that hold all control groups of the server.
    pub groups: Vec<PathBuf>,
    pub user: CandidateUser,
}

impl ConfinementFacts {
    /// The layers; `tried`: the probes that succeeded but should have been refused.
    pub fn in_force(self, tried: &[SandboxProbe]) -> InForce {
        let words = |probes: &[SandboxProbe]| probes.iter().map(|probe| probe.words()).collect::<Vec<_>>().join(", ");
        let tried = match tried {
            [] => Ok(format!("refused to a process of ours: {}", words(&SandboxProbe::ALL))),
            open => Err(format!("not refused to a process of ours: {}", words(open))),
        };
        let mut layers = vec![("namespaces".to_string(), self.namespaces)];
        layers.extend(self.layers);
        layers.push(("probes".to_string(), tried));
        InForce(layers)
    }
}

/// The first version of Landlock that confines signals and abstract sockets.
pub(super) const SCOPES: u32 = 6;

impl Confinement {
    /// Enters the namespaces that all candidates share, and in which none of them has any rights.
    pub fn new(want_namespaces: bool, groups: &GroupFacts, hidden: &[PathBuf]) -> (Confinement, ConfinementFacts) {
        let namespaces = match want_namespaces {
            true => enter_namespaces().map_err(|why| format!("the kernel refuses them ({why})")),
            false => Err("not wanted".into()),
        };
        let common_root = namespaces.is_ok().then(CommonRoot::plan);
        let namespaced = common_root.is_some();
        let identity = Identity::at_hand(namespaced);
        let landlock = files::version();
        let user = identity.candidate_user();
        let (files, network, sockets) = match namespaced {
            true => (FileBound::Kernel, CandidateNetwork::Own, "sockets but among its own processes"),
            false => (FileBound::Measured, CandidateNetwork::Machine, "sockets"),
        };
        let filters = usable_filters().and_then(|()| {
            SeccompFilters::new(user, files, network).map_err(|why| format!("its filter does not compile: {why}"))
        });
        let (filters, seccomp) = match filters {
            Ok(filters) => (Some(filters), Ok(format!("no {sockets}, tracing, mounts, namespaces, io_uring, keys"))),
            Err(why) => (None, Err(why)),
        };
        let hidden = hidden.iter().filter(|path| path.exists()).flat_map(|path| base::names(path)).collect();
        let common_rules = (namespaced && landlock.is_some()).then(CommonRules::open);
        let delays = DelaySource::at_hand(groups.pressure);
        let confinement = Confinement { identity, landlock, filters, delays, hidden, common_root, common_rules };
        let measured = |why: &String| format!("all processes of a candidate together, checked every 5 ms ({why})");
        let bounded = |how: &String| format!("{how}; RLIMIT_DATA as a second limit");
        let in_words = match landlock {
            Some(version @ SCOPES..) => Ok(format!("version {version}: files, TCP, signals and abstract sockets")),
            Some(version @ 4..) => Ok(format!("version {version}: files, TCP")),
            Some(version) => Ok(format!("version {version}: files")),
            None => Err("the kernel lacks it, or it is switched off (lsm=landlock)".into()),
        };
        let files = match namespaced {
            true => "a file system in memory for each candidate, bounded by the kernel".into(),
            false => "the files of a candidate are measured while it runs; it may not pass file descriptors".into(),
        };
        let layers = [
            ("landlock", in_words),
            ("seccomp", seccomp),
            ("identity", confinement.who()),
            ("processes", Ok(confinement.reach())),
            ("memory", Ok(groups.memory.as_ref().map_or_else(measured, bounded))),
            ("cpu time", Ok(groups.cpu.as_ref().map_or_else(measured, String::clone))),
            ("wall clock", DelaySource::in_words(delays)),
            ("files", Ok(files)),
        ];
        let layers = layers.map(|(name, state)| (name.to_string(), state)).into();
        let found = ConfinementFacts { namespaces, layers, groups: groups.tops.clone(), user };
        (confinement, found)
    }

    /// Whether candidates have namespaces: a root, processes and a network of their own, all or none.
    pub fn namespaced(&self) -> bool {
        self.common_root.is_some()
    }

    fn who(&self) -> Result<String, String> {
        match self.identity {
            Identity::Numbers(_) => Ok("each candidate is a separate user, without capabilities (except to read, if \
                                        its program is in a private folder)"
                .into()),
            Identity::Namespace => Ok("your user in a user namespace of its own, without capabilities".into()),
            Identity::Caller => {
                Err("candidates are your own user, without capabilities; they can see which files exist".into())
            }
        }
    }

    fn reach(&self) -> String {
        let seen = if self.namespaced() {
            "a pid namespace ends with its first process"
        } else {
            "orphans are adopted by their supervisor, which ends them"
        };
        let signals = match self.identity {
            Identity::Caller if self.landlock.unwrap_or(0) < SCOPES => {
                "; a process can signal only itself and its group"
            }
            _ => "",
        };
        format!("{seen}{signals}")
    }
}

fn enter_namespaces() -> io::Result<String> {
    let common =
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    let user = if identity::may_administer() {
        unshare(common)?;
        ""
    } else if nix::unistd::geteuid().is_root() {
        return Err(io::Error::other("to root without CAP_SYS_ADMIN"));
    } else {
        identity::map_own_user(common | CloneFlags::CLONE_NEWUSER)?;
        "user, "
    };
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    Ok(format!("{user}mount, pid, net, ipc, uts; a root and a /dev/shm of its own"))
}

/// Whether the kernel has filters of system calls, or why not.
fn usable_filters() -> Result<(), String> {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    const GET_ACTION_AVAIL: libc::c_ulong = 2;
    // SAFETY: the kernel reads one number through the pointer, which outlives the call.
    let known = unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0, &raw const action) };
    if known < 0 {
        return Err(format!("the kernel has no seccomp filters ({})", io::Error::last_os_error()));
    }
    Ok(())
}
