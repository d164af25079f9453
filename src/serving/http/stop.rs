//! Stop strings, across token boundaries.

/// Finds the first stop string in a text that comes in pieces.
///
/// What could still become a stop string is held back, so that nothing is shown that must be taken
/// back later.
#[derive(Debug)]
pub(super) struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What is certain after one more piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Matched {
    /// Text to show.
    pub(super) text: String,
    /// Whether a stop string follows it: then it is the last text.
    pub(super) stopped: bool,
}

impl StopMatcher {
    /// A matcher for `stops`, none of them empty.
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes one more piece.
    pub(super) fn push(&mut self, piece: &str) -> Matched {
        self.held.push_str(piece);
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop)).min();
        if let Some(at) = first {
            self.held.truncate(at);
            return Matched { text: std::mem::take(&mut self.held), stopped: true };
        }
        let keep = self.held.len() - self.possible_prefix();
        let rest = self.held.split_off(keep);
        Matched { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// The text held back, when no piece follows.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the held text that begin some stop string; the longest such end.
    fn possible_prefix(&self) -> usize {
        let starts = self.held.char_indices().map(|(at, _)| &self.held[at..]);
        starts
            .filter(|tail| self.stops.iter().any(|stop| stop.starts_with(tail)))
            .map(str::len)
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything shown for `pieces`, and whether a stop string was found.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut shown = String::new();
        for piece in pieces {
            let matched = matcher.push(piece);
            shown.push_str(&matched.text);
            if matched.stopped {
                return (shown, true);
            }
        }
        (shown + &matcher.finish(), false)
    }

    #[test]
    fn every_way_to_cut_a_text_gives_the_same_answer() {
        let text = "aab aaäc ENDE";
        for (stops, shown) in
            [(&["aaä"][..], "aab "), (&["END", "c E"], "aab aaä"), (&["ENDE!"], text), (&[], text)]
        {
            let chars: Vec<String> = text.chars().map(String::from).collect();
            for cuts in 0..1_u32 << (chars.len() - 1) {
                let mut pieces = vec![String::new()];
                for (i, c) in chars.iter().enumerate() {
                    if i > 0 && cuts >> (i - 1) & 1 == 1 {
                        pieces.push(String::new());
                    }
                    pieces.last_mut().unwrap().push_str(c);
                }
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                assert_eq!(run(stops, &pieces), (shown.to_owned(), shown != text), "{pieces:?}");
            }
        }
    }

    #[test]
    fn only_what_could_become_a_stop_string_is_held_back() {
        let mut matcher = StopMatcher::new(vec!["\n\nUser".to_owned()]);
        assert_eq!(matcher.push("a\n").text, "a");
        assert_eq!(matcher.push("b\n\nU").text, "\nb");
        assert_eq!(matcher.push("nit").text, "\n\nUnit");
    }
}
