//! `--config FILE`: what the flags of `serve` say, in TOML. A key is a flag's name without its dashes.
//!
//! The file's values become the defaults of the flags, so a flag wins over the environment, and that over the file.
//! A key that is no flag is refused, with its line: what is misspelt must not be taken for said.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use toml::de::{DeTable, DeValue};

use crate::args::{self, Cli};

/// Flags that mean nothing in a file.
const FLAGS_ONLY: [&str; 3] = ["config", "help", "version"];
/// How alike a key and a flag are, 0 to 1, when the one is offered for the other.
const ALIKE: f64 = 0.75;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ConfigError {
    #[error("--config {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{place}: {message}")]
    Syntax { place: Place, message: String },
    #[error("{place}: there is no `{key}`{}", offer(nearest.as_deref()))]
    UnknownKey { place: Place, key: String, nearest: Option<String> },
    #[error("{place}: `{key}` {problem}")]
    Value { place: Place, key: String, problem: String },
    #[error(transparent)]
    Flags(#[from] clap::Error),
}

/// A line of a file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    path: PathBuf,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

fn offer(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean `{nearest}`?"),
        None => "; the keys are the flags that `blockwire serve --help` lists".to_owned(),
    }
}

/// Reads the command line, and the file that it names.
///
/// # Errors
/// [`ConfigError`]; that of a flag knows how to show itself.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, ConfigError> {
    let line: Vec<OsString> = line.into_iter().collect();
    let mut command = Cli::command();
    if let Some(path) = config_path(&line) {
        let text = fs::read_to_string(&path)
            .map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
        for (key, values) in read(&path, &text)? {
            command = command.mut_subcommand("serve", |serve| default_to(serve, &key, values));
        }
    }
    let matches = command.try_get_matches_from(line)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (args::Command::Serve(serve), Some(given)) =
        (&mut cli.command, matches.subcommand_matches("serve"))
    {
        let said = |flag| given.value_source(flag) != Some(ValueSource::DefaultValue);
        if said("kv_memory") && !said("kv_blocks") {
            // One flag in place of the other: the file's goes.
            serve.engine.kv_blocks = None;
        }
    }
    Ok(cli)
}

/// The file that a command line names. It is looked for before the flags are read, since it says what they are
/// when nobody says it.
fn config_path(line: &[OsString]) -> Option<PathBuf> {
    let mut words = line.iter().skip(1);
    words.next().filter(|command| *command == "serve")?;
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().map(PathBuf::from);
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    None
}

/// What a file says: flags that there are, with values that they take.
fn read(path: &Path, text: &str) -> Result<Vec<(String, Vec<String>)>, ConfigError> {
    let place = |at: usize| Place {
        path: path.to_owned(),
        line: 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count(),
    };
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        place: place(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut said = Vec::new();
    for (key, value) in table.into_inner() {
        let (place, key) = (place(key.span().start), key.into_inner().into_owned());
        let command = Cli::command();
        let flags: Vec<&Arg> = serve(&command)
            .get_arguments()
            .filter(|flag| flag.get_long().is_some_and(|name| !FLAGS_ONLY.contains(&name)))
            .collect();
        let Some(flag) = flags.iter().find(|flag| flag.get_long() == Some(&key)) else {
            let nearest = nearest(&key, flags.iter().filter_map(|flag| flag.get_long()));
            return Err(ConfigError::UnknownKey { place, key, nearest });
        };
        match values(flag, value.into_inner()).and_then(|values| check(&key, flag, values)) {
            Ok(values) if values.is_empty() => {}
            Ok(values) => said.push((key, values)),
            Err(problem) => return Err(ConfigError::Value { place, key, problem }),
        }
    }
    Ok(said)
}

fn serve(command: &Command) -> &Command {
    command.find_subcommand("serve").unwrap_or(command)
}

fn nearest<'a>(key: &str, flags: impl Iterator<Item = &'a str>) -> Option<String> {
    let key = key.replace('_', "-");
    let rated = flags.map(|flag| (strsim::jaro(&key, flag), flag));
    let alike = rated.filter(|(alike, _)| *alike >= ALIKE);
    alike.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, flag)| flag.to_owned())
}

/// The words that a flag would get; none for one that is not set.
fn values(flag: &Arg, value: DeValue<'_>) -> Result<Vec<String>, String> {
    let is_switch = matches!(flag.get_action(), ArgAction::SetTrue);
    let takes_several = matches!(flag.get_action(), ArgAction::Append);
    match value {
        DeValue::Boolean(on) if is_switch => Ok(if on { vec!["true".to_owned()] } else { vec![] }),
        _ if is_switch => Err("is true or false".to_owned()),
        DeValue::Array(several) if takes_several => {
            let word = |value: toml::Spanned<DeValue<'_>>| word(value.into_inner());
            several.into_iter().map(word).collect()
        }
        DeValue::Array(_) => Err("takes one value".to_owned()),
        one => Ok(vec![word(one)?]),
    }
}

fn word(value: DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.into_owned()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        _ => Err("is a text or a number".to_owned()),
    }
}

/// Whether the flag takes these words.
fn check(key: &str, flag: &Arg, values: Vec<String>) -> Result<Vec<String>, String> {
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return Ok(values);
    }
    let model = (key != "model").then_some("--model=unused".to_owned());
    let words = values.iter().map(|value| format!("--{key}={value}"));
    let line = ["blockwire", "serve"].map(str::to_owned).into_iter().chain(model).chain(words);
    match Cli::command().try_get_matches_from(line) {
        Ok(_) => Ok(values),
        Err(error) if error.kind() == ErrorKind::ArgumentConflict => {
            Err("takes one value".to_owned())
        }
        Err(error) => {
            let text = error.to_string();
            let reason = text.split("\n\n").next().unwrap_or_default();
            let reason = reason.trim_start_matches("error: ").replace('\n', " ");
            Err(format!("is not possible: {}", reason.trim()))
        }
    }
}

/// Makes `values` what the flag `key` says when nobody else does.
fn default_to(serve: Command, key: &str, values: Vec<String>) -> Command {
    let flag = serve.get_arguments().find(|flag| flag.get_long() == Some(key));
    let Some(flag) = flag.cloned() else { return serve };
    let split: Vec<String> = match flag.get_value_delimiter() {
        Some(at) => values.iter().flat_map(|value| value.split(at)).map(str::to_owned).collect(),
        None => values,
    };
    serve.mut_arg(flag.get_id(), |flag| flag.required(false).default_values(split))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Role, ServeArgs};

    const EXAMPLE: &str = include_str!("../../docs/blockwire.toml");

    /// What `serve` makes of a file, and of flags besides.
    fn parsed(text: &str, flags: &[&str]) -> Result<ServeArgs, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let path = file.path().as_os_str().to_owned();
        let line = ["blockwire", "serve", "--config"].map(OsString::from).into_iter().chain([path]);
        match parse(line.chain(flags.iter().map(OsString::from)))?.command {
            args::Command::Serve(serve) => Ok(serve),
            other => panic!("{other:?}"),
        }
    }

    fn refused(text: &str) -> String {
        let told = parsed(text, &["--model", "m"]).unwrap_err().to_string();
        told.split_once("/.tmp").unwrap().1.split_once(':').unwrap().1.to_owned()
    }

    #[test]
    fn a_file_says_what_flags_do_not() {
        let text = "model = 'm.gguf'\nnode-role = \"router\"\nprefill-peers = ['shm:p0', 'shm:p1']\n\
                    decode-peers = 'shm:d0,shm:d1'\nmax-batch = 7\nthreads = 3\nno-adopt = true\n";
        let serve = parsed(text, &["--max-batch", "9"]).unwrap();
        assert_eq!((serve.node_role, serve.model), (Role::Router, "m.gguf".into()));
        let told = |peers: &[blockwire::transport::Address]| {
            peers.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(told(&serve.prefill_peers), ["shm:p0", "shm:p1"]);
        assert_eq!(told(&serve.decode_peers), ["shm:d0", "shm:d1"]);
        assert_eq!((serve.engine.max_batch.get(), serve.engine.threads.get()), (9, 3));
        assert!(serve.no_adopt && !serve.insecure);
        let serve = parsed(text, &["--decode-peers", "shm:e"]).unwrap();
        assert_eq!(told(&serve.decode_peers), ["shm:e"]);
    }

    #[test]
    fn a_flag_takes_the_place_of_the_one_that_excludes_it() {
        let serve = parsed("kv-blocks = 40", &["--model", "m", "--kv-memory", "16"]).unwrap();
        assert_eq!((serve.engine.kv_blocks, serve.engine.kv_memory), (None, 16));
        let serve = parsed("kv-memory = 16", &["--model", "m", "--kv-blocks", "40"]).unwrap();
        assert_eq!(serve.engine.kv_blocks, Some(40));
        let serve = parsed("kv-blocks = 40", &["--model", "m"]).unwrap();
        assert_eq!(serve.engine.kv_blocks, Some(40));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, told) in [
            (
                "threads = 1\n\nkv_memroy = 3",
                "3: there is no `kv_memroy`; did you mean `kv-memory`?",
            ),
            ("config = 'x'", "1: there is no `config`; the keys are the flags that"),
            ("\n[serve]\nmodel = 'x'", "2: there is no `serve`"),
            ("threads = 1\nthreads = 2", "2: duplicate key"),
            ("model = ", "1: "),
            ("threads = 0", "1: `threads` is not possible: invalid value '0' for '--threads"),
            ("node-role = 'king'", "1: `node-role` is not possible: invalid value 'king'"),
            ("no-adopt = 'yes'", "1: `no-adopt` is true or false"),
            ("insecure = 1", "1: `insecure` is true or false"),
            ("threads = [1, 2]", "1: `threads` takes one value"),
            ("http = true", "1: `http` is a text or a number"),
            ("\nprefill-peers = ['shm:p', 'pigeon']", "2: `prefill-peers` is not possible"),
        ] {
            let got = refused(text);
            assert!(got.starts_with(told), "{text}: {got}");
        }
        let missing = parse(["blockwire", "serve", "--config=/nowhere"].map(OsString::from));
        assert!(missing.unwrap_err().to_string().starts_with("--config /nowhere: "));
    }

    /// The example, with what it leaves out by a comment.
    #[test]
    fn the_example_has_every_flag_with_a_value_that_it_takes() {
        parsed(EXAMPLE, &[]).unwrap();
        let lines = EXAMPLE.lines().map(|line| line.strip_prefix("#").unwrap_or(line));
        let entries: Vec<&str> =
            lines.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())).collect();
        let command = Cli::command();
        let flags = serve(&command).get_arguments().filter_map(Arg::get_long);
        for flag in flags.filter(|flag| !FLAGS_ONLY.contains(flag)) {
            let begin = format!("{flag} = ");
            let entry = entries.iter().find(|entry| entry.starts_with(&begin));
            let entry = entry.unwrap_or_else(|| panic!("no {flag} in the example"));
            parsed(entry, &["--model", "m"][..if flag == "model" { 0 } else { 2 }]).unwrap();
        }
    }
}
