//! What the cryptography needs of this processor.

use std::arch::is_aarch64_feature_detected;

/// The first thing that is missing.
pub(super) fn lacks() -> Option<&'static str> {
    let needed = [
        ("neon", is_aarch64_feature_detected!("neon")),
        ("aes", is_aarch64_feature_detected!("aes")),
        ("pmull", is_aarch64_feature_detected!("pmull")),
        ("sha2", is_aarch64_feature_detected!("sha2")),
    ];
    needed.into_iter().find_map(|(name, found)| (!found).then_some(name))
}
