//! What the ranks of a model exchange, and how: through memory that each GPU writes of the others, or through NCCL; and
//! where their threads meet before an exchange (see the folder's docs).

use std::env;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::gathered::Gathered;
use super::peers::Peers;
use crate::compile::units::ExchangedSums;
use crate::driver::device::Device;
use crate::gemm::shared::SharedChoices;
use offshoot_backend::ranks::meeting::Meeting;
use offshoot_backend::ranks::{Aborted, Fabric, FailedExchange};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::TENSOR_PARALLEL;

/// The variable that, if it is 0, keeps our kernels from writing into other GPUs' memory, so that NCCL is used, which
/// may.
const PEER_MEMORY: &str = "OFFSHOOT_PEER_MEMORY";

/// What the ranks exchange, and how.
pub struct CudaFabric {
    pub(super) count: usize,
    pub(super) devices: Vec<Device>,
    pub(super) exchanges: Exchanges,
    pub(super) meeting: Meeting,
    pub(crate) choices: Arc<SharedChoices>,
}

pub(super) enum Exchanges {
    Peers(Peers),
    Gathered(Gathered),
}

impl Exchanges {
    pub fn connect(devices: &[Device]) -> Result<Self> {
        let peers = || match env::var(PEER_MEMORY).as_deref() {
            Ok("0") if devices.len() > 1 => {
                Err(Error::value(PEER_MEMORY, "not 0, for GPUs that write into each other's memory", "0"))
            }
            _ => {
                let mut pairs = devices.iter().flat_map(|device| devices.iter().map(move |peer| (device, peer)));
                pairs.try_for_each(|(device, peer)| {
                    device.read_memory_of(peer)?;
                    match device.is_linked_to(peer)? {
                        true => Ok(()),
                        false => {
                            let ordinal = |device: &Device| device.facts().ordinal;
                            let expected = format!("a GPU that NVLink joins to cuda:{}", ordinal(device));
                            Err(Error::value(TENSOR_PARALLEL, expected, format!("cuda:{}", ordinal(peer))))
                        }
                    }
                })
            }
        };
        match peers() {
            Ok(()) => {
                log::info!("the GPUs write into each other's memory");
                Ok(Exchanges::Peers(Peers::connect(devices)?))
            }
            Err(no_peers) => match Gathered::connect(devices) {
                Ok(gathered) => {
                    log::info!("{no_peers}: NCCL {} serves instead", gathered.nccl.version());
                    Ok(Exchanges::Gathered(gathered))
                }
                Err(no_nccl) => {
                    let expected = "GPUs joined by NVLink, or NCCL";
                    Err(Error::value(TENSOR_PARALLEL, expected, format!("{no_peers}; {no_nccl}")))
                }
            },
        }
    }

    /// Loads the kernels of such sums, before a step needs them.
    pub fn prepare_sums(&self, device: &Device, rank: usize, sums: ExchangedSums) -> Result<()> {
        match self {
            Exchanges::Peers(peers) => peers.sum_kernels(device, rank, sums).map(drop),
            Exchanges::Gathered(gathered) => gathered.sum_kernels(device, rank, sums).map(drop),
        }
    }

    fn abort(&self) {
        match self {
            Exchanges::Peers(peers) => peers.aborted().store(1, Ordering::Release),
            Exchanges::Gathered(gathered) => gathered.nccl.abort(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Exchanges::Peers(peers) => peers.aborted().load(Ordering::Acquire) != 0,
            Exchanges::Gathered(gathered) => gathered.nccl.is_over(),
        }
    }
}

impl CudaFabric {
    /// The exchanges of GPUs that write into each other's memory.
    ///
    /// # Errors
    ///
    /// They do not.
    pub(super) fn peers(&self) -> Result<&Peers> {
        match &self.exchanges {
            Exchanges::Peers(peers) => Ok(peers),
            Exchanges::Gathered(_) => {
                let found = format!("GPUs that are not, or {PEER_MEMORY}=0");
                Err(Error::value(TENSOR_PARALLEL, "GPUs joined by NVLink", found))
            }
        }
    }

    /// Calls `launch`, which enqueues an exchange on `device`, as the module's comment says. Ends what a rank does
    /// whose exchange could not be made or end.
    pub(super) fn exchange(&self, device: &Device, launch: impl FnOnce() -> Result<()>) {
        // One alone waits for nobody, and asks nothing: it would be answered what an earlier launch has to report.
        let enqueues_only = if self.count == 1 { Ok(true) } else { device.is_capturing() };
        let launched = match enqueues_only {
            Ok(true) => launch(),
            Ok(false) => {
                self.meeting.meet();
                let launched = launch().and_then(|()| device.synchronise());
                // What it has brought may be incomplete.
                if launched.is_ok() && self.exchanges.is_over() {
                    resume_unwind(Box::new(Aborted));
                }
                launched
            }
            Err(error) => Err(error),
        };
        match launched {
            // Another rank's failure is the reason: its error is told.
            Err(_) if self.count > 1 && self.exchanges.is_over() => resume_unwind(Box::new(Aborted)),
            Err(error) => self.fail(device, error),
            Ok(()) => {}
        }
    }

    /// Ends what a rank does that cannot do its part of an exchange: the others wait for it. One alone goes on to the
    /// step's end, which reports the error.
    pub(super) fn fail(&self, device: &Device, error: Error) {
        match self.count {
            1 => device.keep(error),
            _ => resume_unwind(Box::new(FailedExchange(error))),
        }
    }
}

impl Fabric for CudaFabric {
    fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    fn abort(&self) {
        self.exchanges.abort();
        self.choices.end();
        self.meeting.abort();
    }

    fn is_aborted(&self) -> bool {
        self.exchanges.is_over()
    }

    fn settle(&self) {
        self.devices.iter().for_each(Device::settle);
    }
}
