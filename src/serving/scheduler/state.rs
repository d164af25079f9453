//! What a model keeps of a sequence outside the pool, when it comes from another node.

use blockwire::handoff::StateSegment;
use blockwire::pool::KvSequence;
use blockwire_runtime::model::SequenceStateLayout;

use super::handle::BatchScheduler;
use crate::backend::GenerateError;

impl BatchScheduler {
    /// Gives a sequence whose prompt was computed elsewhere the state that came beside its blocks.
    ///
    /// # Errors
    /// When it lacks the state that the model needs, or has one that the model cannot take.
    pub fn restore_state(
        &self,
        sequence: &mut KvSequence,
        segment: Option<&StateSegment>,
    ) -> Result<(), GenerateError> {
        let facts = self.facts();
        let own = match &facts.state_layout {
            SequenceStateLayout::ModelOwned { family } => Some(family),
            _ => None,
        };
        let theirs = segment.map(|segment| &segment.family);
        let refuse = |reason: String| Err(GenerateError::NodeFailed(reason));
        if own != theirs {
            let name = |family: Option<&String>| family.map_or("no", |name| name).to_owned();
            let (theirs, own) = (name(theirs), name(own));
            return refuse(format!(
                "a cache with {theirs} state came for a model with {own} state"
            ));
        }
        let Some(segment) = segment else { return Ok(()) };
        let Some(reader) = &facts.state_reader else {
            return refuse(format!("this node takes no state of {}", segment.family));
        };
        let state = match reader.read(sequence.len(), &segment.bytes) {
            Ok(state) => state,
            Err(error) => return refuse(error.to_string()),
        };
        *sequence.model_state_mut() = Some(state);
        Ok(())
    }
}
