//! What the paths of a world are like.

use std::time::Duration;

use blockwire::transport::Capabilities;
use blockwire_sim::{Chance, Conditions};
use fastrand::Rng;

use crate::scenario::Weather;

/// What the links to a host can do.
pub(crate) fn draw_capabilities(random: &mut Rng) -> Capabilities {
    let push =
        Capabilities { stream: Some(1), get: None, adopt: false, same_host: false, lingers: false };
    let local = Capabilities { get: Some(1), adopt: true, same_host: true, ..push };
    match random.u8(0..5) {
        0 => push,
        1 => Capabilities { lingers: true, ..push },
        2 => Capabilities { adopt: false, ..local },
        3 => Capabilities { stream: None, ..local },
        _ => local,
    }
}

/// What a path is like.
pub(crate) fn conditions(weather: Weather) -> Conditions {
    let fair = Conditions {
        latency: Duration::from_micros(200),
        jitter: Duration::from_millis(2),
        piece_len_max: 300,
        completion_delay: Duration::from_millis(1),
        lose_tail: Chance(3000),
        ..Conditions::default()
    };
    match weather {
        Weather::Still => Conditions { lose_tail: Chance(3000), ..Conditions::default() },
        Weather::Fair => fair,
        Weather::Slow => Conditions {
            latency: Duration::from_millis(5),
            jitter: Duration::from_millis(30),
            bandwidth: Some(20_000),
            piece_len_max: 40,
            completion_delay: Duration::from_millis(10),
            ..fair
        },
        Weather::Rude => Conditions { refuse: Chance(2000), refuse_dial: Chance(3000), ..fair },
        Weather::Corrupt => {
            Conditions { corrupt_control: Chance(300), corrupt_payload: Chance(1500), ..fair }
        }
        Weather::Breaking => Conditions { doom: Chance(500), ..fair },
    }
}
