//! Panics of tasks. A runtime swallows them; a run must not.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs something; the panics meanwhile, in words.
pub fn catch<T>(run: impl FnOnce() -> T) -> (T, Vec<String>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let kept = SEEN.with_borrow_mut(|seen| seen.as_mut().map(|s| s.push(info.to_string())));
            if kept.is_none() {
                usual(info);
            }
        }));
    });
    SEEN.set(Some(Vec::new()));
    let result = run();
    (result, SEEN.take().unwrap_or_default())
}
