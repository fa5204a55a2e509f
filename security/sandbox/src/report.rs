//! The layers of isolation, and the report on which of them are active for an engine.
//!
//! Does: names each layer and whether it is required; keeps its state with the reason if it is
//! missing.
//! Does not: apply layers; `engine` does.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One layer that confines engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IsolationLayer {
    /// A network namespace without interfaces.
    NetworkNamespace,
    /// A namespace without System V IPC objects and message queues of others.
    IpcNamespace,
    /// A namespace with a host name of its own.
    UtsNamespace,
    /// A process namespace, which ends with the engine.
    PidNamespace,
    /// A read-only root that has the code and nothing else of the machine.
    EmptyRoot,
    /// A user id that no other engine of the same zygote has. Zygotes with one range of ids can
    /// collide; the process namespace and the filter of system calls separate their engines.
    OwnUser,
    /// Empty capability sets.
    NoCapabilities,
    /// Limits of the process: address space, descriptors, processor time, threads, files.
    ResourceLimits,
    /// A cgroup that limits memory.
    MemoryCgroup,
    /// A cgroup that limits the number of processes and threads.
    ProcessCgroup,
    /// A cgroup that shares processor time.
    CpuCgroup,
    /// No core dumps, and no inspection by processes of the same user.
    Undumpable,
    /// No gain of privileges by execve.
    NoNewPrivileges,
    /// No memory that is writable and executable.
    NoWritableCode,
    /// Landlock without any right but to read the code and the binds.
    Landlock,
    /// An allow-list of system calls; any other call kills the engine.
    Seccomp,
}

impl IsolationLayer {
    /// All layers, in the order in which they are applied.
    pub const ALL: [Self; 16] = [
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::PidNamespace,
        Self::MemoryCgroup,
        Self::ProcessCgroup,
        Self::CpuCgroup,
        Self::EmptyRoot,
        Self::NoNewPrivileges,
        Self::OwnUser,
        Self::NoCapabilities,
        Self::Undumpable,
        Self::ResourceLimits,
        Self::NoWritableCode,
        Self::Landlock,
        Self::Seccomp,
    ];

    /// Returns the name that reports and documentation show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetworkNamespace => "network namespace",
            Self::IpcNamespace => "IPC namespace",
            Self::UtsNamespace => "UTS namespace",
            Self::PidNamespace => "PID namespace",
            Self::EmptyRoot => "empty root",
            Self::OwnUser => "own user id",
            Self::NoCapabilities => "no capabilities",
            Self::ResourceLimits => "resource limits",
            Self::MemoryCgroup => "memory cgroup",
            Self::ProcessCgroup => "process cgroup",
            Self::CpuCgroup => "CPU cgroup",
            Self::Undumpable => "not dumpable",
            Self::NoNewPrivileges => "no new privileges",
            Self::NoWritableCode => "no writable code",
            Self::Landlock => "Landlock",
            Self::Seccomp => "seccomp",
        }
    }

    /// Whether no engine starts without this layer, strict or not.
    #[must_use]
    pub const fn is_required(self) -> bool {
        !matches!(
            self,
            Self::OwnUser
                | Self::MemoryCgroup
                | Self::ProcessCgroup
                | Self::CpuCgroup
                | Self::NoWritableCode
                | Self::Landlock
        )
    }
}

impl fmt::Display for IsolationLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a layer confines the engines of a zygote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerState {
    /// The layer is applied completely.
    Active,
    /// The layer is applied as far as the kernel supports it.
    Partial(String),
    /// The layer is not applied, for this reason.
    Unavailable(String),
    /// The layer does not fit this kind of engine.
    NotApplicable(String),
}

/// The layers that confine the engines of a zygote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationReport {
    layers: Vec<(IsolationLayer, LayerState)>,
}

impl IsolationReport {
    /// Returns each layer with its state, in the order of [`IsolationLayer::ALL`].
    pub fn layers(&self) -> impl Iterator<Item = (IsolationLayer, &LayerState)> {
        self.layers.iter().map(|(layer, state)| (*layer, state))
    }

    /// Returns the state of one layer.
    #[must_use]
    pub fn state(&self, layer: IsolationLayer) -> Option<&LayerState> {
        self.layers().find(|(other, _)| *other == layer).map(|(_, state)| state)
    }

    /// Whether a layer is applied completely.
    #[must_use]
    pub fn is_active(&self, layer: IsolationLayer) -> bool {
        self.state(layer) == Some(&LayerState::Active)
    }

    /// Returns the layers that a strict zygote needs and does not have, with the reasons.
    pub fn missing(&self) -> impl Iterator<Item = (IsolationLayer, &str)> {
        self.layers().filter_map(|(layer, state)| match state {
            LayerState::Active | LayerState::NotApplicable(_) => None,
            LayerState::Partial(reason) | LayerState::Unavailable(reason) => Some((layer, reason.as_str())),
        })
    }

    pub(crate) fn set(&mut self, layer: IsolationLayer, state: LayerState) {
        self.layers.retain(|(other, _)| *other != layer);
        self.layers.push((layer, state));
        let position = |layer| IsolationLayer::ALL.iter().position(|other| *other == layer);
        self.layers.sort_by_key(|(layer, _)| position(*layer));
    }

    pub(crate) fn set_active(&mut self, layer: IsolationLayer) {
        self.set(layer, LayerState::Active);
    }
}

impl fmt::Display for IsolationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (layer, state) in self.layers() {
            match state {
                LayerState::Active => writeln!(f, "{layer}: active")?,
                LayerState::Partial(reason) => writeln!(f, "{layer}: partial: {reason}")?,
                LayerState::Unavailable(reason) => writeln!(f, "{layer}: unavailable: {reason}")?,
                LayerState::NotApplicable(reason) => writeln!(f, "{layer}: not applicable: {reason}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_names_missing_layers_in_order() {
        let mut report = IsolationReport::default();
        report.set(IsolationLayer::Landlock, LayerState::Unavailable("kernel 5.10".into()));
        report.set_active(IsolationLayer::Seccomp);
        report.set(IsolationLayer::NoWritableCode, LayerState::NotApplicable("JIT".into()));
        report.set(IsolationLayer::OwnUser, LayerState::Partial("not root".into()));
        let missing: Vec<_> = report.missing().collect();
        assert_eq!(
            missing,
            [(IsolationLayer::OwnUser, "not root"), (IsolationLayer::Landlock, "kernel 5.10")]
        );
        assert!(report.is_active(IsolationLayer::Seccomp) && !report.is_active(IsolationLayer::Landlock));
        assert!(report.to_string().contains("Landlock: unavailable: kernel 5.10\n"));
    }

    #[test]
    fn every_layer_has_its_position_once() {
        for layer in IsolationLayer::ALL {
            assert_eq!(IsolationLayer::ALL.iter().filter(|other| **other == layer).count(), 1, "{layer}");
        }
    }
}
