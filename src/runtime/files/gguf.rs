//! Reader of GGUF, ggml's single-file model format.
//!
//! Layout, after ggml's `docs/gguf.md`, versions 2 and 3, little endian:
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | settings u64
//! settings x ( key string | type u32 | value )
//! tensors  x ( name string | dimensions u32 | dimension u64 ... | type u32 | offset u64 )
//! padding to `general.alignment` | tensor data, offsets relative to here
//! ```
//!
//! A string is a u64 length and that many bytes of UTF-8. Dimensions come innermost first, the
//! reverse of ours. Invariant: every number from the file is checked against the file's real
//! length before it sizes or indexes anything, so a damaged file yields an error, never a panic
//! or an allocation out of proportion to the file.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use super::{
    LoadError,
    cursor::Cursor,
    names,
    weight::{Entry, WeightType},
};

/// More settings than any writer makes (llama.cpp writes about 40).
const MAX_SETTINGS: u64 = 65_536;
/// More tensors than any model has.
const MAX_TENSORS: u64 = 262_144;
/// ggml's `GGML_MAX_DIMS`.
const MAX_DIMENSIONS: u32 = 4;
/// ggml's `GGUF_DEFAULT_ALIGNMENT`, in bytes.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Arrays inside arrays: allowed by the format, written by nobody.
const MAX_ARRAY_DEPTH: u32 = 4;

/// Everything in the file before the tensor data, with the tensors' places.
#[derive(Debug)]
pub(crate) struct Gguf {
    path: PathBuf,
    settings: BTreeMap<String, Value>,
}

/// The value of one setting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Any unsigned integer type.
    Unsigned(u64),
    /// Any signed integer type.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A byte, 0 or 1.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// Left in the file: element type, element count and byte range.
    Array {
        /// Type number of the elements.
        element: u32,
        /// How many there are.
        count: usize,
        /// Where they lie in the file.
        range: Range<usize>,
    },
}

impl Gguf {
    /// Parses the header; the tensors come back under canonical names.
    pub(crate) fn parse(
        path: &Path,
        bytes: &[u8],
    ) -> Result<(Self, BTreeMap<String, Entry>), LoadError> {
        let magic = &bytes[..bytes.len().min(4)];
        if magic != b"GGUF" {
            return Err(LoadError::BadMagic { path: path.to_owned(), found: magic.to_vec() });
        }
        let mut cursor = Cursor::new(path, bytes, 4);
        let version = cursor.u32("the version")?;
        if !(2..=3).contains(&version) {
            let path = path.to_owned();
            return Err(LoadError::UnsupportedVersion { path, found: version });
        }
        let tensors = cursor.bounded("the number of tensors", MAX_TENSORS)?;
        let settings = cursor.bounded("the number of settings", MAX_SETTINGS)?;
        let mut file = Self { path: path.to_owned(), settings: BTreeMap::new() };
        for _ in 0..settings {
            let key = cursor.text("the name of a setting")?;
            let value = read_setting(&mut cursor, &key)?;
            file.settings.insert(key, value);
        }
        let heads =
            (0..tensors).map(|_| TensorHead::read(&mut cursor)).collect::<Result<_, _>>()?;
        let entries = file.place(heads, cursor.position(), bytes.len())?;
        Ok((file, entries))
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The setting `key`, if the file has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.settings.get(key)
    }

    /// All settings in order of their names.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.settings.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// An integer setting; an error when it is there but is no integer from 0.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<u64>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) if *n >= 0 => Ok(Some(*n as u64)),
            Some(other) => Err(self.invalid(key, "an integer from 0", other)),
        }
    }

    /// A floating-point setting; an error when it is there but is no finite number.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) if x.is_finite() => Ok(Some(*x)),
            Some(other) => Err(self.invalid(key, "a finite number", other)),
        }
    }

    /// A yes/no setting; an error when it is there but is neither.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.invalid(key, "true or false", other)),
        }
    }

    /// A text setting; an error when it is there but is no text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.invalid(key, "text", other)),
        }
    }

    /// An array of texts, copied out of the file's `bytes`.
    pub(crate) fn texts(&self, key: &str, bytes: &[u8]) -> Result<Option<Vec<String>>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array { element: TEXT, count, range } = value else {
            return Err(self.invalid(key, "an array of texts", value));
        };
        let mut cursor = Cursor::new(&self.path, &bytes[..range.end], range.start);
        (0..*count).map(|_| cursor.text(key)).collect::<Result<_, _>>().map(Some)
    }

    /// An array of numbers of any type, copied out of the file's `bytes`.
    pub(crate) fn numbers(&self, key: &str, bytes: &[u8]) -> Result<Option<Vec<f64>>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array { element, count, range } = value else {
            return Err(self.invalid(key, "an array of numbers", value));
        };
        let mut cursor = Cursor::new(&self.path, &bytes[..range.end], range.start);
        let number = |_| match read_scalar(&mut cursor, *element, key)? {
            Some(Value::Unsigned(n)) => Ok(n as f64),
            Some(Value::Signed(n)) => Ok(n as f64),
            Some(Value::Float(x)) => Ok(x),
            _ => Err(self.invalid(key, "an array of numbers", value)),
        };
        (0..*count).map(number).collect::<Result<_, _>>().map(Some)
    }

    /// The error for a setting with an impossible value.
    pub(crate) fn invalid(&self, key: &str, expected: &'static str, found: &Value) -> LoadError {
        let (path, key) = (self.path.clone(), key.to_owned());
        LoadError::InvalidSetting { path, key, expected, found: found.describe() }
    }

    /// Turns tensor heads into ranges of the file, checking each against the file's length.
    fn place(
        &self,
        heads: Vec<TensorHead>,
        heads_end: usize,
        file_len: usize,
    ) -> Result<BTreeMap<String, Entry>, LoadError> {
        let key = "general.alignment";
        let alignment = self.integer(key)?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > 1 << 20 {
            let value = Value::Unsigned(alignment);
            return Err(self.invalid(key, "a power of two up to 1 MiB", &value));
        }
        let start = (heads_end as u64).next_multiple_of(alignment);
        let mut entries = BTreeMap::new();
        for head in heads {
            let (name, entry) = head.place(&self.path, start, file_len as u64)?;
            let what = format!("tensor {name}");
            if entries.insert(name, entry).is_some() {
                let (path, found) = (self.path.clone(), "two".to_owned());
                return Err(LoadError::Malformed { path, what, expected: "one", found });
            }
        }
        Ok(entries)
    }
}

impl Value {
    fn describe(&self) -> String {
        match self {
            Self::Unsigned(n) => n.to_string(),
            Self::Signed(n) => n.to_string(),
            Self::Float(x) => x.to_string(),
            Self::Bool(b) => b.to_string(),
            Self::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
            Self::Array { element, count, .. } => format!("{count} elements of type {element}"),
        }
    }
}

/// One tensor's description, before its place is known to be inside the file.
struct TensorHead {
    name: String,
    shape: Vec<usize>,
    ty: u32,
    offset: u64,
}

impl TensorHead {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, LoadError> {
        let name = cursor.text("the name of a tensor")?;
        let dimensions = cursor.u32(&name)?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(LoadError::Malformed {
                path: cursor.path().to_owned(),
                what: format!("tensor {name}"),
                expected: "1 to 4 dimensions",
                found: dimensions.to_string(),
            });
        }
        let shape: Result<Vec<usize>, _> =
            (0..dimensions).map(|_| Ok(cursor.u64(&name)? as usize)).collect();
        let mut shape = shape?;
        shape.reverse();
        Ok(Self { ty: cursor.u32(&name)?, offset: cursor.u64(&name)?, name, shape })
    }

    fn place(self, path: &Path, start: u64, has: u64) -> Result<(String, Entry), LoadError> {
        let name = names::canonical(&self.name);
        let Some(ty) = WeightType::from_ggml(self.ty) else {
            let ty = Err(WeightType::ggml_name(self.ty));
            return Ok((name, Entry { file: 0, shape: self.shape, ty, range: 0..0 }));
        };
        let Some(len) = ty.tensor_bytes(&self.shape) else {
            return Err(LoadError::Malformed {
                path: path.to_owned(),
                what: format!("tensor {name} of type {ty:?}"),
                expected: "rows of whole blocks",
                found: format!("shape {:?}", self.shape),
            });
        };
        let begin = start.saturating_add(self.offset);
        let needed = begin.saturating_add(len as u64);
        if needed > has {
            let (path, what) = (path.to_owned(), format!("tensor {name}"));
            return Err(LoadError::Truncated { path, what, needed, found: has });
        }
        let range = begin as usize..needed as usize;
        Ok((name, Entry { file: 0, shape: self.shape, ty: Ok(ty), range }))
    }
}

/// Type number of text in `enum gguf_metadata_value_type`.
const TEXT: u32 = 8;
/// Type number of an array.
const ARRAY: u32 = 9;

fn read_setting(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, LoadError> {
    let ty = cursor.u32(key)?;
    match ty {
        TEXT => cursor.text(key).map(Value::Text),
        ARRAY => {
            let (element, count) = (cursor.u32(key)?, cursor.count(key)?);
            let start = cursor.position();
            skip_elements(cursor, element, count, key, 1)?;
            Ok(Value::Array { element, count, range: start..cursor.position() })
        }
        _ => read_scalar(cursor, ty, key)?.ok_or_else(|| unknown_type(cursor, key, ty)),
    }
}

/// One number or flag; `None` when `ty` is not the number of such a type.
fn read_scalar(cursor: &mut Cursor<'_>, ty: u32, key: &str) -> Result<Option<Value>, LoadError> {
    Ok(Some(match ty {
        0 => Value::Unsigned(cursor.array::<1>(key)?[0].into()),
        1 => Value::Signed(i8::from_le_bytes(cursor.array(key)?).into()),
        2 => Value::Unsigned(u16::from_le_bytes(cursor.array(key)?).into()),
        3 => Value::Signed(i16::from_le_bytes(cursor.array(key)?).into()),
        4 => Value::Unsigned(cursor.u32(key)?.into()),
        5 => Value::Signed(i32::from_le_bytes(cursor.array(key)?).into()),
        6 => Value::Float(f32::from_le_bytes(cursor.array(key)?).into()),
        7 => Value::Bool(cursor.array::<1>(key)?[0] != 0),
        10 => Value::Unsigned(cursor.u64(key)?),
        11 => Value::Signed(i64::from_le_bytes(cursor.array(key)?)),
        12 => Value::Float(f64::from_le_bytes(cursor.array(key)?)),
        _ => return Ok(None),
    }))
}

fn skip_elements(
    cursor: &mut Cursor<'_>,
    element: u32,
    count: usize,
    key: &str,
    depth: u32,
) -> Result<(), LoadError> {
    let width = match element {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        TEXT => {
            for _ in 0..count {
                let len = cursor.u64(key)?;
                cursor.take(len, key)?;
            }
            return Ok(());
        }
        ARRAY if depth < MAX_ARRAY_DEPTH => {
            for _ in 0..count {
                let (element, count) = (cursor.u32(key)?, cursor.count(key)?);
                skip_elements(cursor, element, count, key, depth + 1)?;
            }
            return Ok(());
        }
        _ => return Err(unknown_type(cursor, key, element)),
    };
    cursor.take((count as u64).saturating_mul(width), key).map(|_| ())
}

fn unknown_type(cursor: &Cursor<'_>, key: &str, ty: u32) -> LoadError {
    LoadError::Malformed {
        path: cursor.path().to_owned(),
        what: format!("setting `{key}`"),
        expected: "a value type from 0 to 12, nested at most 4 deep",
        found: format!("type {ty}"),
    }
}
