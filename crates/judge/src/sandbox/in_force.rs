//! The layers of a sandbox on this machine: whether each is in force, and by which means or why not.

use std::fmt;

/// The layers of a sandbox, as a probe found them, each a line of the report: by which means it is in force, or why it is
/// not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce(pub(super) Vec<(&'static str, Result<String, String>)>);

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, state) in &self.0 {
            match state {
                Ok(how) => writeln!(f, "{name:<12} in force: {how}")?,
                Err(why) => writeln!(f, "{name:<12} not in force: {why}")?,
            }
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
impl InForce {
    /// `tried`: the probes that succeeded but should have been refused.
    pub(super) fn new(found: &super::confinement::ConfinementFacts, tried: &[super::probe::SandboxProbe]) -> InForce {
        use super::confinement::SCOPES;
        use super::probe::SandboxProbe;
        let landlock = match found.landlock {
            Some(version @ SCOPES..) => Ok(format!("version {version}: files, TCP, signals and abstract sockets")),
            Some(version @ 4..) => Ok(format!("version {version}: files, TCP")),
            Some(version) => Ok(format!("version {version}: files")),
            None => Err("the kernel lacks it, or it is switched off (lsm=landlock)".into()),
        };
        let words = |probes: &[SandboxProbe]| probes.iter().map(|probe| probe.words()).collect::<Vec<_>>().join(", ");
        let tried = match tried {
            [] => Ok(format!("refused to a process of ours: {}", words(&SandboxProbe::ALL))),
            open => Err(format!("not refused to a process of ours: {}", words(open))),
        };
        InForce(vec![
            ("namespaces", found.namespaces.clone()),
            ("landlock", landlock),
            ("seccomp", found.seccomp.clone()),
            ("identity", found.identity.clone()),
            ("processes", Ok(found.processes.clone())),
            ("memory", Ok(found.memory.clone())),
            ("cpu time", Ok(found.cpu.clone())),
            ("files", Ok(found.files.clone())),
            ("probes", tried),
        ])
    }
}
