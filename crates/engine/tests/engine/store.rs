//! Prefixes on disk: engines one after the other, and at once, over one folder. What is read has the bits of what is
//! computed, so every engine tells the same; a file that is not what its name says is computed again.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use offshoot_backend::Dtype;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_engine::{
    CHUNK_TOKENS, Engine, EngineConfig, EngineHandle, Event, Finish, Hear, Metrics, PoolSize, PrefixStoreOptions,
    RootOptions,
    StoredPrefixes::{self, Prompts},
};
use offshoot_kv::CacheSalt;
use offshoot_model::Decoder;

use super::bench::{Mode, Shape, draw, finishes, give, key, length, model, params, prompt, sample, score, tokenizer};
use super::skip::skipped;

const CHUNK: usize = CHUNK_TOKENS;

/// Whole chunks of the prompt that most tests share, and some tokens more.
const PROMPT: usize = 2 * CHUNK + 77;

fn store(folder: &Path) -> PrefixStoreOptions {
    PrefixStoreOptions {
        folder: folder.to_owned(),
        most_bytes: 1 << 30,
        weights: "the model".to_owned(),
        formats: String::new(),
        keeps: Prompts,
    }
}

fn engine_with(mode: Mode, shape: Shape, prefix_store: Option<PrefixStoreOptions>, pool: usize) -> EngineHandle {
    let mut backend = Cpu::open().unwrap();
    let decoder = Decoder::random(&mut backend, model(shape, 4096), Dtype::F32, 7).unwrap();
    let config = EngineConfig {
        pool: PoolSize::Bytes(pool),
        prefix_store,
        check_plans: true,
        run_ahead: mode.run_ahead,
        ..EngineConfig::default()
    };
    Engine::start(decoder.on(backend), Some(tokenizer()), config).unwrap()
}

fn engine(mode: Mode, prefix_store: Option<PrefixStoreOptions>) -> EngineHandle {
    engine_with(mode, Shape::Full, prefix_store, 64 << 20)
}

/// Three samples of a prompt, on an engine that has ended when this returns: all is on disk.
fn run(mode: Mode, prefix_store: Option<PrefixStoreOptions>, prompt: Vec<TokenId>) -> (Vec<Finish>, Metrics) {
    run_and_store(mode, prefix_store, prompt, 0)
}

/// `run`, with the counters when so many chunks or more have been handed to the writer.
fn run_and_store(
    mode: Mode,
    store: Option<PrefixStoreOptions>,
    prompt: Vec<TokenId>,
    chunks: u64,
) -> (Vec<Finish>, Metrics) {
    let engine = engine(mode, store);
    let finishes = sample(&engine, "item", prompt, 3, length(5));
    await_chunks(&engine, chunks);
    (finishes, engine.metrics().unwrap())
}

/// Waits until the engine has counted so many chunks: it hands them to its writer one a turn, also after its last step.
fn await_chunks(engine: &EngineHandle, chunks: u64) {
    let begun = Instant::now();
    while engine.metrics().unwrap().chunks_written < chunks {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", engine.metrics());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the folder has so many chunks or more, each with its own name.
fn await_files(folder: &Path, count: usize) {
    let begun = Instant::now();
    let is_chunk = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "kv");
    while files(folder).iter().filter(|file| is_chunk(file)).count() < count {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", files(folder));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Moves the times of all files back by a minute: a file system's clock may be coarser than what is between two runs.
fn age(folder: &Path) {
    for path in files(folder) {
        let file = fs::File::open(&path).unwrap();
        file.set_modified(file.metadata().unwrap().modified().unwrap() - Duration::from_secs(60)).unwrap();
    }
}

/// Computed and read prompt tokens.
fn tokens(metrics: &Metrics) -> (u64, u64) {
    (metrics.prompt_tokens_computed, metrics.prompt_tokens_stored)
}

fn counts(computed: usize, read: usize) -> (u64, u64) {
    (computed as u64, read as u64)
}

fn a_second_engine_reads_what_the_first_computed(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let (expected, without) = run(mode, None, prompt(1, PROMPT));
    let (first, computed) = run_and_store(mode, Some(store(folder.path())), prompt(1, PROMPT), 2);
    let (second, read) = run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    assert_eq!((&first, &second), (&expected, &expected));
    assert_eq!((tokens(&without), without.chunks_written), (counts(PROMPT, 0), 0));
    assert_eq!((tokens(&computed), computed.chunks_written), (counts(PROMPT, 0), 2));
    assert_eq!((tokens(&read), read.chunks_written), (counts(PROMPT - 2 * CHUNK, 2 * CHUNK), 0));
    assert_eq!(read.prompt_tokens_logical, computed.prompt_tokens_logical);
    assert_eq!(read.tokens_recomputed, 0);
    assert_eq!(files(folder.path()).len(), 2);
}

fn a_prompt_of_whole_chunks_is_read_to_its_end(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = run(mode, Some(store(folder.path())), prompt(2, 2 * CHUNK));
    let (second, read) = run(mode, Some(store(folder.path())), prompt(2, 2 * CHUNK));
    assert_eq!((second, tokens(&read)), (first, counts(0, 2 * CHUNK)));
}

fn prompts_share_the_chunks_that_begin_alike(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let other = [prompt(1, CHUNK + 9), prompt(3, CHUNK)].concat();
    let (expected, _) = run(mode, None, other.clone());
    run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    let (first, some) = run(mode, Some(store(folder.path())), other.clone());
    assert_eq!(tokens(&some), counts(other.len() - CHUNK, CHUNK), "the first chunk is that of the other prompt");
    let (second, all) = run(mode, Some(store(folder.path())), other.clone());
    assert_eq!(tokens(&all), counts(other.len() - 2 * CHUNK, 2 * CHUNK));
    assert_eq!((first, second), (expected.clone(), expected));
    assert_eq!(files(folder.path()).len(), 3);
}

fn prompts_of_other_salts_share_no_chunks(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let run = |salt| {
        let engine = engine(mode, Some(store(folder.path())));
        let root = engine.root_with(prompt(1, PROMPT), RootOptions { salt, ..RootOptions::default() }).unwrap();
        let told = finishes(&engine, vec![draw(root, key("item", 0), params(), length(5))]);
        engine.prune(&[root]);
        (told, tokens(&engine.metrics().unwrap()))
    };
    let salts = [None, Some(CacheSalt([1; 16])), Some(CacheSalt([2; 16]))];
    let (all, rest) = (counts(PROMPT, 0), counts(PROMPT - 2 * CHUNK, 2 * CHUNK));
    let first = salts.map(run);
    assert!(first.iter().all(|told| *told == (first[0].0.clone(), all)), "each is computed: {first:?}");
    assert_eq!(files(folder.path()).len(), 6);
    assert_eq!(salts.map(run), first.map(|(told, _)| (told, rest)), "each reads its own");
}

/// Pages are not shared among prompts in progress at once, nor with sampled branches.
fn prompts_of_other_salts_share_no_pages(mode: Mode) {
    let engine = engine(mode, None);
    let salts = [None, Some(CacheSalt([1; 16])), Some(CacheSalt([2; 16]))];
    let run = |salts: &[Option<CacheSalt>]| {
        let root = |&salt| engine.root_with(prompt(1, 99), RootOptions { salt, ..RootOptions::default() }).unwrap();
        let roots: Vec<_> = salts.iter().map(root).collect();
        let forks: Vec<_> = roots.iter().flat_map(|&root| engine.fork(root, 2).unwrap()).collect();
        let extends = (0..).zip(&forks).map(|(at, &fork)| draw(fork, key("item", at % 2), params(), length(5)));
        let told = finishes(&engine, extends.collect());
        engine.release(&[roots, forks].concat());
        told
    };
    let computed = || engine.metrics().unwrap().prompt_tokens_computed;
    let told = run(&salts);
    assert_eq!(computed(), 3 * 99);
    assert!(told.chunks(2).all(|of_salt| *of_salt == told[..2]), "a salt changes no sample: {told:?}");
    assert_eq!(run(&salts), told);
    assert_eq!(computed(), 3 * 99, "each finds its own prompt again");
    run(&[Some(CacheSalt([3; 16]))]);
    assert_eq!(computed(), 4 * 99);
}

fn prompts_that_part_inside_a_page_are_stored_whole(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let play = |prefix_store, chunks: [usize; 3]| {
        let engine = engine(mode, prefix_store);
        // They begin with the same 3 tokens, and two of them with the same 600.
        let prompts = [(7, 600, chunks[0]), (8, 600, chunks[1]), (9, 3, chunks[2])];
        let told = prompts.map(|(tail, same, chunks)| {
            let told = sample(&engine, "item", [prompt(1, same), prompt(tail, PROMPT)].concat(), 2, length(5));
            await_files(folder.path(), chunks);
            told
        });
        (told, engine.metrics().unwrap())
    };
    let (expected, _) = play(None, [0; 3]);
    // Three chunks of the first prompt, two more of the second, which shares its first, and two of the third.
    let (first, computed) = play(Some(store(folder.path())), [3, 3 + 2, 3 + 2 + 2]);
    let (second, read) = play(Some(store(folder.path())), [0; 3]);
    assert_eq!((&first, &second), (&expected, &expected));
    assert_eq!((computed.chunks_written, files(folder.path()).len()), (3 + 2 + 2, 3 + 2 + 2));
    assert!(read.prompt_tokens_stored > 6 * CHUNK as u64, "{read:?}");
    assert_eq!(read.chunks_written, 0);
}

fn many_prompts_at_once_are_read_as_they_are_admitted(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let crowd = |prefix_store| {
        // Room for about three of the six prompts.
        let engine = engine_with(mode, Shape::Full, prefix_store, 3 * PROMPT * 512);
        let mut extends = Vec::new();
        for salt in 0..6 {
            let root = engine.root(prompt(salt % 3, PROMPT)).unwrap();
            extends.push(score(root, prompt(40 + salt, 20)));
        }
        let told = finishes(&engine, extends);
        (told, engine.metrics().unwrap())
    };
    let (expected, _) = crowd(None);
    let (first, _) = crowd(Some(store(folder.path())));
    let (second, read) = crowd(Some(store(folder.path())));
    assert_eq!((&first, &second), (&expected, &expected));
    assert!(read.prompt_tokens_stored >= 3 * 2 * CHUNK as u64, "{read:?}");
}

fn scores_and_given_texts_are_stored_and_read(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let play = |prefix_store| {
        let engine = engine(mode, prefix_store);
        let root = engine.root(prompt(4, CHUNK + 30)).unwrap();
        let children = engine.fork(root, 2).unwrap();
        finishes(&engine, vec![give(children[0], prompt(5, CHUNK))]);
        let told = finishes(&engine, vec![score(children[0], prompt(6, 50)), score(children[1], prompt(6, 50))]);
        // A root of one token: all the rest is scored, and nothing of it can be read.
        let whole = engine.root(prompt(4, 1)).unwrap();
        (told, finishes(&engine, vec![score(whole, prompt(4, CHUNK + 30).split_off(1))]), engine.metrics().unwrap())
    };
    let (expected, scored, _) = play(None);
    let (first, again, _) = play(Some(store(folder.path())));
    let (second, once_more, read) = play(Some(store(folder.path())));
    assert_eq!((&first, &second), (&expected, &expected));
    assert_eq!((&again, &once_more), (&scored, &scored));
    // The second child needs no more than the first chunk: it may compute the 30 tokens after it while the second is
    // read.
    assert!((2 * CHUNK as u64 - 30..=2 * CHUNK as u64).contains(&read.prompt_tokens_stored), "{read:?}");
}

fn damaged_files_are_removed_and_computed_again(mode: Mode) {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("cut short", |path| fs::write(path, &fs::read(path).unwrap()[..1000]).unwrap()),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("a bit flipped", |path| {
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("another version", |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[7] += 1;
            fs::write(path, bytes).unwrap();
        }),
    ];
    let (expected, _) = run(mode, None, prompt(1, PROMPT));
    for (what, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        run(mode, Some(store(folder.path())), prompt(1, PROMPT));
        let whole: Vec<Vec<u8>> = files(folder.path()).iter().map(|path| fs::read(path).unwrap()).collect();
        files(folder.path()).iter().for_each(|path| damage(path));
        let (told, computed) = run(mode, Some(store(folder.path())), prompt(1, PROMPT));
        assert_eq!((&told, computed.prompt_tokens_stored), (&expected, 0), "{what}");
        // The first file was found damaged and is whole again; the second was not reached.
        let is_whole = |path: &PathBuf| whole.contains(&fs::read(path).unwrap());
        assert_eq!(files(folder.path()).iter().filter(|path| is_whole(path)).count(), 1, "{what}");
        let (told, mended) = run(mode, Some(store(folder.path())), prompt(1, PROMPT));
        assert_eq!((&told, mended.prompt_tokens_stored), (&expected, CHUNK as u64), "{what}");
        assert!(files(folder.path()).iter().all(is_whole), "{what}");
    }
}

fn what_is_no_regular_file_is_no_chunk(mode: Mode) {
    type Place = fn(&Path);
    let places: [(&str, Place, bool); 4] = [
        // Opening it would wait for a writer for ever.
        ("a FIFO", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(), true),
        ("a link", |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(), true),
        ("an empty folder", |path| fs::create_dir(path).unwrap(), true),
        (
            "a folder with a file",
            |path| fs::create_dir(path).and_then(|()| fs::write(path.join("a"), "")).unwrap(),
            false,
        ),
    ];
    let (expected, _) = run(mode, None, prompt(1, PROMPT));
    for (what, place, is_replaced) in places {
        let folder = tempfile::tempdir().unwrap();
        run(mode, Some(store(folder.path())), prompt(1, PROMPT));
        for path in files(folder.path()) {
            fs::remove_file(&path).unwrap();
            place(&path);
        }
        let (told, computed) = run(mode, Some(store(folder.path())), prompt(1, PROMPT));
        assert_eq!((&told, tokens(&computed)), (&expected, counts(PROMPT, 0)), "{what}");
        let (told, mended) = run(mode, Some(store(folder.path())), prompt(1, PROMPT));
        let stored = if is_replaced { 2 * CHUNK } else { 0 };
        assert_eq!((&told, mended.prompt_tokens_stored), (&expected, stored as u64), "{what}");
    }
}

fn pinned_prefixes_can_be_all_that_is_written(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let pinned = PrefixStoreOptions { keeps: StoredPrefixes::Pinned, ..store(folder.path()) };
    run(mode, Some(pinned.clone()), prompt(1, PROMPT));
    assert_eq!(files(folder.path()).len(), 0, "a prompt");
    // What a prompt has computed before is written when it is pinned; a prompt behind it is not.
    let engine = engine(mode, Some(pinned.clone()));
    sample(&engine, "item", prompt(1, PROMPT), 3, length(5));
    let pins = [prompt(1, 2 * CHUNK), prompt(2, CHUNK)].map(|tokens| engine.pin(tokens).unwrap());
    sample(&engine, "item", [prompt(2, CHUNK), prompt(3, CHUNK)].concat(), 3, length(5));
    drop((pins, engine));
    assert_eq!(files(folder.path()).len(), 3);
    let (_, metrics) = run(mode, Some(pinned), prompt(1, PROMPT));
    assert_eq!(tokens(&metrics), counts(PROMPT - 2 * CHUNK, 2 * CHUNK));
}

fn files_under_another_name_are_refused(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    let stored = files(folder.path());
    let [first, second] = &stored[..] else { panic!("two chunks") };
    let bytes = fs::read(first).unwrap();
    fs::copy(second, first).unwrap();
    fs::write(second, bytes).unwrap();
    let (expected, _) = run(mode, None, prompt(1, PROMPT));
    let (told, metrics) = run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    assert_eq!((told, tokens(&metrics)), (expected, counts(PROMPT, 0)));
}

fn other_models_and_formats_do_not_mix(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    let other = PrefixStoreOptions { formats: "fp8 kv".to_owned(), ..store(folder.path()) };
    let (_, metrics) = run_and_store(mode, Some(other), prompt(1, PROMPT), 2);
    assert_eq!((tokens(&metrics), metrics.chunks_written), (counts(PROMPT, 0), 2));
    assert_eq!(files(folder.path()).len(), 4);
}

fn the_prefixes_used_longest_ago_go_first_from_their_ends(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    let bytes: u64 = files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    // Room for five files, of which at most four stay when one is written.
    let small = PrefixStoreOptions { most_bytes: bytes / 2 * 5, ..store(folder.path()) };
    age(folder.path());
    run(mode, Some(small.clone()), prompt(2, PROMPT));
    age(folder.path());
    let (_, used) = run(mode, Some(small.clone()), prompt(1, PROMPT));
    assert_eq!(used.prompt_tokens_stored, 2 * CHUNK as u64);
    age(folder.path());
    run(mode, Some(small.clone()), prompt(3, PROMPT));
    assert!(files(folder.path()).len() <= 5);
    let read = |salt| run(mode, Some(small.clone()), prompt(salt, PROMPT)).1.prompt_tokens_stored;
    assert_eq!(read(3), 2 * CHUNK as u64, "the newest");
    assert_eq!(read(1), 2 * CHUNK as u64, "used after the second was");
    assert!(read(2) <= CHUNK as u64, "its end, at least, is gone");
    let none = PrefixStoreOptions { most_bytes: 10, ..store(&folder.path().join("small")) };
    let (_, metrics) = run(mode, Some(none.clone()), prompt(1, PROMPT));
    assert_eq!((tokens(&metrics), files(&none.folder).len()), (counts(PROMPT, 0), 0));
}

/// The file with a lease on it, as long as it is open: whoever else opens it waits, as for a disk that is slow. The
/// system ends a lease after 45 seconds. `None` where the file system knows none.
fn leased(path: &Path) -> Option<fs::File> {
    // SAFETY: ignoring a signal calls no code; the one that says that somebody opens the file would end the tests.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    // SAFETY: the descriptor is that of an open file, and the call takes a number.
    let is_leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0;
    is_leased.then_some(file)
}

fn others_pass_a_branch_that_waits_for_the_disk(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    let leased: Option<Vec<fs::File>> = files(folder.path()).iter().map(|path| leased(path)).collect();
    let Some(leased) = leased else { return skipped("the file system knows no leases") };
    let engine = engine(mode, Some(store(folder.path())));
    let mut slow = engine.receiver(Hear::Finishes);
    let root = engine.root(prompt(1, PROMPT)).unwrap();
    slow.start(vec![score(root, prompt(5, 20))]).unwrap();
    // Without an end, if it waited for the first one.
    let quick = sample(&engine, "quick", prompt(2, 40), 3, length(5));
    assert!(slow.poll(Duration::ZERO).is_pending(), "its prefix cannot be read yet");
    assert_eq!(quick, sample(&self::engine(mode, None), "quick", prompt(2, 40), 3, length(5)));
    drop(leased);
    assert!(matches!(slow.next(), Some(Event::Finished { .. })));
    assert_eq!(engine.metrics().unwrap().prompt_tokens_stored, 2 * CHUNK as u64);
}

fn engines_at_once_share_a_folder(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let (expected, _) = run(mode, None, prompt(1, PROMPT));
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..4).map(|_| scope.spawn(|| run(mode, Some(store(folder.path())), prompt(1, PROMPT)).0)).collect();
        runs.into_iter().for_each(|run| assert_eq!(run.join().unwrap(), expected));
    });
    assert_eq!(files(folder.path()).len(), 2, "and nothing half written");
    assert_eq!(run(mode, Some(store(folder.path())), prompt(1, PROMPT)).1.prompt_tokens_stored, 2 * CHUNK as u64);
}

fn a_folder_that_vanishes_ends_writing_and_not_the_job(mode: Mode) {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("store");
    let engine = engine(mode, Some(store(&folder)));
    let first = sample(&engine, "item", prompt(1, PROMPT), 3, length(5));
    // While idle, the engine writes what is left; a metrics reply says nothing of that, so both may be. The folder goes
    // at once: removed file by file, it would get new ones meanwhile.
    fs::rename(&folder, top.path().join("gone")).unwrap();
    let second = sample(&engine, "item", prompt(2, PROMPT), 3, length(5));
    drop(engine);
    assert_eq!(first, run(mode, None, prompt(1, PROMPT)).0);
    assert_eq!(second, run(mode, None, prompt(2, PROMPT)).0);
}

#[test]
fn a_file_where_the_folder_should_be_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut backend = Cpu::open().unwrap();
    let decoder = Decoder::random(&mut backend, model(Shape::Full, 4096), Dtype::F32, 7).unwrap();
    let config = EngineConfig { prefix_store: Some(store(file.path())), ..EngineConfig::default() };
    let Err(error) = Engine::start(decoder.on(backend), None, config) else { panic!("a file is no folder") };
    assert!(error.to_string().contains(&file.path().display().to_string()), "{error}");
}

fn windows_change_nothing(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let play = |prefix_store| {
        let engine = engine_with(mode, Shape::Windowed, prefix_store, 64 << 20);
        let told = sample(&engine, "item", prompt(1, PROMPT), 3, length(90));
        (told, engine.metrics().unwrap())
    };
    let (expected, _) = play(None);
    let (first, _) = play(Some(store(folder.path())));
    let (second, read) = play(Some(store(folder.path())));
    assert_eq!((&first, &second), (&expected, &expected));
    assert_eq!(tokens(&read), counts(PROMPT - 2 * CHUNK, 2 * CHUNK));
}

fn a_pool_too_small_for_the_prefix_computes_what_it_can(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let (expected, _) = run(mode, Some(store(folder.path())), prompt(1, PROMPT));
    // Barely room for the prompt and one sample.
    let (cpu, decoder) = super::bench::decoder(Shape::Full);
    let page = offshoot_backend::Backend::page_bytes(&cpu, &decoder.kv_shape(1));
    let engine = engine_with(mode, Shape::Full, Some(store(folder.path())), (PROMPT.div_ceil(16) + 2) * page);
    sample(&engine, "other", prompt(9, PROMPT), 1, length(5));
    assert_eq!(sample(&engine, "item", prompt(1, PROMPT), 3, length(5)), expected);
    assert_eq!(engine.metrics().unwrap().prompt_tokens_stored, 2 * CHUNK as u64);
}

/// The chunks before those that are read are freed behind windows, as those of prompts that are computed.
fn stored_prefixes_of_layers_with_a_window_are_read_where_pages_are_short(mode: Mode) {
    for shape in [Shape::LongWindowed, Shape::LongMixed] {
        let folder = tempfile::tempdir().unwrap();
        let run = |pool: usize| {
            let engine = engine_with(mode, shape, Some(store(folder.path())), pool);
            let told = sample(&engine, "item", prompt(9, PROMPT), 2, length(5));
            (told, engine.metrics().unwrap(), engine.facts().clone())
        };
        let (expected, computed, facts) = run(64 << 20);
        assert_eq!(tokens(&computed), counts(PROMPT, 0));
        await_files(folder.path(), 2);
        // Room for a chunk and the window before it, and for samples.
        let windowed = facts.page_groups.with(offshoot_kv::Reach::Window);
        let pages = facts.path_pages(PROMPT, 5) + windowed * (CHUNK / facts.page_tokens / 2);
        assert!(pages < facts.page_groups.count() * PROMPT.div_ceil(facts.page_tokens));
        let (told, read, _) = run(pages * facts.page_bytes);
        assert_eq!(told, expected, "{shape:?}");
        assert_eq!(tokens(&read), counts(PROMPT - 2 * CHUNK, 2 * CHUNK), "{shape:?}");
    }
}

/// A prefix store with the states of recurrent layers: the state after a prompt's last chunk is stored with it, so
/// that a restart computes no more rows than the tokens behind it.
fn states_are_stored_where_prompts_end_and_part(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let play = |stored: bool, prompts: &[Vec<TokenId>]| {
        let engine = engine_with(mode, Shape::Hybrid, stored.then(|| store(folder.path())), 64 << 20);
        let roots = prompts.iter().map(|prompt| engine.root(prompt.clone()).unwrap());
        let told = finishes(&engine, roots.map(|root| score(root, prompt(50, 20))).collect());
        let metrics = engine.metrics().unwrap();
        drop(engine);
        (told, metrics)
    };
    let states = || files(folder.path()).iter().filter(|path| path.extension().unwrap() == "state").count();
    let one = [prompt(1, PROMPT)];
    let (expected, _) = play(false, &one);
    let (first, computed) = play(true, &one);
    assert_eq!((tokens(&computed).1, files(folder.path()).len(), states()), (0, 3, 1), "{computed:?}");
    let (second, read) = play(true, &one);
    assert_eq!((&first, &second), (&expected, &expected));
    assert_eq!(tokens(&read).1, 2 * CHUNK as u64, "{read:?}");
    assert!(read.rows <= (PROMPT - 2 * CHUNK + 20) as u64, "{read:?}");

    // Another prompt parts before that state, so it is computed from its start.
    let other = |salt: u64| [prompt(1, CHUNK + 9), prompt(salt, CHUNK)].concat();
    let (expected, _) = play(false, &[other(3)]);
    let (third, computed) = play(true, &[other(3)]);
    assert_eq!((&third, tokens(&computed).1), (&expected, 0));
    // Of two that are known together, the state before the place where they part is stored, too.
    let two = [other(4), other(5)];
    let (expected, _) = play(false, &two);
    let (fourth, computed) = play(true, &two);
    assert_eq!((&fourth, tokens(&computed).1, states()), (&expected, 0, 5), "{computed:?}");
    let (expected, _) = play(false, &[other(6)]);
    let (fifth, read) = play(true, &[other(6)]);
    assert_eq!((&fifth, tokens(&read).1), (&expected, CHUNK as u64));
    assert!(read.rows <= (9 + CHUNK + 20) as u64, "{read:?}");
}

fn a_damaged_state_is_removed_and_computed_again(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let play = || {
        let engine = engine_with(mode, Shape::Hybrid, Some(store(folder.path())), 64 << 20);
        let told = sample(&engine, "item", prompt(1, PROMPT), 3, length(5));
        await_files(folder.path(), 2);
        (told, engine.metrics().unwrap().rows)
    };
    let (expected, rows) = play();
    let state = || files(folder.path()).into_iter().find(|path| path.extension().unwrap() == "state");
    let path = state().unwrap();
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    fs::write(&path, flipped).unwrap();
    let (told, again) = play();
    assert_eq!(told, expected);
    assert!(again >= rows, "{again} rows after {rows}");
    assert_eq!(state(), None, "what is not what its name says is removed");
}

in_modes! {
    in_turn, run_ahead:
    a_second_engine_reads_what_the_first_computed,
    a_prompt_of_whole_chunks_is_read_to_its_end,
    prompts_share_the_chunks_that_begin_alike,
    prompts_of_other_salts_share_no_chunks,
    prompts_of_other_salts_share_no_pages,
    prompts_that_part_inside_a_page_are_stored_whole,
    many_prompts_at_once_are_read_as_they_are_admitted,
    scores_and_given_texts_are_stored_and_read,
    damaged_files_are_removed_and_computed_again,
    what_is_no_regular_file_is_no_chunk,
    pinned_prefixes_can_be_all_that_is_written,
    files_under_another_name_are_refused,
    other_models_and_formats_do_not_mix,
    the_prefixes_used_longest_ago_go_first_from_their_ends,
    others_pass_a_branch_that_waits_for_the_disk,
    engines_at_once_share_a_folder,
    a_folder_that_vanishes_ends_writing_and_not_the_job,
    windows_change_nothing,
    a_pool_too_small_for_the_prefix_computes_what_it_can,
    stored_prefixes_of_layers_with_a_window_are_read_where_pages_are_short,
    states_are_stored_where_prompts_end_and_part,
    a_damaged_state_is_removed_and_computed_again,
}
