//! What the cryptography needs of this processor. Most since 2015 have all of it.

use std::arch::is_x86_feature_detected;

/// The first thing that is missing.
pub(super) fn lacks() -> Option<&'static str> {
    let needed = [
        ("aes", is_x86_feature_detected!("aes")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("bmi1", is_x86_feature_detected!("bmi1")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("adx", is_x86_feature_detected!("adx")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
    ];
    needed.into_iter().find_map(|(name, found)| (!found).then_some(name))
}
