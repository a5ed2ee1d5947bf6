//! Where arguments come from: the command line goes before the environment, and that before a file.

use std::{ffi::OsString, io::Read, path::Path};

use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource,
};
use serde_norway::{Mapping, Value};

use crate::args::Args;

/// A configuration of thousands of workers is shorter, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Below this, a name is not meant to be the other, from 0 to 1.
const SIMILAR: f64 = 0.8;

impl Args {
    /// The arguments of a command line that begins with the name of the program, completed by the environment and by
    /// the file that `--config` names.
    ///
    /// # Errors
    /// Says what is wrong, and where; also how the program ends that is asked for help or its version.
    pub fn gather(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let line: Vec<_> = line.into_iter().collect();
        let mut command = Self::command();
        let given = command.try_get_matches_from_mut(&line)?;
        let Some(path) = given.get_one::<OsString>("config").filter(|path| !path.is_empty()) else {
            return Self::from_arg_matches(&given);
        };
        let path = Path::new(path);
        let refuse = |kind, why: String| Args::command().error(kind, format!("--config {}: {why}", path.display()));
        let read = read(path).map_err(|why| refuse(ErrorKind::Io, why))?;
        let more = flags(&read, &command, &given).map_err(|why| refuse(ErrorKind::InvalidValue, why))?;
        let program = line.first().cloned().unwrap_or_default();
        let all = std::iter::once(program).chain(more).chain(line.into_iter().skip(1));
        Self::command().try_get_matches_from(all).and_then(|all| Self::from_arg_matches(&all)).map_err(|error| {
            let text = error.to_string();
            refuse(error.kind(), text.strip_prefix("error: ").unwrap_or(&text).to_owned())
        })
    }
}

fn read(path: &Path) -> Result<Mapping, String> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("has more than {MAX_BYTES} bytes"));
    }
    // JSON is YAML.
    match serde_norway::from_slice(&text).map_err(|error| error.to_string())? {
        Value::Mapping(mapping) => Ok(mapping),
        Value::Null => Ok(Mapping::new()),
        _ => Err("must hold names of flags with their values, such as \"load-monitor-interval: 2\"".to_owned()),
    }
}

/// The file's values as flags, but for those that are given otherwise.
fn flags(file: &Mapping, command: &Command, given: &ArgMatches) -> Result<Vec<OsString>, String> {
    let mut flags = Vec::new();
    for (name, value) in file {
        let name = name.as_str().ok_or_else(|| format!("{name:?} is no name of a flag"))?;
        let arg = find(name, command)?;
        // Compose files set variables they have no value for to nothing: that is no value.
        let empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
        let source = given.value_source(arg.get_id().as_str());
        if source == Some(ValueSource::CommandLine) || (source == Some(ValueSource::EnvVariable) && !empty) {
            continue;
        }
        let long = arg.get_long().unwrap_or_default();
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            match value {
                Value::Bool(true) => flags.push(format!("--{long}").into()),
                Value::Bool(false) => {}
                _ => return Err(format!("{name} must be true or false")),
            }
            continue;
        }
        let values = match value {
            Value::Sequence(_) if !matches!(arg.get_action(), ArgAction::Append) => {
                return Err(format!("{name} must be one value"));
            }
            Value::Sequence(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return Err(format!("{name} must be text or a number")),
            };
            flags.push(format!("--{long}={text}").into());
        }
    }
    Ok(flags)
}

fn find<'a>(name: &str, command: &'a Command) -> Result<&'a Arg, String> {
    let wanted = name.replace('_', "-");
    let longs = || command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    let usable = |long: &str| !matches!(long, "config" | "help" | "version");
    if let Some((_, arg)) = longs().find(|(long, _)| *long == wanted && usable(long)) {
        return Ok(arg);
    }
    let nearest = longs()
        .filter(|(long, _)| usable(long))
        .map(|(long, _)| (strsim::jaro_winkler(long, &wanted), long))
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    let hint = match nearest {
        Some((similarity, long)) if similarity >= SIMILAR => format!("did you mean {long}?"),
        _ => "--help names all flags".to_owned(),
    };
    Err(format!("there is no {name:?}; {hint}"))
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    fn gather(name: &str, text: &str, extra: &[&str]) -> Result<Args, String> {
        let directory = std::env::temp_dir().join(format!("sidecar-layers-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        let line = ["sidecar-loadmonitor", "--config", path.to_str().unwrap()];
        let args = Args::gather(line.iter().chain(extra).map(OsString::from));
        fs::remove_file(&path).unwrap();
        args.map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_sets_what_the_command_line_does_not() {
        let text = "worker: [http://a:1, http://b:1]\nload_monitor_interval: 2\nhealth-failure-threshold: 7\n\
                    disable-health-check: true\nremove-unhealthy-workers: false\nlisten: 127.0.0.1:1\n";
        let args = gather("all.yaml", text, &["--health-failure-threshold", "9"]).unwrap();
        assert_eq!(args.workers, ["http://a:1", "http://b:1"]);
        assert_eq!((args.load_monitor_interval, args.health_failure_threshold), (Duration::from_secs(2), 9));
        assert_eq!((args.disable_health_check, args.remove_unhealthy_workers), (true, false));
        let args =
            gather("line.json", r#"{"worker": "http://a:1", "log-level": "debug"}"#, &["--worker", "http://c:1"]);
        assert_eq!(args.unwrap().workers, ["http://c:1"]);
        assert!(gather("empty.yaml", "", &[]).unwrap().workers.is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_the_file() {
        for (text, part) in [
            ("health-failure-treshold: 3", "did you mean health-failure-threshold?"),
            ("config: other.yaml", "there is no \"config\""),
            ("xyzzy: 1", "--help names all flags"),
            ("load-monitor-interval: never", "must be a number of seconds"),
            ("load-monitor-interval: [1, 2]", "load-monitor-interval must be one value"),
            ("disable-health-check: 1", "disable-health-check must be true or false"),
            ("listen: {a: b}", "listen must be text or a number"),
            ("[1, 2]", "names of flags"),
            ("a: [", "at line"),
        ] {
            let why = gather("wrong.yaml", text, &[]).unwrap_err();
            assert!(why.contains(part) && why.contains("wrong.yaml"), "{why:?} does not say {part:?}");
        }
        let line = ["x", "--config", "/does/not/exist"].map(OsString::from);
        assert!(Args::gather(line).unwrap_err().to_string().contains("/does/not/exist: No such file"));
    }
}
