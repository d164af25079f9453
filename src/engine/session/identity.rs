//! Who the two sides are, and whether they fit together.

use bytes::Bytes;
use uuid::Uuid;

use crate::pool::{Dtype, KvSpec, LayerSpec, Layout, Part, PoolShape, SegmentSpec};
use crate::transport::RegionKey;
use crate::wire::body;

/// Lowest and highest version of the session protocol that this side speaks.
pub const SESSION_VERSIONS: (u32, u32) = (3, 3);

/// Bounds on a peer's description, so that a hostile one costs nothing.
const LAYERS_MAX: u32 = 4096;
const SEGMENTS_MAX: usize = 16;
const NAME_LEN_MAX: usize = 1024;

/// What one side says of itself in its hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The process: new at every start, so that a restarted peer is another peer.
    pub instance: Uuid,
    /// For people: role and address, or whatever helps to find it.
    pub name: String,
    /// For people: the model.
    pub model: String,
    /// Of the model's files, tokenizer included. Empty on a side that has no model.
    pub fingerprint: Bytes,
    /// What computes, and which version of its arithmetic: caches of two backends differ in their
    /// last bits. Empty on a side that computes nothing.
    pub backend: String,
    /// Geometry of the pool; none on a side without one.
    pub geometry: Option<KvSpec>,
    /// What the layer above says of itself.
    pub role: Bytes,
}

impl Identity {
    /// A new instance without model or pool.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            instance: Uuid::new_v4(),
            name: name.into(),
            model: String::new(),
            fingerprint: Bytes::new(),
            backend: String::new(),
            geometry: None,
            role: Bytes::new(),
        }
    }

    pub(super) fn to_hello(&self, pool: Option<&PoolAccess>) -> body::Hello {
        body::Hello {
            version_min: SESSION_VERSIONS.0,
            version_max: SESSION_VERSIONS.1,
            instance: Bytes::copy_from_slice(self.instance.as_bytes()),
            name: self.name.clone(),
            fingerprint: self.fingerprint.clone(),
            model: self.model.clone(),
            geometry: self.geometry.as_ref().map(geometry_to_wire),
            role: self.role.clone(),
            backend: self.backend.clone(),
            pool: pool.map(access_to_wire),
        }
    }
}

/// How a peer reaches a pool's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAccess {
    /// Of the pool's region, as registered with the link.
    pub region: RegionKey,
    /// Where the bytes lie in it.
    pub shape: PoolShape,
}

/// Why two sides do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// No version in common.
    #[error("session versions {ours:?} here, {theirs:?} there")]
    Version {
        /// Lowest and highest here.
        ours: (u32, u32),
        /// Lowest and highest there.
        theirs: (u32, u32),
    },
    /// Caches of different shape.
    #[error("KV geometry [{ours}] here, [{theirs}] there")]
    Geometry {
        /// This side's.
        ours: Box<KvSpec>,
        /// The peer's.
        theirs: Box<KvSpec>,
    },
    /// Caches of one shape and different meaning.
    #[error("model {ours} here, {theirs} there: fingerprints differ")]
    Model {
        /// This side's, with its fingerprint.
        ours: String,
        /// The peer's, with its fingerprint.
        theirs: String,
    },
    /// One model, computed by programs that round differently.
    #[error("backend {ours} here, {theirs} there")]
    Backend {
        /// This side's.
        ours: String,
        /// The peer's.
        theirs: String,
    },
    /// The peer proved to be one process, and says that it is another.
    #[error("instance {authenticated} was authenticated, the hello is of {said}")]
    Instance {
        /// What the link proved.
        authenticated: Uuid,
        /// What the hello says.
        said: Uuid,
    },
    /// A hello that cannot be read.
    #[error("the peer's hello is malformed: {0}")]
    Hello(&'static str),
}

impl Mismatch {
    pub(super) fn code(&self) -> body::RefuseCode {
        match self {
            Self::Version { .. } => body::RefuseCode::RefuseVersion,
            Self::Geometry { .. } => body::RefuseCode::RefuseGeometry,
            Self::Model { .. } => body::RefuseCode::RefuseModel,
            Self::Backend { .. } => body::RefuseCode::RefuseBackend,
            Self::Instance { .. } | Self::Hello(_) => body::RefuseCode::RefuseHello,
        }
    }
}

/// Reads a hello and checks it against this side.
pub(super) fn check_hello(
    ours: &Identity,
    authenticated: Option<Uuid>,
    hello: body::Hello,
) -> Result<(Identity, Option<PoolAccess>), Mismatch> {
    let (low, high) = SESSION_VERSIONS;
    let theirs = (hello.version_min, hello.version_max);
    if theirs.0.max(low) > theirs.1.min(high) {
        return Err(Mismatch::Version { ours: SESSION_VERSIONS, theirs });
    }
    if hello.name.len().max(hello.model.len()).max(hello.backend.len()) > NAME_LEN_MAX {
        return Err(Mismatch::Hello("name too long"));
    }
    let instance = Uuid::from_slice(&hello.instance)
        .map_err(|_| Mismatch::Hello("instance is not 16 bytes"))?;
    if let Some(authenticated) = authenticated.filter(|known| *known != instance) {
        return Err(Mismatch::Instance { authenticated, said: instance });
    }
    let geometry = hello.geometry.map(geometry_from_wire).transpose()?;
    if let (Some(here), Some(there)) = (&ours.geometry, &geometry)
        && !here.same_geometry(there)
    {
        let (ours, theirs) = (Box::new(here.clone()), Box::new(there.clone()));
        return Err(Mismatch::Geometry { ours, theirs });
    }
    let both = !ours.fingerprint.is_empty() && !hello.fingerprint.is_empty();
    if both && ours.fingerprint != hello.fingerprint {
        return Err(Mismatch::Model {
            ours: describe_model(&ours.model, &ours.fingerprint),
            theirs: describe_model(&hello.model, &hello.fingerprint),
        });
    }
    let both = !ours.backend.is_empty() && !hello.backend.is_empty();
    if both && ours.backend != hello.backend {
        return Err(Mismatch::Backend { ours: ours.backend.clone(), theirs: hello.backend });
    }
    let body::Hello { name, model, fingerprint, role, backend, pool, .. } = hello;
    let access = match (pool, &geometry) {
        (Some(pool), Some(geometry)) => Some(access_from_wire(&pool, geometry)?),
        _ => None,
    };
    let peer = Identity { instance, name, model, fingerprint, backend, geometry, role };
    Ok((peer, access))
}

fn access_to_wire(pool: &PoolAccess) -> body::PoolAccess {
    let layout = match pool.shape.layout() {
        Layout::BlockMajor => body::PoolLayout::BlockMajor,
        Layout::LayerMajor => body::PoolLayout::LayerMajor,
    };
    let (region_key, blocks) = (pool.region.0, pool.shape.blocks() as u32);
    body::PoolAccess { region_key, layout: layout.into(), blocks }
}

fn access_from_wire(pool: &body::PoolAccess, spec: &KvSpec) -> Result<PoolAccess, Mismatch> {
    let layout = match pool.layout() {
        body::PoolLayout::BlockMajor => Layout::BlockMajor,
        body::PoolLayout::LayerMajor => Layout::LayerMajor,
        body::PoolLayout::Unspecified => return Err(Mismatch::Hello("unknown layout of a pool")),
    };
    let shape = PoolShape::new(spec.clone(), layout, pool.blocks as usize);
    Ok(PoolAccess { region: RegionKey(pool.region_key), shape: shape.map_err(Mismatch::Hello)? })
}

fn describe_model(model: &str, fingerprint: &[u8]) -> String {
    let hex: String = fingerprint.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{model} ({hex})")
}

fn geometry_to_wire(spec: &KvSpec) -> body::Geometry {
    let layers = spec.layers.chunk_by(|a, b| a == b).map(|run| body::LayerRun {
        count: run.len() as u32,
        segments: run[0].segments.iter().map(segment_to_wire).collect(),
    });
    body::Geometry { block_tokens: spec.block_tokens, layers: layers.collect() }
}

fn segment_to_wire(segment: &SegmentSpec) -> body::Segment {
    let part = match segment.part {
        Part::Key => body::Part::Key,
        Part::Value => body::Part::Value,
    };
    let dtype = match segment.dtype {
        Dtype::F16 => body::Dtype::F16,
        Dtype::Bf16 => body::Dtype::Bf16,
        Dtype::F32 => body::Dtype::F32,
    };
    let (heads, head_dim) = (segment.heads, segment.head_dim);
    body::Segment { part: part.into(), heads, head_dim, dtype: dtype.into() }
}

fn geometry_from_wire(geometry: body::Geometry) -> Result<KvSpec, Mismatch> {
    let mut layers = Vec::new();
    for run in geometry.layers {
        let room = LAYERS_MAX - layers.len() as u32;
        if run.count > room || run.segments.len() > SEGMENTS_MAX {
            return Err(Mismatch::Hello("too many layers or segments"));
        }
        let segments: Result<Vec<_>, _> = run.segments.iter().map(segment_from_wire).collect();
        let layer = LayerSpec { segments: segments? };
        layers.extend(std::iter::repeat_n(layer, run.count as usize));
    }
    if geometry.block_tokens == 0 || layers.is_empty() {
        return Err(Mismatch::Hello("empty geometry"));
    }
    Ok(KvSpec { block_tokens: geometry.block_tokens, layers })
}

fn segment_from_wire(segment: &body::Segment) -> Result<SegmentSpec, Mismatch> {
    let part = match segment.part() {
        body::Part::Key => Part::Key,
        body::Part::Value => Part::Value,
        body::Part::Unspecified => return Err(Mismatch::Hello("unknown segment part")),
    };
    let dtype = match segment.dtype() {
        body::Dtype::F16 => Dtype::F16,
        body::Dtype::Bf16 => Dtype::Bf16,
        body::Dtype::F32 => Dtype::F32,
        body::Dtype::Unspecified => return Err(Mismatch::Hello("unknown dtype")),
    };
    Ok(SegmentSpec { part, heads: segment.heads, head_dim: segment.head_dim, dtype })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(dtype: Dtype, fingerprint: &'static [u8]) -> Identity {
        Identity {
            geometry: Some(KvSpec::uniform(16, 3, 2, 8, dtype)),
            fingerprint: Bytes::from_static(fingerprint),
            model: "tiny".into(),
            ..Identity::new("node")
        }
    }

    #[test]
    fn a_hello_reads_back_as_it_was_written() {
        let (ours, theirs) = (node(Dtype::F16, b"x"), node(Dtype::F16, b"x"));
        assert_eq!(check_hello(&ours, None, theirs.to_hello(None)), Ok((theirs.clone(), None)));
        let spec = theirs.geometry.clone().unwrap();
        let shape = PoolShape::new(spec, Layout::LayerMajor, 9).unwrap();
        let access = PoolAccess { region: RegionKey(3), shape };
        let hello = theirs.to_hello(Some(&access));
        assert_eq!(check_hello(&ours, None, hello), Ok((theirs, Some(access))));
    }

    #[test]
    fn what_does_not_fit_is_named_on_both_sides() {
        let ours = node(Dtype::F16, b"x");
        let text =
            |peer: Identity| check_hello(&ours, None, peer.to_hello(None)).unwrap_err().to_string();
        let geometry = text(node(Dtype::Bf16, b"x"));
        assert!(geometry.contains("K 2x8 f16") && geometry.contains("K 2x8 bf16"), "{geometry}");
        assert_eq!(
            text(node(Dtype::F16, b"y")),
            "model tiny (78) here, tiny (79) there: fingerprints differ"
        );
        let newer = body::Hello { version_min: 4, version_max: 9, ..ours.to_hello(None) };
        assert!(matches!(check_hello(&ours, None, newer), Err(Mismatch::Version { .. })));
    }

    #[test]
    fn a_router_without_model_fits_every_node() {
        assert!(
            check_hello(&Identity::new("router"), None, node(Dtype::F16, b"x").to_hello(None))
                .is_ok()
        );
    }

    #[test]
    fn a_hello_of_another_instance_than_the_authenticated_one_is_refused() {
        let (router, peer) = (Identity::new("router"), node(Dtype::F16, b"x"));
        let known = |instance| check_hello(&router, Some(instance), peer.to_hello(None));
        assert_eq!(known(peer.instance), Ok((peer.clone(), None)));
        let (authenticated, said) = (Uuid::new_v4(), peer.instance);
        assert_eq!(known(authenticated), Err(Mismatch::Instance { authenticated, said }));
    }

    #[test]
    fn hostile_geometries_cost_nothing() {
        let router = Identity::new("router");
        let mut hello = node(Dtype::F16, b"x").to_hello(None);
        let layout = body::PoolLayout::BlockMajor.into();
        hello.pool = Some(body::PoolAccess { region_key: 0, layout, blocks: 0 });
        assert!(matches!(check_hello(&router, None, hello.clone()), Err(Mismatch::Hello(_))));
        hello.geometry.as_mut().unwrap().layers[0].count = u32::MAX;
        assert!(matches!(check_hello(&router, None, hello), Err(Mismatch::Hello(_))));
    }
}
