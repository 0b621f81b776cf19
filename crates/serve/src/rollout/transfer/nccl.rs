//! NCCL: the trainer is rank 0 of a communicator and broadcasts; the server is one other rank of it, and receives. The
//! two meet by an id that the trainer publishes in a store or sends. The communicator itself is `launch`'s.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use offshoot_backend::MemoryBlock;
use offshoot_launch::TrainerLink;
use offshoot_openai::protocol::{BodyFields, Refusal};

use super::described::{DescribedTensor, Packing, broadcasts, packing};
use super::tcp_store::StoreClient;
use super::unique_id::UniqueId;
use crate::rollout::failed;

/// The key under which the first of the trainer's broadcasts of Python values is: that of the id.
const ID_KEY: &str = "broadcast_from/0/0";

/// What a trainer says of its communicator.
#[derive(Debug)]
pub struct InitInfo {
    id: IdSource,
    /// The server's rank, and the number of ranks.
    rank: usize,
    world: usize,
    packing: Packing,
}

/// Where the communicator's id is.
enum IdSource {
    /// In the trainer's store.
    Store { host: String, port: u16 },
    /// In the request.
    Told(UniqueId),
}

impl std::fmt::Debug for IdSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IdSource::Store { host, port } => write!(f, "{host}:{port}"),
            IdSource::Told(_) => f.write_str("an id"),
        }
    }
}

impl InitInfo {
    /// # Errors
    ///
    /// A field is wrong or unknown, there is neither a place nor an id, or the server would be other than one rank
    /// beside the trainer's.
    pub fn read(init: &Map<String, Value>) -> Result<InitInfo, Refusal> {
        let mut fields = BodyFields::new(init);
        let (host, port) = (fields.text("master_address")?, fields.count("master_port", 1, u64::from(u16::MAX))?);
        let id = fields.text("nccl_unique_id_b64")?;
        let rank = fields.count("rank_offset", 1, 1 << 20)?.unwrap_or(1);
        let world = fields.count("world_size", 2, 1 << 20)?;
        let world = world.ok_or_else(|| Refusal::value("world_size", "the number of ranks", "nothing"))?;
        let packing = packing(&mut fields, Packing::Single)?;
        fields.finish()?;
        if rank >= world {
            let expected = format!("a rank below `world_size`, {world}");
            return Err(Refusal::value("rank_offset", &expected, &rank.to_string()));
        }
        let id = match (host, port, id) {
            (None, None, Some(id)) => {
                let id = UniqueId::of_base64(&id);
                IdSource::Told(id.ok_or_else(|| Refusal::value("nccl_unique_id_b64", "128 bytes in base64", "others"))?)
            }
            (Some(host), Some(port), None) => {
                let port = u16::try_from(port).map_err(|_| Refusal::value("master_port", "a port", "none"))?;
                IdSource::Store { host, port }
            }
            _ => {
                let expected = "with `master_port`, or `nccl_unique_id_b64` alone";
                return Err(Refusal::value("master_address", expected, "neither, or both"));
            }
        };
        Ok(InitInfo { id, rank, world, packing })
    }

    /// The id, once the trainer has published it.
    fn unique_id(&self, timeout: Duration) -> Result<UniqueId, Refusal> {
        let (host, port) = match &self.id {
            IdSource::Told(id) => return Ok(*id),
            IdSource::Store { host, port } => (host, *port),
        };
        let unmet = |why: String| {
            let what = format!("no rendezvous with the trainer's store at {host}:{port}: {why}");
            Refusal::new("no_rendezvous", what)
        };
        let published = StoreClient::connect(host, port, Instant::now() + timeout)
            .and_then(|mut store| store.wait_for(ID_KEY))
            .map_err(|error| unmet(error.to_string()))?;
        UniqueId::of_pickle(&published).ok_or_else(|| unmet("what it holds is not the id of a communicator".to_owned()))
    }
}

/// A communicator with a trainer.
pub struct NcclSession {
    link: Box<dyn TrainerLink>,
    pub packing: Packing,
    /// The tensors of the update before.
    last: Vec<DescribedTensor>,
}

impl NcclSession {
    /// Meets the trainer; returns when both have joined the communicator. `gpu`: what receives.
    ///
    /// # Errors
    ///
    /// The engine has no GPU, the trainer does not come within `timeout`, or NCCL fails.
    pub fn open(info: &InitInfo, gpu: Option<usize>, timeout: Duration) -> Result<NcclSession, Refusal> {
        let Some(gpu) = gpu else {
            let what = "NCCL joins GPUs, and the engine computes on the CPU: send the tensors in bodies or in a folder";
            return Err(Refusal::new("unsupported_transfer", what));
        };
        let id = info.unique_id(timeout)?;
        let link = offshoot_launch::trainer_link(gpu, id.0, info.rank, info.world, timeout);
        let link = link.map_err(|error| failed(&error))?;
        Ok(NcclSession::of(link, info.packing))
    }

    /// A session by this link.
    pub fn of(link: Box<dyn TrainerLink>, packing: Packing) -> NcclSession {
        NcclSession { link, packing, last: Vec::new() }
    }

    /// The tensors that a trainer says will come; `None`: those of the last time.
    ///
    /// # Errors
    ///
    /// There was no last time.
    pub fn coming(&mut self, told: Option<Vec<DescribedTensor>>) -> Result<&[DescribedTensor], Refusal> {
        if let Some(told) = told {
            self.last = told;
        }
        match self.last.is_empty() {
            true => {
                let expected = "at least one tensor; an empty list means those of the last time";
                Err(Refusal::value("names", expected, "an empty list, the first time"))
            }
            false => Ok(&self.last),
        }
    }

    /// Receives the tensors of [`coming`](Self::coming), in the broadcasts into which their sender cuts them. `add`
    /// takes each block of whole tensors as it comes.
    ///
    /// # Errors
    ///
    /// The trainer is silent too long, or NCCL or `add` fails; the session is of no use any more.
    pub fn receive(&mut self, packing: Packing, add: &mut AddBlock<'_>) -> Result<(), Refusal> {
        for broadcast in broadcasts(&self.last, packing) {
            // A trainer sends no broadcast for tensors without numbers.
            let block = match broadcast.bytes {
                0 => MemoryBlock::Host(Vec::new()),
                bytes => self.link.receive(bytes).map_err(|error| failed(&error))?,
            };
            add(block, &self.last[broadcast.tensors])?;
        }
        Ok(())
    }
}

/// Takes a block of whole tensors.
type AddBlock<'a> = dyn FnMut(MemoryBlock, &[DescribedTensor]) -> Result<(), Refusal> + 'a;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use serde_json::json;

    use offshoot_model::TensorDtype;

    use super::*;

    fn read(init: &Value) -> Result<InitInfo, Refusal> {
        InitInfo::read(init.as_object().expect("an object"))
    }

    fn at(port: u16) -> Value {
        json!({"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2, "packed": true})
    }

    #[test]
    fn trainers_say_where_they_are() {
        let info = read(&at(51216)).expect("it is right");
        assert_eq!((info.rank, info.world), (1, 2));
        assert_eq!(info.packing, Packing::Packed { buffer: Packing::USUAL_BUFFER });
        for (field, wrong) in [
            ("world_size", json!({"master_address": "a", "master_port": 1})),
            ("rank_offset", json!({"master_address": "a", "master_port": 1, "rank_offset": 2, "world_size": 2})),
            ("master_address", json!({"master_port": 1, "world_size": 2})),
            ("nccl_unique_id_b64", json!({"nccl_unique_id_b64": "AAAA", "world_size": 2})),
            ("host", json!({"host": "a", "world_size": 2})),
        ] {
            assert_eq!(read(&wrong).expect_err("it is wrong").param.as_deref(), Some(field));
        }
    }

    /// The server plays no part in it before it knows that NCCL can be used.
    #[test]
    fn an_engine_without_a_gpu_says_so_at_once() {
        let refused = NcclSession::open(&read(&at(1)).expect("it is right"), None, Duration::from_secs(3600));
        let refused = refused.map(drop).expect_err("there is no GPU");
        assert!(refused.status() == 400 && refused.message.contains("CPU"), "{}", refused.message);
    }

    #[test]
    fn the_id_comes_from_the_trainers_store() {
        let ids: [u8; 128] = std::array::from_fn(|at| at as u8);
        let value = super::super::unique_id::tests::pickle(&ids);
        for (value, is_id) in [(value, true), (b"nonsense".to_vec(), false)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("it is bound").port();
            let trainer = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("the server");
                let mut answer = |request: usize, answer: &[u8]| {
                    stream.read_exact(&mut vec![0; request]).expect("a request");
                    stream.write_all(answer).expect("it reads");
                };
                answer(27, &2i64.to_le_bytes());
                answer(36, &[0]);
                answer(28, &[&(value.len() as u64).to_le_bytes()[..], &value].concat());
            });
            let id = read(&at(port)).expect("it is right").unique_id(Duration::from_secs(60));
            trainer.join().expect("no panic");
            assert_eq!(
                id.map(|id| id.0 == ids).map_err(|refusal| refusal.code),
                if is_id { Ok(true) } else { Err("no_rendezvous") }
            );
        }
        let nobody = read(&at(9)).expect("it is right").unique_id(Duration::from_millis(100));
        assert_eq!(nobody.map(drop).expect_err("nobody listens").code, "no_rendezvous");
    }

    /// Counts up from where it is.
    struct Counting(u8);

    impl TrainerLink for Counting {
        fn receive(&mut self, bytes: usize) -> offshoot_core::error::Result<MemoryBlock> {
            let begin = self.0;
            self.0 = begin.wrapping_add(bytes as u8);
            Ok(MemoryBlock::Host((0..bytes).map(|at| begin.wrapping_add(at as u8)).collect()))
        }
    }

    #[test]
    fn broadcasts_are_cut_into_their_tensors() {
        let tensor = |name: &str, bytes| DescribedTensor {
            name: name.to_owned(),
            dtype: TensorDtype::U8,
            shape: vec![bytes],
            bytes,
        };
        let tensors = [tensor("a", 3), tensor("b", 2), tensor("none", 0), tensor("c", 4)];
        for packing in [Packing::Single, Packing::Packed { buffer: 4 }, Packing::Packed { buffer: 100 }] {
            let mut got = Vec::new();
            let mut add = |block: MemoryBlock, tensors: &[DescribedTensor]| {
                let MemoryBlock::Host(block) = block else { panic!("the link receives into host memory") };
                assert_eq!(block.len(), tensors.iter().map(|tensor| tensor.bytes).sum::<usize>());
                got.extend(block);
                Ok(())
            };
            let mut session = NcclSession::of(Box::new(Counting(0)), packing);
            session.coming(Some(tensors.to_vec())).expect("there are some");
            session.receive(packing, &mut add).expect("nothing fails");
            assert_eq!(got, (0..9).collect::<Vec<u8>>(), "{packing:?}");
        }
    }
    #[test]
    fn an_empty_list_means_the_tensors_of_the_last_time() {
        let mut session = NcclSession::of(Box::new(Counting(0)), Packing::Single);
        let refused = session.coming(None).map(drop).expect_err("there was no last time");
        assert_eq!((refused.status(), refused.param.as_deref()), (400, Some("names")));
        let tensor = DescribedTensor { name: "a".to_owned(), dtype: TensorDtype::U8, shape: vec![3], bytes: 3 };
        let named = [tensor];
        assert_eq!(session.coming(Some(named.to_vec())).expect("there is one"), named);
        assert_eq!(session.coming(None).expect("those of the last time"), named);
    }
}
