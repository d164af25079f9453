//! The name of a block: a hash of all that its bytes depend on.
//!
//! The names of one sequence are a chain. Its root stands for what all sequences of a tenant have in
//! common, and every full block's key is made of the key before it and the block's tokens. Two keys are equal
//! only where everything up to the block's last token is. BLAKE3 makes that hold against those who look
//! for collisions too: a wrong block would be somebody else's text. `manual/prefix.md` has the bytes, and
//! vectors.

use std::fmt;

/// What a root's hash is of, so that it equals no other hash of these bytes.
const ROOT_CONTEXT: &str = "blockwire prefix root 1";

/// What the keys of a model's blocks begin with, for those who may share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixRoot([u8; 32]);

impl PrefixRoot {
    /// The root of a model (its fingerprint), an adapter's name (empty: none) and a salt (empty: none).
    /// Whoever comes with another salt shares nothing, and cannot find out by the clock what others asked.
    pub fn new(model: &[u8], adapter: &str, salt: &str) -> Self {
        let mut hash = blake3::Hasher::new_derive_key(ROOT_CONTEXT);
        for field in [model, adapter.as_bytes(), salt.as_bytes()] {
            hash.update(&(field.len() as u64).to_le_bytes());
            hash.update(field);
        }
        Self(*hash.finalize().as_bytes())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Names a full block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixKey([u8; 32]);

impl PrefixKey {
    /// The key with these bytes, as received from a peer.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn after(parent: &[u8; 32], tokens: &[u32]) -> Self {
        let mut hash = blake3::Hasher::new_keyed(parent);
        for token in tokens {
            hash.update(&token.to_le_bytes());
        }
        Self(*hash.finalize().as_bytes())
    }
}

impl fmt::Debug for PrefixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "PrefixKey({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

/// The keys of a sequence that grows.
#[derive(Clone, Debug)]
pub struct PrefixChain {
    root: PrefixRoot,
    block_tokens: usize,
    keys: Vec<PrefixKey>,
}

impl PrefixChain {
    /// The chain of a sequence without tokens, in blocks of so many tokens.
    ///
    /// # Panics
    /// When `block_tokens` is 0.
    pub fn new(root: PrefixRoot, block_tokens: u32) -> Self {
        assert!(block_tokens > 0, "blocks without tokens");
        Self { root, block_tokens: block_tokens as usize, keys: Vec::new() }
    }

    /// The keys of the full blocks of `tokens`, which begin with those of the last call: only what is new is
    /// hashed.
    pub fn keys(&mut self, tokens: &[u32]) -> &[PrefixKey] {
        let full = tokens.len() / self.block_tokens;
        for block in tokens.chunks_exact(self.block_tokens).skip(self.keys.len()) {
            let parent = self.keys.last().map_or(&self.root.0, |key| &key.0);
            self.keys.push(PrefixKey::after(parent, block));
        }
        &self.keys[..full]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(salt: &str, block_tokens: u32, tokens: &[u32]) -> Vec<PrefixKey> {
        let root = PrefixRoot::new(&[1; 32], "", salt);
        PrefixChain::new(root, block_tokens).keys(tokens).to_vec()
    }

    #[test]
    fn a_key_depends_on_everything_before_it() {
        let tokens: Vec<u32> = (0..12).collect();
        let whole = keys("", 4, &tokens);
        for changed in 0..12 {
            let mut other = tokens.clone();
            other[changed] += 100;
            let same = whole.iter().zip(keys("", 4, &other)).take_while(|(a, b)| *a == b).count();
            assert_eq!(same, changed / 4);
        }
        assert!(whole.iter().zip(keys("salt", 4, &tokens)).all(|(a, b)| *a != b));
        assert!(whole.iter().zip(keys("", 6, &tokens)).all(|(a, b)| *a != b));
    }

    #[test]
    fn fields_of_a_root_do_not_run_into_each_other() {
        let roots = [
            PrefixRoot::new(b"m", "ab", "c"),
            PrefixRoot::new(b"m", "a", "bc"),
            PrefixRoot::new(b"ma", "b", "c"),
            PrefixRoot::new(b"m", "", "abc"),
        ];
        for (at, root) in roots.iter().enumerate() {
            assert!(!roots[..at].contains(root), "{at}");
        }
    }

    #[test]
    fn a_chain_grows_as_its_sequence_does() {
        let tokens: Vec<u32> = (0..50).collect();
        let mut growing = PrefixChain::new(PrefixRoot::new(b"m", "", ""), 4);
        for len in (0..50).step_by(if cfg!(miri) { 11 } else { 1 }) {
            let mut fresh = PrefixChain::new(PrefixRoot::new(b"m", "", ""), 4);
            assert_eq!(growing.keys(&tokens[..len]), fresh.keys(&tokens[..len]));
            assert_eq!(growing.keys(&tokens[..len]).len(), len / 4);
        }
        assert_eq!(growing.keys(&tokens[..9]).len(), 2, "those of fewer tokens");
    }
}
