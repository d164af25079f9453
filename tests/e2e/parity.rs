//! Tokens of three processes equal those of one: C9. Without the prefix cache, so that every form of a request
//! is computed and moved as a whole; `prefix` has the others.

use std::iter;

use serde_json::{Value, json};

use crate::accounts::Accounts;
use crate::client::{self, Completion};
use crate::cluster::{Carrier, Cluster, Setup, alone, runtime_dir};
use crate::keyed;
use crate::models::{Model, completion, sampled, streamed};
use crate::node::Node;
use crate::watchdog::Watchdog;

/// Tokens of every answer.
const OUT: u32 = 64;
/// Requests at a time.
const AT_ONCE: usize = 8;

/// Prompt lengths around a block's end, and those that take several chunks.
fn lengths(model: Model) -> &'static [usize] {
    if model == Model::SmolLm2 { &[1, 15, 16, 17, 545, 1700] } else { &[1, 15, 16, 17, 300] }
}

/// Greedy and seeded requests of every length.
fn requests(model: Model) -> Vec<Value> {
    let bodies = lengths(model).iter().enumerate().map(|(number, length)| {
        let greedy = completion(&model.prompt(*length, number), OUT);
        [greedy.clone(), sampled(greedy, 1000 + number as u64)]
    });
    bodies.flatten().collect()
}

/// What one process answers to `bodies`.
pub(crate) fn single_node(setup: &Setup, flags: &[&str], bodies: &[Value]) -> Vec<Completion> {
    let _alone = alone(setup.model);
    let _watchdog = Watchdog::start();
    let dir = runtime_dir();
    let node = Node::start(dir.path(), "single", &setup.node_flags(flags));
    let start = Accounts::take(iter::once(&node));
    let answers = client::ask_all(node.http(), bodies, AT_ONCE);
    let answers: Vec<Completion> = answers.into_iter().map(Result::unwrap).collect();
    start.settle(iter::once(&node));
    node.stop();
    answers
}

/// Asks every request, as a body and as a stream where `chosen` says so (length, drawn, stream), and
/// compares with one process's answers.
pub(crate) fn assert_parity(
    cluster: &Cluster,
    bodies: &[Value],
    expected: &[Completion],
    chosen: impl Fn(usize, bool, bool) -> bool,
) {
    let (mut asked, mut wanted) = (vec![], vec![]);
    for (body, expected) in bodies.iter().zip(expected) {
        for stream in [false, true] {
            let length = body["prompt"].as_array().map_or(0, Vec::len);
            if chosen(length, body.get("seed").is_some(), stream) {
                asked.push(if stream { streamed(body.clone()) } else { body.clone() });
                wanted.push(expected);
            }
        }
    }
    let answers = client::ask_all(cluster.http(), &asked, AT_ONCE);
    for ((answer, expected), body) in answers.iter().zip(wanted).zip(&asked) {
        let answer = answer.as_ref().unwrap_or_else(|failure| panic!("{failure:?}"));
        let (prompt, drawn) = (expected.prompt_tokens, body.get("seed").is_some());
        let of = format!("prompt of {prompt}, drawn {drawn}, stream {}", body["stream"]);
        assert_eq!(answer.tokens, expected.tokens, "{of}");
        let told = |c: &Completion| (c.finish.clone(), c.prompt_tokens, c.completion_tokens);
        assert_eq!((told(answer), &answer.text), (told(expected), &expected.text), "{of}");
        assert_eq!(answer.cached_tokens, 0, "fault B19: nothing is cached of {of}");
    }
}

/// Every request, in both forms.
pub(crate) fn all(_length: usize, _drawn: bool, _stream: bool) -> bool {
    true
}

/// Short prompts in every form over every carrier. A prompt of 1,700 tokens takes a core a quarter of
/// a minute: its forms, and those of the 545, are spread over the carriers so that each form is asked
/// once; over TLS it is half of the short ones. Over stripes, one prompt goes in one part and one in several, and
/// over rings it is one prompt of either kind.
/// `BLOCKWIRE_E2E=full` asks all over all.
fn smollm2_chosen(carrier: Carrier, length: usize, drawn: bool, stream: bool) -> bool {
    if std::env::var("BLOCKWIRE_E2E").is_ok_and(|extent| extent == "full") {
        return true;
    }
    if carrier == Carrier::Stripes {
        return length == 17 || (length, drawn, stream) == (545, true, false);
    }
    if carrier == Carrier::Uring {
        return length == 16 || (length, drawn, stream) == (545, false, true);
    }
    if length < 545 {
        return carrier != Carrier::Tls || drawn == stream;
    }
    let carriers_turn = match (length, drawn, stream) {
        (545, false, false) | (545, true, true) => Carrier::Tcp4,
        (545, ..) => Carrier::Tcp6,
        (_, false, true) | (_, true, false) => Carrier::Shm,
        (_, true, true) => Carrier::Tcp4,
        (_, false, false) => Carrier::Tcp6,
    };
    carrier == carriers_turn
}

/// The comparison says something: answers are whole, and differ from each other.
fn assert_telling(expected: &[Completion]) {
    for pair in expected.chunks(2) {
        assert!(pair.iter().all(|answer| answer.tokens.len() == OUT as usize));
        assert!(pair.iter().all(|answer| answer.finish == "length"));
        assert_ne!(pair[0].tokens, pair[1].tokens, "greedy and drawn are alike");
    }
    let distinct: std::collections::HashSet<_> = expected.iter().map(|a| &a.tokens).collect();
    assert!(distinct.len() + 2 > expected.len(), "answers are alike");
}

fn smollm2_expected() -> &'static [Completion] {
    static EXPECTED: std::sync::OnceLock<Vec<Completion>> = std::sync::OnceLock::new();
    EXPECTED.get_or_init(|| {
        let setup = Setup::new(Model::SmolLm2, Carrier::Shm).without_prefix_cache();
        let expected = single_node(&setup, &[], &requests(Model::SmolLm2));
        assert_telling(&expected);
        expected
    })
}

fn smollm2_over(setup: Setup) {
    let setup = setup.without_prefix_cache();
    let (expected, carrier) = (smollm2_expected(), setup.carrier);
    let cluster = Cluster::start(setup);
    let chosen = |length, drawn, stream| smollm2_chosen(carrier, length, drawn, stream);
    assert_parity(&cluster, &requests(Model::SmolLm2), expected, chosen);
    // Every cache came from the prefill node: decode computed no prompt (faults B21, B22, B46).
    assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), 0);
    cluster.finish();
}

#[test]
fn three_processes_equal_one_over_shm() {
    smollm2_over(Setup::new(Model::SmolLm2, Carrier::Shm));
}

#[test]
fn three_processes_equal_one_over_tcp() {
    smollm2_over(Setup::new(Model::SmolLm2, Carrier::Tcp4));
}

#[test]
fn three_processes_equal_one_over_tcp_on_ipv6() {
    smollm2_over(Setup::new(Model::SmolLm2, Carrier::Tcp6));
}

#[test]
fn three_processes_equal_one_over_tls() {
    let keys = runtime_dir();
    smollm2_over(keyed::tls(Model::SmolLm2, keys.path()));
}

#[test]
fn nodes_with_unequal_blocks_and_layouts_equal_one_over_tls() {
    let keys = runtime_dir();
    let mut setup = keyed::tls(Model::Qwen3, keys.path());
    setup.prefill_flags.extend(["--block-tokens=8", "--kv-layout=layer-major"]);
    setup.decode_flags.push("--block-tokens=24");
    fixture_over(setup);
}

#[test]
fn three_processes_equal_one_over_several_connections() {
    smollm2_over(Setup::new(Model::SmolLm2, Carrier::Stripes));
}

#[test]
#[cfg(target_os = "linux")]
fn three_processes_equal_one_over_io_uring() {
    let (expected, setup) = (smollm2_expected(), Setup::new(Model::SmolLm2, Carrier::Uring));
    let setup = setup.without_prefix_cache();
    let cluster = Cluster::start(setup);
    let nodes = [&cluster.prefill[0], &cluster.decode];
    if nodes.iter().any(|node| node.log().contains("no io_uring here")) {
        return println!("SKIPPED: this system has no io_uring");
    }
    for node in nodes {
        assert!(node.has_open("anon_inode:[io_uring]"), "{} goes another way", node.role);
    }
    let chosen = |length, drawn, stream| smollm2_chosen(Carrier::Uring, length, drawn, stream);
    assert_parity(&cluster, &requests(Model::SmolLm2), expected, chosen);
    cluster.finish();
}

#[test]
fn chats_equal_one_processs() {
    let ask = |text: &str, drawn: bool| {
        let messages = json!([
            {"role": "system", "content": "You are terse."},
            {"role": "user", "content": text},
        ]);
        let body = json!({"messages": messages, "max_tokens": 40, "temperature": 0});
        if drawn { sampled(body, 7) } else { body }
    };
    let texts = ["What is the capital of France?", "Schreibe zwei Emojis: 🤖 und 日本語."];
    let bodies: Vec<Value> =
        texts.iter().flat_map(|text| [ask(text, false), ask(text, true)]).collect();
    let setup = Setup::new(Model::SmolLm2, Carrier::Shm).without_prefix_cache();
    let expected = single_node(&setup, &[], &bodies);
    assert!(expected.iter().all(|answer| !answer.text.is_empty()));
    let cluster = Cluster::start(setup);
    assert_parity(&cluster, &bodies, &expected, all);
    cluster.finish();
}

/// A tiny model over `carrier`, against one process with the decode node's flags.
fn fixture_over(setup: Setup) {
    let setup = setup.without_prefix_cache();
    let bodies = requests(setup.model);
    let expected = single_node(&setup, &[], &bodies);
    assert_telling(&expected);
    let cluster = Cluster::start(setup);
    assert_parity(&cluster, &bodies, &expected, all);
    assert_eq!(cluster.decode.metric("prefill_tokens_computed_total"), 0);
    cluster.finish();
}

fn with(
    (model, carrier): (Model, Carrier),
    flags: &[&'static str],
    prefill: &[&'static str],
    decode: &[&'static str],
) -> Setup {
    let mut setup = Setup::new(model, carrier);
    setup.flags.extend(flags);
    setup.prefill_flags.extend(prefill);
    setup.decode_flags.extend(decode);
    setup
}

#[test]
fn llama_with_f16_and_bf16_caches() {
    for dtype in ["--kv-dtype=f16", "--kv-dtype=bf16"] {
        for carrier in [Carrier::Shm, Carrier::Tcp4] {
            fixture_over(with((Model::Llama, carrier), &[dtype], &[], &[]));
        }
    }
}

#[test]
fn qwen3_with_f16_and_bf16_caches() {
    for dtype in ["--kv-dtype=f16", "--kv-dtype=bf16"] {
        for carrier in [Carrier::Shm, Carrier::Tcp4] {
            fixture_over(with((Model::Qwen3, carrier), &[dtype], &[], &[]));
        }
    }
}

#[test]
fn gemma3_with_f16_and_bf16_caches() {
    for dtype in ["--kv-dtype=f16", "--kv-dtype=bf16"] {
        for carrier in [Carrier::Shm, Carrier::Tcp4] {
            fixture_over(with((Model::Gemma3, carrier), &[dtype], &[], &[]));
        }
    }
}

#[test]
fn lfm2_with_its_state_beside_f16_and_bf16_caches() {
    for dtype in ["--kv-dtype=f16", "--kv-dtype=bf16"] {
        for carrier in [Carrier::Shm, Carrier::Tcp4, Carrier::Stripes] {
            fixture_over(with((Model::Lfm2, carrier), &[dtype], &[], &[]));
        }
    }
}

#[test]
fn lfm2_on_nodes_with_unequal_blocks_and_layouts() {
    let decode = ["--kv-layout=layer-major", "--block-tokens=24"];
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        fixture_over(with((Model::Lfm2, carrier), &[], &["--block-tokens=8"], &decode));
    }
}

#[test]
fn gemma3_on_nodes_with_unequal_blocks_and_layouts() {
    let decode = ["--kv-layout=layer-major", "--block-tokens=24"];
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        fixture_over(with((Model::Gemma3, carrier), &[], &["--block-tokens=8"], &decode));
    }
}

#[test]
fn fault_b29_nodes_with_unequal_blocks() {
    let small = ["--block-tokens=8"];
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        fixture_over(with((Model::Llama, carrier), &[], &["--block-tokens=16"], &small));
        fixture_over(with((Model::Qwen3, carrier), &[], &small, &["--block-tokens=24"]));
    }
}

#[test]
fn fault_b29_nodes_with_unequal_layouts() {
    let layer_major = ["--kv-layout=layer-major"];
    for carrier in [Carrier::Shm, Carrier::Tcp4] {
        fixture_over(with((Model::Llama, carrier), &[], &layer_major, &[]));
        let decode = ["--kv-layout=layer-major", "--block-tokens=24"];
        fixture_over(with((Model::Qwen3, carrier), &[], &[], &decode));
    }
}
