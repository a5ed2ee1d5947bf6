//! `make up`: the stack in the foreground, as an operator sees it.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::envoy::{Connection, Output, Process, eventually, workspace_binary};

use crate::launcher::runs;
use crate::upstream::Upstream;

const SOON: Duration = Duration::from_secs(120);

/// A running `up`; it dies with the test, and its children with it.
struct Up {
    process: Process,
    _directory: tempfile::TempDir,
}

impl Up {
    /// Starts it on free ports and waits for "ready".
    async fn start(variables: &[(&str, &str)]) -> Self {
        let mut up = Self::spawn(variables);
        up.wait_for("ready").await;
        up
    }

    fn spawn(variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let process = Process::start("up", command(variables), &Output::File(directory.path().join("log"))).unwrap();
        Self { process, _directory: directory }
    }

    /// Waits for a line that starts like this.
    async fn wait_for(&mut self, start: &str) {
        eventually(SOON, start, async || {
            assert!(self.process.exited().is_none(), "ended before it said {start:?}");
            self.process.log().lines().any(|line| line.starts_with(start))
        })
        .await;
    }

    /// How it ends; waits for it.
    async fn end(&mut self) -> Option<i32> {
        eventually(SOON, "it ends", async || self.process.exited().is_some()).await;
        self.process.exited().unwrap().code()
    }

    fn all(&self, name: &str) -> Vec<String> {
        let log = self.process.log();
        log.lines().filter_map(|line| Some(line.strip_prefix(name)?.trim_start().to_owned())).collect()
    }

    fn address(&self, name: &str) -> SocketAddr {
        self.all(name)[0].strip_prefix("http://").unwrap().parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.process.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn children(&self) -> Vec<u32> {
        let list = format!("/proc/{0}/task", self.process.pid());
        let tasks = std::fs::read_dir(list).unwrap();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
    }
}

fn command(variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(workspace_binary("up").unwrap());
    command.args(["--ip", "127.0.0.1"]);
    for variable in ["WORKERS", "POLICY", "CONFIG", "CONCURRENCY", "LOG_LEVEL", "LOAD_MONITOR_INTERVAL"] {
        command.env_remove(variable);
    }
    command.env("PORT", "0").env("ADMIN_PORT", "0").envs(variables.iter().copied());
    command
}

fn chat() -> String {
    json!({ "model": "fake-model", "messages": [{ "role": "user", "content": "Hello there" }] }).to_string()
}

async fn get_json(address: SocketAddr, path: &str) -> Value {
    let reply = Connection::open(address).await.unwrap().get(path).await.unwrap();
    serde_json::from_slice(&reply.body).unwrap()
}

#[tokio::test]
async fn serves_until_it_is_told_to_end() {
    for signal in ["TERM", "INT"] {
        let mut up = Up::start(&[("LOAD_MONITOR_INTERVAL", "0.2"), ("POLICY", ""), ("CONCURRENCY", "3")]).await;
        assert_eq!(up.all("ready"), [""], "alone on its line");
        let (gateway, admin) = (up.address("gateway"), up.address("admin"));
        let workers: Vec<SocketAddr> =
            up.all("worker").iter().map(|url| url.strip_prefix("http://").unwrap().parse().unwrap()).collect();
        assert_eq!(workers.len(), 4, "{}", up.process.log());

        let mut client = Connection::open(gateway).await.unwrap();
        let reply = client.post("/v1/chat/completions", chat()).await.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        let worker = reply.header("x-smg-routed-worker-id").unwrap().to_owned();
        assert!(up.all("worker").contains(&worker), "{worker}");
        assert_eq!(get_json(admin, "/server_info").await["command_line_options"]["concurrency"], 3);
        let mut stats = Connection::open(admin).await.unwrap();
        eventually(SOON, "the filter takes the sidecar's reports", async || {
            let text = stats.get("/stats/prometheus").await.unwrap().text();
            text.lines().any(|line| line.starts_with("smg_load_reports_total{outcome=\"taken\"} "))
        })
        .await;

        let children = up.children();
        assert_eq!(children.len(), 2, "Envoy and sidecar");
        up.signal(signal);
        assert_eq!(up.end().await, Some(0), "SIG{signal}");
        for address in [gateway, admin].iter().chain(&workers) {
            assert!(TcpStream::connect(address).is_err(), "{address} still listens");
        }
        for pid in children {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} still runs");
        }
    }
}

#[tokio::test]
async fn what_it_has_started_dies_with_it_when_it_is_killed() {
    let mut up = Up::start(&[]).await;
    let children = up.children();
    assert!(children.len() == 2 && children.iter().all(|pid| runs(*pid)));
    up.signal("KILL");
    assert_eq!(up.end().await, None);
    eventually(SOON, "the kernel ends Envoy and the sidecar", async || !children.iter().any(|pid| runs(*pid))).await;
}

#[tokio::test]
async fn stands_in_front_of_engines_that_run_already() {
    let workers = [Upstream::named("a").await, Upstream::named("b").await];
    // By name and by address.
    let urls =
        format!("http://localhost:{} , http://127.0.0.1:{}", workers[0].address.port(), workers[1].address.port());
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), json!({ "policy": "random", "max_attempts": 2 }).to_string()).unwrap();
    let config = config.path().to_str().unwrap();
    let up = Up::start(&[("WORKERS", &urls), ("CONFIG", config), ("POLICY", "round_robin")]).await;
    let named: Vec<_> = urls.split(" , ").collect();
    assert_eq!(up.all("worker"), named);
    assert_eq!(up.all("policy"), ["round_robin"]);
    let mut client = Connection::open(up.address("gateway")).await.unwrap();
    let mut seen = [0, 0];
    for _ in 0..6 {
        let reply = client.post("/v1/chat/completions", chat()).await.unwrap();
        let which = named.iter().position(|url| Some(&**url) == reply.header("x-smg-routed-worker-id")).unwrap();
        assert_eq!(reply.text(), ["a", "b"][which]);
        seen[which] += 1;
    }
    assert_eq!(seen, [3, 3]);
}

#[tokio::test]
async fn is_not_ready_before_an_engine_answers() {
    // A port that nobody has: taken here and never listened on.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let url = format!("http://{address}");
    let mut up = Up::spawn(&[("WORKERS", &url)]);
    up.wait_for("worker").await;
    let gateway = up.address("gateway");
    let reply = Connection::open(gateway).await.unwrap().get("/health").await.unwrap();
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(up.process.exited().is_none());
    assert!(up.all("ready").is_empty());

    drop(socket);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let router = axum::Router::new().fallback(axum::routing::any(|| async { "here" }));
    let engine = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    up.wait_for("ready").await;
    engine.abort();
    up.signal("TERM");
    assert_eq!(up.end().await, Some(0));
}

#[test]
fn refusals_name_the_variable_the_value_and_the_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), r#"{ "polcy": "random" }"#).unwrap();
    let config = config.path().to_str().unwrap();
    for (variable, value, part) in [
        (
            "WORKERS",
            "127.0.0.1:8001",
            "WORKERS: `127.0.0.1:8001`: a URL starts with http://; write it as http://host:port",
        ),
        ("WORKERS", "http://nowhere.invalid:1", "nowhere.invalid does not resolve"),
        ("POLICY", "fastest", "POLICY=fastest: `policy` is \"fastest\"; allowed: cache_aware, least_load"),
        ("PORT", "80000", "80000 is not in 0..=65535"),
        ("PORT", &*port, "stop what listens there or choose another PORT"),
        ("ADMIN_PORT", &*port, "stop what listens there or choose another ADMIN_PORT"),
        ("CONCURRENCY", "0", "0 is not in 1..=1024"),
        ("CONFIG", "/does/not/exist.json", "CONFIG=/does/not/exist.json: give a readable file"),
        ("CONFIG", config, "`polcy` is \"random\", but there is no such key; did you mean `policy`?"),
        ("LOG_LEVEL", "loud", "[possible values: trace, debug, info, warn, error]"),
        ("LOAD_MONITOR_INTERVAL", "0", "0.001 to 86400"),
        ("ENVOY_BIN", "/does/not/exist", "ENVOY_BIN=/does/not/exist: "),
    ] {
        let output = command(&[(variable, value)]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{variable}={value}");
        assert!(text.contains(part), "{variable}={value}: {text}\nlacks\n{part}");
        assert!(output.stdout.is_empty());
    }
}
