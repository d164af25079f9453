//! Number formats of stored weights, and the view of one stored tensor.

/// How a tensor's numbers are stored.
///
/// The `Q` formats are ggml's: a row is a run of blocks of [`block_len`](Self::block_len) numbers,
/// each stored in [`block_bytes`](Self::block_bytes) bytes. Layouts as in ggml's `ggml-common.h`;
/// all multi-byte fields are little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)]
pub enum WeightType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// 32 numbers: f16 scale, 16 bytes of nibbles; value = scale * (nibble - 8).
    Q4_0,
    /// 32 numbers: f16 scale, f16 minimum, 16 bytes of nibbles; value = scale * nibble + minimum.
    Q4_1,
    /// 32 numbers: f16 scale, 4 bytes of fifth bits, 16 bytes of nibbles; value = scale * (q - 16).
    Q5_0,
    /// 32 numbers: f16 scale, 32 signed bytes; value = scale * q.
    Q8_0,
    /// 256 numbers in 8 groups with 6-bit scales and minima: f16, f16, 12 bytes, 128 bytes.
    Q4K,
    /// As [`Q4K`](Self::Q4K) with fifth bits: f16, f16, 12 bytes, 32 bytes, 128 bytes.
    Q5K,
    /// 256 numbers in 16 groups with 8-bit scales: 128 bytes, 64 bytes, 16 bytes, f16.
    Q6K,
}

impl WeightType {
    /// Numbers in one block; rows are whole blocks.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of one row of `cols` numbers; `None` when that is not a whole number of blocks, or
    /// overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes of a tensor of row-major `shape`; `None` when its rows are not whole blocks, or the
    /// size overflows.
    pub fn tensor_bytes(self, shape: &[usize]) -> Option<usize> {
        let (cols, outer) = shape.split_last()?;
        let rows = outer.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        self.row_bytes(*cols)?.checked_mul(rows)
    }

    /// The type with this number in ggml's `enum ggml_type`.
    pub(crate) fn from_ggml(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// The type with this name in a safetensors header.
    pub(crate) fn from_safetensors(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "F16" => Some(Self::F16),
            "BF16" => Some(Self::Bf16),
            _ => None,
        }
    }

    /// ggml's name of a type number, for messages about types that we do not read.
    pub(crate) fn ggml_name(number: u32) -> String {
        let name = match number {
            7 => "Q5_1",
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            20 => "IQ4_NL",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            other => return format!("ggml type {other}"),
        };
        name.to_owned()
    }
}

/// One stored tensor, borrowed from the mapped file.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Canonical name (see the [module](super)).
    pub name: &'a str,
    /// Row-major shape. A matrix is `[rows, cols]` = `[outputs, inputs]`, columns contiguous.
    pub shape: Vec<usize>,
    /// Number format of [`bytes`](Self::bytes).
    pub ty: WeightType,
    /// The stored bytes, `ty.tensor_bytes(&shape)` of them, with no alignment promised.
    pub bytes: &'a [u8],
}

/// Where one tensor lies: what both file formats boil down to.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Index of the mapped file.
    pub(crate) file: usize,
    /// Row-major shape.
    pub(crate) shape: Vec<usize>,
    /// The number format, or the name of one that we do not read.
    pub(crate) ty: Result<WeightType, String>,
    /// Byte range in the file; empty when the format is unknown altogether.
    pub(crate) range: std::ops::Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_blocks() {
        assert_eq!(WeightType::Q4_1.tensor_bytes(&[192, 576]), Some(192 * 18 * 20));
        assert_eq!(WeightType::F32.tensor_bytes(&[576]), Some(2304));
        assert_eq!(WeightType::Q4K.tensor_bytes(&[2, 128]), None);
        assert_eq!(WeightType::F32.tensor_bytes(&[usize::MAX, 2]), None);
        assert_eq!(WeightType::F32.tensor_bytes(&[]), None);
    }
}
