//! The whole stack: engines, Envoy with the filter, the sidecar. What `make up` and the demo run.

mod workers;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use filter_core::config::Config;
use serde_json::{Value, json};

use super::config::{Layout, merge};
use super::instance::Envoy;
use super::options::EnvoyOptions;
use super::process::{Output, Process, envoy_yaml, workspace_binary};
use crate::fake_engine::{EngineOptions, FakeEngine};

/// How to start a stack. The default is four fake engines behind an Envoy on free ports.
#[derive(Debug, Clone)]
pub struct StackOptions {
    /// URLs of engines that run already. Without them the `workers` of `envoy.plugin` are used, and without those
    /// `engines` are started.
    pub workers: Vec<String>,
    /// Fake engines to start when no workers are given.
    pub engines: Vec<EngineOptions>,
    /// Envoy; its `workers` are filled in here. If it has no `edit` of its own, the route follows the plugin
    /// configuration in its number of attempts and its buffer.
    pub envoy: EnvoyOptions,
    /// Seconds between two reports of the sidecar; 0 starts no sidecar.
    pub load_monitor_interval: f64,
    /// The sidecar's log level.
    pub log_level: String,
    /// Output of Envoy and sidecar to the terminal instead of to files.
    pub inherit_output: bool,
}

impl Default for StackOptions {
    fn default() -> Self {
        Self {
            workers: Vec::new(),
            engines: vec![EngineOptions::default(); 4],
            envoy: EnvoyOptions::default(),
            load_monitor_interval: 10.0,
            log_level: "info".to_owned(),
            inherit_output: false,
        }
    }
}

/// A running stack; ended on drop, the sidecar first and the engines last.
#[derive(Debug)]
pub struct Stack {
    sidecar: Option<Process>,
    envoy: Envoy,
    engines: Vec<FakeEngine>,
    // After the processes, so that their logs outlive them.
    _directory: tempfile::TempDir,
}

impl Stack {
    /// Starts engines, Envoy and sidecar. Returns when Envoy takes connections, whether or not an engine answers.
    ///
    /// # Errors
    /// When a worker's URL is wrong or does not resolve, the plugin configuration is refused, or a process does not
    /// start; says which and why.
    pub async fn start(mut options: StackOptions) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("stack-").tempdir()?;
        let output = |name: &str| match options.inherit_output {
            true => Output::Inherit,
            false => Output::File(directory.path().join(name)),
        };
        let mut envoy = options.envoy;
        let listed = workers::take(&mut envoy.plugin)?;
        let mut engines = Vec::new();
        envoy.workers = match (options.workers.is_empty(), listed) {
            (false, Some(_)) => {
                bail!("WORKERS is given, and the plugin configuration has workers too: keep one of them")
            }
            (false, None) => workers::from_urls(&options.workers).await?,
            (true, Some(listed)) => workers::resolved(listed).await?,
            (true, None) => {
                for (number, engine) in options.engines.drain(..).enumerate() {
                    let name = engine.name.clone().unwrap_or_else(|| format!("engine-{}", number + 1));
                    engines.push(FakeEngine::try_start(engine.named(name)).context("cannot start a fake engine")?);
                }
                let urls: Vec<_> = engines.iter().map(FakeEngine::url).collect();
                workers::from_urls(&urls).await?
            }
        };
        envoy.edit = envoy.edit.or(Some(route_follows_plugin));
        check_plugin(&envoy)?;
        let urls: Vec<_> = envoy.workers.iter().map(|worker| worker.url.clone()).collect();
        let envoy = Envoy::start_with_output(envoy, Some(output("envoy.log"))).await?;
        let sidecar = match options.load_monitor_interval > 0.0 {
            true => {
                let mut command = Command::new(workspace_binary("sidecar-loadmonitor")?);
                command.args(["--log-level", &options.log_level]);
                command.args(urls.iter().flat_map(|url| ["--worker", url]));
                command.args(["--load-monitor-interval", &options.load_monitor_interval.to_string()]);
                command.args(["--push-url", &envoy.reports_url()]);
                Some(Process::start("sidecar-loadmonitor", command, &output("sidecar.log"))?)
            }
            false => None,
        };
        Ok(Self { sidecar, envoy, engines, _directory: directory })
    }

    /// `http://ip:port` of Envoy, where clients send their requests.
    pub fn base_url(&self) -> String {
        self.envoy.url()
    }

    /// `http://ip:port` of Envoy's admin endpoint.
    pub fn admin_url(&self) -> String {
        self.envoy.admin().url()
    }

    /// The URLs of the workers, in the filter's order.
    pub fn workers(&self) -> Vec<&str> {
        let workers = self.envoy.plugin()["workers"].as_array();
        workers.into_iter().flatten().filter_map(|worker| worker["url"].as_str()).collect()
    }

    /// The Envoy.
    pub fn envoy(&self) -> &Envoy {
        &self.envoy
    }

    /// The Envoy, to update it.
    pub fn envoy_mut(&mut self) -> &mut Envoy {
        &mut self.envoy
    }

    /// The fake engines that were started.
    pub fn engines(&self) -> &[FakeEngine] {
        &self.engines
    }

    /// The process id of the sidecar, if there is one.
    pub fn sidecar_pid(&self) -> Option<u32> {
        self.sidecar.as_ref().map(Process::pid)
    }

    /// Waits until a request went through Envoy to an engine; hands `waiting` the last answer every 10 s until then.
    ///
    /// # Errors
    /// When a process of the stack has ended.
    pub async fn served(&mut self, mut waiting: impl FnMut(&str)) -> Result<()> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
        let url = self.base_url() + "/health";
        let mut said = Instant::now();
        loop {
            self.check()?;
            let last = match client.get(&url).send().await {
                // An engine without such a route has answered as well; a failure of Envoy or the engine is above 499.
                Ok(answer) if answer.status().as_u16() < 500 => return Ok(()),
                Ok(answer) => format!("{} {}", answer.status(), answer.text().await.unwrap_or_default()),
                Err(error) => format!("{:#}", anyhow::Error::from(error)),
            };
            if said.elapsed() > Duration::from_secs(10) {
                said = Instant::now();
                waiting(last.trim());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether the processes of the stack run.
    ///
    /// # Errors
    /// Names the one that has ended.
    pub fn check(&mut self) -> Result<()> {
        if !self.envoy.is_running() {
            bail!("Envoy has ended\n{}", self.envoy.log());
        }
        if let Some(sidecar) = &mut self.sidecar
            && let Some(status) = sidecar.exited()
        {
            bail!("the sidecar has ended, {status}\n{}", sidecar.log());
        }
        Ok(())
    }

    /// Ends the sidecar (asked), then Envoy (asked), then the engines.
    pub fn stop(self) {
        if let Some(mut sidecar) = self.sidecar {
            sidecar.stop(Duration::from_secs(5));
        }
        self.envoy.stop();
    }
}

/// Refuses what the filter would refuse, with its own message, before anything is started.
fn check_plugin(options: &EnvoyOptions) -> Result<()> {
    let yaml = fs::read_to_string(envoy_yaml()).context("envoy/envoy.yaml")?;
    let layout = Layout::new(&yaml, options, None)?;
    Config::parse(layout.plugin().to_string().as_bytes()).context("plugin configuration")?;
    Ok(())
}

/// Fits the route to a plugin configuration that differs from the file's: as many attempts as the filter names
/// destinations for, and room for the body that the filter holds.
fn route_follows_plugin(both: &mut Value) {
    const MANAGER: &str = "/filter_chains/0/filters/0/typed_config";
    let Some(listener) = both["listeners"].as_array_mut().into_iter().flatten().find(|all| all["name"] == "routing")
    else {
        return;
    };
    let piece = listener["per_connection_buffer_limit_bytes"].as_u64().unwrap_or(1 << 20);
    let Some(manager) = listener.pointer_mut(MANAGER) else { return };
    let filter = manager["http_filters"].as_array().into_iter().flatten().find(|filter| filter["name"] == "smg");
    let text = filter.and_then(|filter| filter.pointer("/typed_config/config/configuration/value")?.as_str());
    let Some(config) = text.and_then(|text| Config::parse(text.as_bytes()).ok()) else { return };
    let routes = manager.pointer_mut("/route_config/virtual_hosts/0/routes").and_then(Value::as_array_mut);
    // The launcher puts its callers' routes in front.
    let Some(route) = routes.and_then(|routes| routes.last_mut()) else { return };
    let held = config.max_buffered_request_bytes.saturating_add(2 * piece);
    let limit = route["request_body_buffer_limit"].as_u64().unwrap_or(0);
    merge(
        route,
        &json!({
            "request_body_buffer_limit": limit.max(held),
            "route": { "retry_policy": { "num_retries": config.max_attempts.saturating_sub(1) } },
        }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_and_buffer_of_the_route_follow_the_plugin_configuration() {
        let yaml = fs::read_to_string(envoy_yaml()).unwrap();
        let route = |plugin| {
            let options = EnvoyOptions { plugin, edit: Some(route_follows_plugin), ..EnvoyOptions::default() };
            let layout = Layout::new(&yaml, &options, Some(std::path::Path::new("/x.wasm"))).unwrap();
            let all = layout.listener_resources();
            let routing = all["resources"].as_array().unwrap().iter().find(|all| all["name"] == "routing").unwrap();
            let routes = "/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes/0";
            let route = routing.pointer(routes).unwrap();
            (
                route["route"]["retry_policy"]["num_retries"].as_u64().unwrap(),
                route["request_body_buffer_limit"].as_u64().unwrap(),
            )
        };
        let (attempts, file) = route(json!({}));
        assert_eq!(route(json!({ "max_attempts": attempts + 2 })), (attempts + 1, file));
        assert_eq!(route(json!({ "max_attempts": 1 })), (0, file));
        assert_eq!(route(json!({ "retry_max_retries": 2, "max_attempts": null })), (1, file));
        let held = file + 1;
        assert!(route(json!({ "max_buffered_request_bytes": held })).1 > held + (1 << 20));
    }
}
