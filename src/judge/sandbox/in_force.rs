//! What a sandbox is made of on this machine: each layer, whether it is in force, and by what or why not.

use std::fmt;

/// The layers of a sandbox, as a probe found them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    pub layers: Vec<Layer>,
}

/// One line of what is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub name: &'static str,
    /// By what it is in force, or why it is not.
    pub state: Result<String, String>,
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Layer { name, state } in &self.layers {
            match state {
                Ok(how) => writeln!(f, "{name:<12} in force: {how}")?,
                Err(why) => writeln!(f, "{name:<12} not in force: {why}")?,
            }
        }
        Ok(())
    }
}
