//! Matrices as MLX quantises them: groups of numbers that share a scale and a bias.
//!
//! ```text
//! name.weight   U32        [rows, cols * bits / 32]    numbers side by side, the first in the lowest bits
//! name.scales   F32 or 16  [rows, cols / group_len]    number = scale * stored + bias
//! name.biases   the same
//! ```

use super::{LoadError, ModelFiles, Tensor};

/// The type of the packed numbers in a safetensors header.
pub(super) const GROUPED: &str = "U32";

/// How the matrices of a checkpoint are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grouping {
    group_len: usize,
    bits: usize,
}

impl Grouping {
    /// None where MLX has no such groups.
    pub(super) fn new(group_len: usize, bits: usize) -> Option<Self> {
        let known = matches!(group_len, 32 | 64 | 128) && matches!(bits, 2 | 3 | 4 | 5 | 6 | 8);
        known.then_some(Self { group_len, bits })
    }
}

/// A stored matrix in groups, borrowed from the mapped files.
#[derive(Clone, Debug)]
pub struct GroupedTensor<'a> {
    /// Rows and columns of the matrix.
    pub shape: [usize; 2],
    /// Bits of a number.
    pub bits: usize,
    /// Numbers of a group.
    pub group_len: usize,
    /// The numbers: `rows * cols * bits / 32` words of 32 bits, little endian.
    pub words: &'a [u8],
    /// `[rows, cols / group_len]`.
    pub scales: Tensor<'a>,
    /// `[rows, cols / group_len]`.
    pub biases: Tensor<'a>,
}

impl ModelFiles {
    /// A view of the matrix with this canonical name, where it is stored in groups; none where it is not.
    ///
    /// # Errors
    ///
    /// [`LoadError::MissingTensor`] where one of its parts is missing, [`LoadError::WrongShape`] where its parts
    /// do not fit, or [`LoadError::UnsupportedTensorType`].
    pub fn grouped_tensor(
        &self,
        canonical_name: &str,
    ) -> Result<Option<GroupedTensor<'_>>, LoadError> {
        let entry = self.entries.get(canonical_name);
        let grouped = entry.filter(|entry| entry.ty.as_ref().is_err_and(|ty| ty == GROUPED));
        let (Some(entry), Some(Grouping { group_len, bits })) = (grouped, self.grouping) else {
            return Ok(None);
        };
        let stem = canonical_name.strip_suffix(".weight").unwrap_or(canonical_name);
        let part = |part: &str| self.tensor(&format!("{stem}.{part}"));
        let (scales, biases) = (part("scales")?, part("biases")?);
        let groups = scales.shape.clone();
        let [rows, cols] = match groups[..] {
            [rows, groups] => [rows, groups.saturating_mul(group_len)],
            _ => [0, 0],
        };
        let expected = [vec![rows, cols.saturating_mul(bits) / 32], groups];
        for (name, found, expected) in [
            (canonical_name, &entry.shape, &expected[0]),
            (biases.name, &biases.shape, &expected[1]),
        ] {
            if found != expected {
                let (path, name) = (self.path.clone(), name.to_owned());
                let (expected, found) = (expected.clone(), found.clone());
                return Err(LoadError::WrongShape { path, name, expected, found });
            }
        }
        let words = self.entry_bytes(entry);
        Ok(Some(GroupedTensor { shape: [rows, cols], bits, group_len, words, scales, biases }))
    }
}
