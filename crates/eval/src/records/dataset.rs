//! Folders of Parquet files as the Hugging Face Hub stores data sets (`data/test-00000-of-00002.parquet`,
//! `main/test-*.parquet`, `main/test/0000.parquet`, a cache with `snapshots`), or as Spark and others write them: which
//! files are one split of one subset. What is in the files is left to `parquet`.

use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_core::json::listed;

/// Which files of a folder are read; `None` where the folder has only one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitChoice {
    /// As the Hub calls it (`main`, `socratic`): the folder above the split.
    pub subset: Option<String>,
    /// `train`, `test`.
    pub split: Option<String>,
}

/// A file of a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shard {
    /// Empty: the folder has no name for it.
    subset: String,
    split: String,
    path: PathBuf,
    /// The number of files of its split, if its name says so.
    of: Option<usize>,
}

/// Most folders between a data set's folder and its files.
const MOST_DEPTH: usize = 4;
/// Most files that are looked at.
const MOST_FILES: usize = 100_000;

/// Whether `folder` has Parquet files, on some level, and is no folder of documents.
pub(super) fn is_dataset(folder: &Path) -> bool {
    let is_document = |path: &Path| {
        let is_readme = path.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("readme"));
        !is_readme && path.extension().is_some_and(|end| end == "txt" || end == "md")
    };
    let Ok(folder) = snapshot(folder) else { return false };
    let has_documents = entries(&folder).is_ok_and(|paths| paths.iter().any(|path| is_document(path)));
    !has_documents && walk(&folder, 1).is_ok_and(|found| !found.is_empty())
}

/// The Parquet files at `path` in order: a file; those that a pattern with a star in the file's name matches; those of
/// one split of a folder.
///
/// # Errors
///
/// A folder has several splits or subsets and `choice` names none of them; files of a split are missing.
pub(crate) fn files(path: &Path, choice: &SplitChoice) -> Result<Vec<PathBuf>> {
    let is_pattern = path.file_name().is_some_and(|name| name.to_string_lossy().contains('*'));
    let chosen = choice.subset.as_ref().or(choice.split.as_ref());
    match (chosen, path.is_dir()) {
        (_, true) => of_split(path, choice),
        (Some(name), false) => {
            let what = format!("expected a folder in which `{name}` is chosen, found a file, a pattern or nothing");
            Err(Error::format(path, what))
        }
        (None, false) if is_pattern && !path.exists() => matching(path),
        (None, false) => Ok(vec![path.to_path_buf()]),
    }
}

fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy();
    let parts: Vec<String> = name.split('*').map(regex::escape).collect();
    let name = Regex::new(&format!("^{}$", parts.join(".*"))).expect("stars and escaped text are a pattern");
    let folder = pattern.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_match = |path: &PathBuf| path.file_name().is_some_and(|file| name.is_match(&file.to_string_lossy()));
    let found: Vec<PathBuf> = entries(folder)?.into_iter().filter(is_match).collect();
    match found.is_empty() {
        true => Err(Error::format(pattern, "no file has such a name")),
        false => Ok(found),
    }
}

fn of_split(path: &Path, choice: &SplitChoice) -> Result<Vec<PathBuf>> {
    let folder = snapshot(path)?;
    let mut shards: Vec<Shard> = walk(&folder, MOST_FILES)?.into_iter().map(|file| Shard::of(&folder, file)).collect();
    if shards.is_empty() {
        return Err(Error::format(path, "no .parquet file in this folder"));
    }
    let subset = one_of(path, "subset", choice.subset.as_deref(), shards.iter().map(|shard| &*shard.subset).collect())?;
    shards.retain(|shard| shard.subset == subset);
    let split = one_of(path, "split", choice.split.as_deref(), shards.iter().map(|shard| &*shard.split).collect())?;
    shards.retain(|shard| shard.split == split);
    shards.sort();
    match shards.iter().find_map(|shard| shard.of.filter(|of| *of != shards.len())) {
        Some(of) => {
            let what =
                format!("the split `{split}`: expected the {of} files that a name tells, found {}", shards.len());
            Err(Error::format(path, what))
        }
        None => Ok(shards.into_iter().map(|shard| shard.path).collect()),
    }
}

/// The chosen name, or the only one.
fn one_of(path: &Path, what: &str, chosen: Option<&str>, mut names: Vec<&str>) -> Result<String> {
    names.sort_unstable();
    names.dedup();
    match (chosen, &names[..]) {
        (Some(chosen), _) if names.contains(&chosen) => Ok(chosen.to_string()),
        (Some(chosen), _) => {
            let expected = format!("one of this folder's {what}s, {}", shown(&names));
            Err(Error::field(path, what, expected, format!("\"{}\"", chosen.escape_debug())))
        }
        (None, [only]) => Ok(only.to_string()),
        (None, _) => Err(Error::format(
            path,
            format!(
                "this folder has the {what}s {}: choose one by `items.{what}`, or give the path of its files",
                shown(&names)
            ),
        )),
    }
}

fn shown(names: &[&str]) -> String {
    /// More are not told.
    const MOST: usize = 20;
    let known: Vec<&str> = names.iter().take(MOST).map(|name| if name.is_empty() { "(none)" } else { name }).collect();
    let more = if names.len() > MOST { " and others" } else { "" };
    format!("{}{more}", listed(&known))
}

impl Shard {
    /// `path`: in `folder`.
    fn of(folder: &Path, path: PathBuf) -> Shard {
        static NUMBERED: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"^(?<split>.+?)-\d{5}-of-(?<of>\d{5})(-[0-9a-f]+)?$").expect("a valid pattern")
        });
        /// Numbers alone, and what Spark, Dask and Ray write, name no split.
        static UNNAMED: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"^(\d[\d_.-]*|(\w+_)?[0-9a-f]{32}[\d_.-]*|part[-.]\d.*)$").expect("a valid pattern")
        });
        let inside = path.strip_prefix(folder).unwrap_or(&path);
        let folders = inside.parent().into_iter().flat_map(Path::components);
        let mut above: Vec<String> = folders
            .filter_map(|part| match part {
                Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
                _ => None,
            })
            .collect();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let (split, of) = match NUMBERED.captures(&stem) {
            Some(parts) => (parts["split"].to_string(), parts["of"].parse().ok()),
            None if UNNAMED.is_match(&stem) => (above.pop().unwrap_or_default(), None),
            None => (stem.into_owned(), None),
        };
        if above.last().is_some_and(|name| name == "data") {
            above.pop();
        }
        Shard { subset: above.join("/"), split, path, of }
    }
}

/// The folder with the files: of a folder of the Hub's cache the snapshot that `refs/main` names, or the only one.
fn snapshot(folder: &Path) -> Result<PathBuf> {
    let snapshots = folder.join("snapshots");
    if !snapshots.is_dir() || !folder.join("blobs").is_dir() {
        return Ok(folder.to_path_buf());
    }
    let main = std::fs::read_to_string(folder.join("refs").join("main")).map(|name| snapshots.join(name.trim()));
    if let Some(main) = main.ok().filter(|main| main.is_dir()) {
        return Ok(main);
    }
    match &entries(&snapshots)?[..] {
        [only] => Ok(only.clone()),
        found => Err(Error::format(&snapshots, format!("expected one snapshot, found {}", found.len()))),
    }
}

/// The first `most` Parquet files in `folder`, on all levels. Hidden ones are no part of a data set.
fn walk(folder: &Path, most: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut ahead = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = ahead.pop() {
        let (mut folders, mut files) = (Vec::new(), 0);
        for path in entries(&folder)? {
            if path.is_dir() {
                folders.push((path, depth + 1));
            } else if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet")) {
                found.push(path);
                files += 1;
            }
            if found.len() >= most {
                return Ok(found);
            }
        }
        log::debug!("{}: {files} Parquet files", folder.display());
        ahead.extend(folders.into_iter().filter(|(_, depth)| *depth <= MOST_DEPTH));
    }
    Ok(found)
}

/// The entries of a folder that are not hidden, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = input::entries(folder)?;
    found.retain(|path| !path.file_name().unwrap_or_default().to_string_lossy().starts_with(['.', '_']));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, which are empty.
    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("it is writable");
            std::fs::write(path, "").expect("it is writable");
        }
        folder
    }

    fn chosen(folder: &tempfile::TempDir, subset: Option<&str>, split: Option<&str>) -> Result<Vec<String>> {
        let choice = SplitChoice { subset: subset.map(str::to_string), split: split.map(str::to_string) };
        let inside = |path: PathBuf| path.strip_prefix(folder.path()).expect("inside").display().to_string();
        Ok(files(folder.path(), &choice)?.into_iter().map(inside).collect())
    }

    #[test]
    fn the_hubs_layouts_have_subsets_and_splits() {
        let gsm8k = folder(&[
            "README.md",
            ".cache/huggingface/x.parquet",
            "main/train-00000-of-00001.parquet",
            "main/test-00000-of-00001.parquet",
            "socratic/test-00000-of-00001.parquet",
        ]);
        assert!(is_dataset(gsm8k.path()));
        assert_eq!(chosen(&gsm8k, Some("main"), Some("test")).unwrap(), ["main/test-00000-of-00001.parquet"]);
        assert_eq!(chosen(&gsm8k, Some("socratic"), None).unwrap(), ["socratic/test-00000-of-00001.parquet"]);
        let error = chosen(&gsm8k, None, Some("test")).unwrap_err().to_string();
        assert!(error.contains("main") && error.contains("socratic") && error.contains("items.subset"), "{error}");
        let error = chosen(&gsm8k, Some("main"), None).unwrap_err().to_string();
        assert!(error.contains("test") && error.contains("train") && error.contains("items.split"), "{error}");
        let error = chosen(&gsm8k, Some("main"), Some("dev")).unwrap_err().to_string();
        assert!(error.contains("\"dev\"") && error.contains("train"), "{error}");

        let shards = folder(&["data/test-00001-of-00002-0a1b.parquet", "data/test-00000-of-00002-77ff.parquet"]);
        let both = ["data/test-00000-of-00002-77ff.parquet", "data/test-00001-of-00002-0a1b.parquet"];
        assert_eq!(chosen(&shards, None, None).unwrap(), both);
        let converted = folder(&["main/test/0000.parquet", "main/test/0001.parquet", "main/train/0000.parquet"]);
        let test = ["main/test/0000.parquet", "main/test/0001.parquet"];
        assert_eq!(chosen(&converted, None, Some("test")).unwrap(), test);
        assert_eq!(chosen(&folder(&["part-00000-x.snappy.parquet", "_SUCCESS"]), None, None).unwrap().len(), 1);
        let ray = "0353cwTl3I_0a1b2c3d4e5f60718293a4b5c6d7e8f9_000000-0.parquet";
        let others = folder(&["part.0.parquet", "1_000000_000000.parquet", ray]);
        assert_eq!(chosen(&others, None, None).unwrap(), [ray, "1_000000_000000.parquet", "part.0.parquet"]);
        let cache = folder(&["blobs/1", "refs/x", "snapshots/abc/test.parquet"]);
        assert_eq!(chosen(&cache, None, None).unwrap(), ["snapshots/abc/test.parquet"]);
    }

    #[test]
    fn a_split_without_all_of_its_files_is_refused() {
        let half = folder(&["data/test-00000-of-00002.parquet"]);
        let error = chosen(&half, None, None).unwrap_err().to_string();
        assert!(error.contains("expected the 2 files") && error.contains("found 1"), "{error}");
    }

    #[test]
    fn a_folder_of_documents_is_no_data_set() {
        assert!(!is_dataset(folder(&["a.txt", "tables/x.parquet"]).path()));
        assert!(!is_dataset(folder(&["a.pdf"]).path()));
        assert!(is_dataset(folder(&["README.md", "x.parquet"]).path()));
    }

    #[test]
    fn a_star_stands_for_several_files() {
        let folder = folder(&["test-0.parquet", "test-1.parquet", "train-0.parquet"]);
        let found = files(&folder.path().join("test-*.parquet"), &SplitChoice::default()).unwrap();
        assert_eq!(found, ["test-0.parquet", "test-1.parquet"].map(|name| folder.path().join(name)));
        assert!(files(&folder.path().join("dev-*.parquet"), &SplitChoice::default()).is_err());
        let split = SplitChoice { split: Some("test".to_string()), ..SplitChoice::default() };
        assert!(files(&folder.path().join("test-0.parquet"), &split).unwrap_err().to_string().contains("`test`"));
    }
}
