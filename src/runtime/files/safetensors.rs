//! Reader of safetensors headers, one file or a sharded set.
//!
//! A file is a u64 header length, that many bytes of JSON
//! (`{"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}`), and the
//! data that the offsets count from. As for GGUF, each number is checked before use.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{
    LoadError,
    cursor::Cursor,
    grouped::GROUPED,
    map::{io_error, read_companion},
    weight::{Entry, WeightType},
};

/// The bound of the reference implementation, in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// An index of a thousand layers is some 10 MB.
const MAX_INDEX: u64 = 64 << 20;

/// The weight files of a folder: those of `model.safetensors.index.json`, else
/// `model.safetensors`, else every `*.safetensors`.
pub(super) fn shards(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let index_path = folder.join("model.safetensors.index.json");
    if let Some(json) = read_companion(&index_path, MAX_INDEX)? {
        let index: Index = super::parse_json(&index_path, &json)?;
        let names: BTreeSet<String> = index.weight_map.into_values().collect();
        return names.iter().map(|name| shard_path(folder, &index_path, name)).collect();
    }
    let single = folder.join("model.safetensors");
    if single.exists() {
        return Ok(vec![single]);
    }
    let mut found = files_with_extension(folder, "safetensors")?;
    found.sort();
    Ok(found)
}

/// Files of `folder` that end in `.extension`.
pub(super) fn files_with_extension(
    folder: &Path,
    extension: &str,
) -> Result<Vec<PathBuf>, LoadError> {
    let mut found = Vec::new();
    for item in folder.read_dir().map_err(|e| io_error(folder, e))? {
        let path = item.map_err(|e| io_error(folder, e))?.path();
        if path.extension().is_some_and(|e| e == extension) && path.is_file() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Parses the header of the `file`-th shard and adds its tensors to `entries`.
pub(super) fn parse(
    path: &Path,
    bytes: &[u8],
    file: usize,
    entries: &mut BTreeMap<String, Entry>,
) -> Result<(), LoadError> {
    let mut cursor = Cursor::new(path, bytes, 0);
    let len = cursor.bounded("the header's length", MAX_HEADER)?;
    let json = cursor.take(len, "the header")?;
    let header: BTreeMap<String, serde_json::Value> = super::parse_json(path, json)?;
    let start = cursor.position() as u64;
    for (name, value) in header {
        if name == "__metadata__" {
            continue;
        }
        let entry = place(path, &name, value, file, start, bytes.len() as u64)?;
        let what = format!("tensor {name}");
        if entries.insert(name, entry).is_some() {
            let (path, found) = (path.to_owned(), "another in an earlier shard".to_owned());
            return Err(LoadError::Malformed { path, what, expected: "one", found });
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Head {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// A shard's path; the index may name files of its own folder only.
fn shard_path(folder: &Path, index: &Path, name: &str) -> Result<PathBuf, LoadError> {
    if Path::new(name).file_name().is_none_or(|file| file != name) {
        return Err(LoadError::Malformed {
            path: index.to_owned(),
            what: "weight_map".to_owned(),
            expected: "names of files in the same folder",
            found: format!("{name:?}"),
        });
    }
    Ok(folder.join(name))
}

fn place(
    path: &Path,
    name: &str,
    value: serde_json::Value,
    file: usize,
    start: u64,
    found: u64,
) -> Result<Entry, LoadError> {
    let what = || format!("tensor {name}");
    let malformed = |expected, found| LoadError::Malformed {
        path: path.to_owned(),
        what: what(),
        expected,
        found,
    };
    let head: Head = serde_json::from_value(value)
        .map_err(|e| malformed("dtype, shape and data_offsets", e.to_string()))?;
    // A scalar has an empty shape and one number.
    let shape = if head.shape.is_empty() { vec![1] } else { head.shape };
    let (ty, len) = match WeightType::from_safetensors(&head.dtype) {
        Some(ty) => (Ok(ty), ty.tensor_bytes(&shape)),
        // As many bytes as F32.
        None if head.dtype == GROUPED => (Err(head.dtype), WeightType::F32.tensor_bytes(&shape)),
        None => return Ok(Entry { file, shape, ty: Err(head.dtype), range: 0..0 }),
    };
    let [begin, end] = head.data_offsets;
    let len = len.map(|n| n as u64);
    if len.is_none() || end.checked_sub(begin) != len {
        let found = format!("{begin}..{end} for {ty:?} {shape:?}");
        return Err(malformed("offsets that fit type and shape", found));
    }
    let needed = start.saturating_add(end);
    if needed > found {
        return Err(LoadError::Truncated { path: path.to_owned(), what: what(), needed, found });
    }
    let range = (start + begin) as usize..needed as usize;
    Ok(Entry { file, shape, ty, range })
}
