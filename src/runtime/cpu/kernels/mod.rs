//! Kernels: written once over `Simd`, run at the best level the CPU has.
//!
//! All levels give the same bits: lanes are output elements, integer sums are exact, float sums have
//! one order that depends on the shape of the weights alone, and multiply-adds are fused everywhere.

pub(crate) mod attention;
pub(crate) mod dense;
pub(crate) mod element;
pub(crate) mod elementwise;
pub(crate) mod output;
pub(crate) mod pages;
pub(crate) mod quantised;
pub(crate) mod quantize;
pub(crate) mod simd;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use std::{fmt, str::FromStr};

/// The variable that forces a level.
pub const KERNELS_VARIABLE: &str = "BLOCKWIRE_KERNELS";

/// Which instructions the kernels use. The choice changes speed, never bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KernelLevel {
    /// No intrinsics.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// 64-bit Arm; uses the dot product extension where present.
    Neon,
}

/// Why a level cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// This CPU lacks the instructions.
    #[error("this CPU has no {level} kernels")]
    Unavailable {
        /// The level asked for.
        level: KernelLevel,
    },
    /// The name means no level.
    #[error("\"{name}\" is none of scalar, avx2, avx512, neon")]
    Unknown {
        /// What was given.
        name: String,
    },
}

impl KernelLevel {
    /// All levels, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// Whether this CPU can run the level.
    pub fn is_available(self) -> bool {
        Level::new(self).is_some()
    }

    /// The levels that this CPU can run, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// The fastest level that this CPU can run.
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }
}

impl fmt::Display for KernelLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        })
    }
}

impl FromStr for KernelLevel {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        let level = Self::ALL.into_iter().find(|level| level.to_string() == name);
        level.ok_or_else(|| KernelError::Unknown { name: name.to_owned() })
    }
}

/// One kernel with its arguments.
pub(crate) trait Kernel {
    /// Does the work. Must be `#[inline(always)]`, and so must what it calls per vector.
    fn run<S: simd::Simd>(self, simd: S);
}

/// A level that this CPU was found to have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    Scalar(scalar::Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<false>),
}

impl Level {
    /// The level, where the CPU has it.
    pub(crate) fn new(level: KernelLevel) -> Option<Self> {
        match level {
            KernelLevel::Scalar => Some(Self::Scalar(scalar::Scalar)),
            #[cfg(target_arch = "x86_64")]
            KernelLevel::Avx2 => avx2::Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            KernelLevel::Avx512 => avx512::Avx512::detect().map(Self::Avx512),
            #[cfg(target_arch = "aarch64")]
            KernelLevel::Neon => neon::Neon::detect().map(Self::Neon),
            _ => None,
        }
    }

    /// The level asked for, else the one that [`KERNELS_VARIABLE`] names, else the best.
    pub(crate) fn choose(asked: Option<KernelLevel>) -> Result<Self, KernelError> {
        let level = match (asked, std::env::var(KERNELS_VARIABLE)) {
            (Some(level), _) => level,
            (None, Ok(name)) => name.parse()?,
            (None, Err(_)) => KernelLevel::best(),
        };
        Self::new(level).ok_or(KernelError::Unavailable { level })
    }

    /// Which level this is.
    pub(crate) fn name(self) -> KernelLevel {
        match self {
            Self::Scalar(_) => KernelLevel::Scalar,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => KernelLevel::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => KernelLevel::Avx512,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => KernelLevel::Neon,
        }
    }

    /// Runs a kernel.
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        match self {
            Self::Scalar(level) => kernel.run(level),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(level) => level.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(level) => level.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(level) => level.run(kernel),
        }
    }
}
