//! Choices against recorded ones, against probabilities, and against definitions.

use proptest::prelude::*;

use super::*;

fn pick(logits: &[f32], params: &SamplingParams, position: u64) -> u32 {
    sample(logits, params, History::default(), position).unwrap().id
}

fn warm(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed, ..Default::default() }
}

/// Twenty logits without structure, the same everywhere.
fn logits() -> Vec<f32> {
    (0u32..20).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 16_384.0).collect()
}

#[test]
fn greedy_takes_the_best_and_of_equals_the_lowest() {
    assert_eq!(pick(&[0.0, 3.0, 3.0, -1.0], &SamplingParams::default(), 9), 1);
    let token = sample(&[0.0, 0.0], &SamplingParams::default(), History::default(), 0).unwrap();
    assert_eq!(token, SampledToken { id: 0, logprob: -std::f32::consts::LN_2 });
}

#[test]
fn odd_logits_are_errors() {
    let greedy = SamplingParams::default();
    let error = |logits: &[f32]| sample(logits, &greedy, History::default(), 0).unwrap_err();
    assert!(matches!(error(&[0.0, f32::NAN]), SamplingError::NotFinite { id: 1, .. }));
    assert!(matches!(error(&[f32::INFINITY]), SamplingError::NotFinite { id: 0, .. }));
    assert_eq!(error(&[]), SamplingError::NoCandidate { tokens: 0 });
    assert_eq!(error(&[f32::NEG_INFINITY; 3]), SamplingError::NoCandidate { tokens: 3 });
    assert!(top_logprobs(&[f32::NAN], 1).is_err());
}

#[test]
fn odd_parameters_are_errors() {
    let base = SamplingParams::default;
    for (name, params) in [
        ("temperature", SamplingParams { temperature: -1.0, ..base() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
        ("top_p", SamplingParams { top_p: 0.0, ..base() }),
        ("min_p", SamplingParams { min_p: 1.5, ..base() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..base() }),
        ("logit_bias", SamplingParams { logit_bias: [(0, f32::NAN)].into(), ..base() }),
    ] {
        let error = params.validate().unwrap_err();
        assert!(
            matches!(error, SamplingError::InvalidParameter { name: found, .. } if found == name)
        );
    }
}

/// Computed by an independent program from the description in the module's documentation.
#[test]
fn golden_choices() {
    let logits = logits();
    let choices = |params: SamplingParams| -> Vec<u32> {
        (0..12).map(|position| pick(&logits, &params, position)).collect()
    };
    assert_eq!(choices(warm(42)), [8, 8, 12, 14, 16, 6, 16, 8, 3, 8, 13, 8]);
    let top_k = SamplingParams { top_k: 4, ..warm(42) };
    assert_eq!(choices(top_k), [16, 8, 3, 3, 11, 8, 3, 16, 8, 16, 3, 16]);
    let top_p = SamplingParams { top_p: 0.8, temperature: 0.7, ..warm(42) };
    assert_eq!(choices(top_p), [16, 16, 3, 3, 19, 8, 11, 16, 8, 16, 3, 16]);
    let min_p = SamplingParams { min_p: 0.3, ..warm(7) };
    assert_eq!(choices(min_p), [16, 16, 3, 6, 19, 8, 8, 8, 19, 3, 19, 19]);
}

#[test]
fn frequencies_follow_probabilities() {
    let logits = [0.6f32, 0.3, 0.1].map(f32::ln);
    let mut counts = [0u32; 3];
    for position in 0..20_000 {
        counts[pick(&logits, &warm(3), position) as usize] += 1;
    }
    for (count, expected) in counts.into_iter().zip([12_000.0, 6_000.0, 2_000.0]) {
        assert!((f64::from(count) - expected).abs() < 300.0, "{counts:?}");
    }
}

#[test]
fn penalties_and_bias_count_what_occurred() {
    let logits = [2.0, 1.9, -1.0];
    let history = History { prompt: &[0], output: &[1, 1, 99] };
    let pick = |params: &SamplingParams| sample(&logits, params, history, 0).unwrap().id;
    let base = SamplingParams::default;
    assert_eq!(pick(&base()), 0);
    assert_eq!(pick(&SamplingParams { frequency_penalty: -0.1, ..base() }), 1);
    assert_eq!(pick(&SamplingParams { presence_penalty: -0.2, ..base() }), 1);
    assert_eq!(pick(&SamplingParams { repetition_penalty: 1.5, ..base() }), 0);
    assert_eq!(pick(&SamplingParams { logit_bias: [(2, 3.1)].into(), ..base() }), 2);
    let huge = SamplingParams { frequency_penalty: f32::MIN, ..base() };
    assert!(matches!(
        sample(&logits, &huge, history, 0),
        Err(SamplingError::NotFinite { id: 1, .. })
    ));
    let forbid = SamplingParams { logit_bias: [(0, f32::NEG_INFINITY)].into(), ..base() };
    assert_eq!(pick(&forbid), 1);
}

#[test]
fn top_logprobs_are_in_order() {
    let top = top_logprobs(&[1.0, 2.0, 2.0, 0.0], 3).unwrap();
    assert_eq!(top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 2, 0]);
    let all: f32 = top_logprobs(&logits(), 99).unwrap().iter().map(|t| t.logprob.exp()).sum();
    assert!((all - 1.0).abs() < 1e-5);
}

/// The nucleus by definition, without the shortcut.
fn nucleus(logits: &[f32], top_p: f32) -> Vec<u32> {
    let all = top_logprobs(logits, usize::MAX).unwrap();
    let mut sum = 0.0;
    let mut ids = Vec::new();
    for token in all {
        ids.push(token.id);
        sum += f64::from(token.logprob).exp();
        // Leaves room for rounding at the border.
        if sum >= f64::from(top_p) + 1e-5 {
            break;
        }
    }
    ids
}

proptest! {
    #[test]
    fn filters_hold(
        logits in prop::collection::vec(-8f32..8.0, 1..60),
        top_k in 0usize..10,
        top_p in 0.05f32..=1.0,
        seed: u64,
        position: u64,
    ) {
        let by_k = SamplingParams { top_k, ..warm(seed) };
        let id = pick(&logits, &by_k, position);
        let better = logits.iter().filter(|l| **l > logits[id as usize]).count();
        prop_assert!(top_k == 0 || better < top_k);

        let by_p = SamplingParams { top_p, ..warm(seed) };
        let id = pick(&logits, &by_p, position);
        prop_assert!(nucleus(&logits, top_p).contains(&id));
        prop_assert_eq!(id, pick(&logits, &by_p, position));
    }
}
