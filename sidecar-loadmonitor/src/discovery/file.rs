//! Workers that a file describes, which may be replaced at any time.

use std::{io::ErrorKind, path::PathBuf, time::Duration};

use futures_util::stream::BoxStream;
use serde::Deserialize;
use tokio::io::AsyncReadExt;

use super::{Found, Look, Source, look_every};
use crate::spec::WorkerSpec;

/// Thousands of workers with all that can be said of them need less, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// A file with a list of workers, in JSON or YAML: URLs, or objects with SMG's members (`WorkerSpec`).
#[derive(Debug)]
pub(crate) struct WorkersFile {
    path: PathBuf,
    every: Duration,
    /// The contents when last looked at.
    seen: Option<Vec<u8>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "must be a list of workers, each a URL or an object with a url, or have one as `workers`"
)]
enum Document {
    List(Vec<serde_norway::Value>),
    Workers { workers: Vec<serde_norway::Value> },
}

impl WorkersFile {
    /// The file at `path`, looked at so often.
    pub(crate) const fn new(path: PathBuf, every: Duration) -> Self {
        Self { path, every, seen: None }
    }
}

impl Source for WorkersFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn sets(self: Box<Self>) -> BoxStream<'static, Vec<Found>> {
        look_every(self.every, *self)
    }
}

impl Look for WorkersFile {
    fn name(&self) -> String {
        Source::name(self)
    }

    async fn look(&mut self) -> Result<Option<Vec<Found>>, String> {
        let bytes = self.read().await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => "there is no such file".to_owned(),
            _ => format!("cannot be read: {error}"),
        })?;
        if self.seen.as_ref() == Some(&bytes) {
            return match parse(&bytes) {
                // It was taken when it was new.
                Ok(_) => Ok(None),
                Err(why) => Err(why),
            };
        }
        let set = parse(&bytes);
        self.seen = Some(bytes);
        set.map(Some)
    }
}

impl WorkersFile {
    async fn read(&self) -> std::io::Result<Vec<u8>> {
        // Opening a pipe waits for a writer.
        if !tokio::fs::metadata(&self.path).await?.is_file() {
            return Err(std::io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        tokio::fs::File::open(&self.path).await?.take(MAX_BYTES + 1).read_to_end(&mut bytes).await?;
        Ok(bytes)
    }
}

/// The workers that the file's contents describe.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Found>, String> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("has more than {MAX_BYTES} bytes"));
    }
    // JSON is YAML.
    let document: Document = serde_norway::from_slice(bytes).map_err(|error| error.to_string())?;
    let (Document::List(listed) | Document::Workers { workers: listed }) = document;
    let mut found: Vec<Found> = Vec::with_capacity(listed.len());
    let mut routes = std::collections::HashSet::new();
    for (number, worker) in listed.into_iter().enumerate() {
        let wrong = |why: String| format!("worker {}: {why}", number + 1);
        let spec = match worker {
            serde_norway::Value::String(url) => WorkerSpec { url, ..WorkerSpec::default() },
            object => serde_norway::from_value(object).map_err(|error| wrong(error.to_string()))?,
        };
        let one = Found::new(spec, None).map_err(wrong)?;
        if !routes.insert(one.worker.route("")) {
            return Err(wrong(format!("{} is listed twice; remove one of the two", one.worker.url())));
        }
        found.push(one);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuses(text: &str, part: &str) {
        let why = parse(text.as_bytes()).unwrap_err();
        assert!(why.contains(part), "{why:?} does not say {part:?}");
    }

    #[test]
    fn json_and_yaml_describe_the_same_workers() {
        let json = r#"{"workers": ["http://a:1", {"url": "http://b:1", "worker_type": "prefill", "bootstrap_port": 8998,
            "labels": {"dp_size": "2"}, "health": {"check_interval_secs": 2}, "overload": {"token_usage": 0.9}}]}"#;
        let yaml = "- http://a:1\n- url: http://b:1\n  leg: prefill\n  bootstrap_port: 8998\n  labels: {dp_size: '2'}\n\
                    \x20 health: {check_interval_secs: 2}\n  overload:\n    token_usage: 0.9\n";
        let of = |text: &str| -> Vec<WorkerSpec> {
            parse(text.as_bytes()).unwrap().into_iter().map(|found| (*found.spec).clone()).collect()
        };
        assert_eq!(of(json), of(yaml));
        assert_eq!((of(json)[1].leg.as_str(), of(json)[1].info().dp_size), ("prefill", 2));
        assert!(of("[]").is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        refuses("", "must be a list of workers");
        refuses("workers:", "must be a list of workers");
        refuses("- http://a:1\n- {url: http", "at line");
        refuses("- http://a:1\n- ftp://b", "worker 2: --worker \"ftp://b\"");
        refuses("- {url: 'http://a:1', colour: red}", "worker 1: unknown field `colour`");
        refuses("- http://a:80\n- http://a/", "worker 2: http://a/ is listed twice");
        refuses("- {url: 'http://a:1', leg: both}", "leg \"both\"");
        refuses("- {url: 'http://a:1', health: {failure_threshold: 0}}", "failure_threshold");
        refuses("- {url: 'http://a:1', address: a}", "address \"a\"");
        refuses("- {url: 'http://a:1', overload: {token_usage: 2}}", "token_usage");
        refuses("- {url: 'http://a:1', load_monitor_interval_secs: 0}", "load_monitor_interval_secs");
    }
}
