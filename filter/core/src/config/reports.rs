//! How load reports come, and who may send them.

use serde_json::{Map, Value};

use super::ConfigError;
use super::values::{count, text};
use crate::token::{self, Token};

/// How load reports come, and who may send them. Without a cluster they are pushed to an ingest listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reports {
    /// The Envoy cluster that snapshots are fetched from.
    pub cluster: Option<String>,
    /// The path they are fetched from, without a query.
    pub path: String,
    /// The `:authority` of the request; the cluster's name if not given.
    pub authority: Option<String>,
    /// The secret that both sides know: presented when snapshots are fetched, demanded when they are pushed.
    pub token: Option<Token>,
    /// How long a request may last, in milliseconds; more than `wait_ms`.
    pub timeout_ms: u32,
    /// How long the sidecar may wait for news before it answers that there are none, in milliseconds.
    pub wait_ms: u32,
}

/// The environment variable of the VM that may hold the token.
pub const TOKEN_VARIABLE: &str = "SMG_REPORTS_TOKEN";

const KEYS: [&str; 6] = ["cluster", "path", "authority", "token", "timeout_ms", "wait_ms"];

impl Default for Reports {
    fn default() -> Self {
        Self {
            cluster: None,
            path: "/v1/snapshot".to_owned(),
            authority: None,
            token: None,
            timeout_ms: 5000,
            wait_ms: 1000,
        }
    }
}

impl Reports {
    /// Takes the token of the environment variable [`TOKEN_VARIABLE`], if the configuration has none.
    ///
    /// # Errors
    /// When the variable is set and is no token: what was meant to be closed must not stand open.
    pub fn take_variable(&mut self, variable: Option<&str>) -> Result<(), ConfigError> {
        let Some(variable) = variable.filter(|_| self.token.is_none()) else { return Ok(()) };
        let token = Token::new(variable);
        self.token = Some(token.ok_or_else(|| ConfigError::value(TOKEN_VARIABLE, &hidden(), token::ALLOWED))?);
        Ok(())
    }
}

/// The object `value` of `key`. No message shows a token.
pub(super) fn read(key: &str, value: &Value) -> Result<Reports, ConfigError> {
    let mut reports = Reports::default();
    let Value::Object(members) = value else {
        return Err(ConfigError::value(key, value, "an object with cluster, token or both"));
    };
    if let Some(unknown) = members.keys().find(|member| !KEYS.contains(&member.as_str())) {
        return Err(ConfigError::unknown(&format!("{key}.{unknown}"), &hidden(), unknown, &KEYS));
    }
    let given = |member: &str| members.get(member).map(|value| (format!("{key}.{member}"), value));
    if let Some((path, value)) = given("cluster") {
        let cluster = text(value).ok_or_else(|| ConfigError::value(&path, value, "a cluster's name"))?;
        reports.cluster = Some(cluster);
    }
    if let Some((path, value)) = given("authority") {
        let authority = text(value).filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
        reports.authority = Some(authority.ok_or_else(|| ConfigError::value(&path, value, "a host, or host:port"))?);
    }
    if let Some((path, value)) = given("path") {
        let valid = |text: &String| {
            text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#')
        };
        reports.path =
            text(value).filter(valid).ok_or_else(|| ConfigError::value(&path, value, "a path without a query"))?;
    }
    if let Some((path, value)) = given("token") {
        let token = value.as_str().and_then(Token::new);
        reports.token = Some(token.ok_or_else(|| ConfigError::value(&path, &hidden(), token::ALLOWED))?);
    }
    read_times(members, &mut reports, &given)?;
    Ok(reports)
}

fn read_times<'a>(
    members: &Map<String, Value>,
    reports: &mut Reports,
    given: &impl Fn(&str) -> Option<(String, &'a Value)>,
) -> Result<(), ConfigError> {
    let most = |value: &Value, least: u32, most: u32| count(value, least).filter(|&millis| millis <= most);
    if let Some((path, value)) = given("timeout_ms") {
        let allowed = "a whole number from 100 to 60000";
        reports.timeout_ms = most(value, 100, 60_000).ok_or_else(|| ConfigError::value(&path, value, allowed))?;
    }
    if let Some((path, value)) = given("wait_ms") {
        let allowed = "a whole number from 0 to 30000";
        reports.wait_ms = most(value, 0, 30_000).ok_or_else(|| ConfigError::value(&path, value, allowed))?;
    }
    if reports.wait_ms >= reports.timeout_ms {
        let (given, allowed) = match members.contains_key("wait_ms") {
            true => ("wait_ms", format!("less than timeout_ms, {}", reports.timeout_ms)),
            false => ("timeout_ms", format!("more than wait_ms, {}", reports.wait_ms)),
        };
        let value = if given == "wait_ms" { reports.wait_ms } else { reports.timeout_ms };
        return Err(ConfigError::value(&format!("reports.{given}"), &value.into(), &allowed));
    }
    Ok(())
}

/// Stands where a value might be a secret.
fn hidden() -> Value {
    Value::from("…")
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(reports: &str) -> Result<Reports, String> {
        let text = format!(r#"{{"reports":{reports}}}"#);
        Config::parse(text.as_bytes()).map(|config| config.reports).map_err(|error| error.to_string())
    }

    #[test]
    fn all_of_it_is_read() {
        let text = r#"{"cluster":"sidecar","path":"/x","authority":"a:1","token":"t","timeout_ms":900,"wait_ms":0}"#;
        let expected = Reports {
            cluster: Some("sidecar".into()),
            path: "/x".into(),
            authority: Some("a:1".into()),
            token: Token::new("t"),
            timeout_ms: 900,
            wait_ms: 0,
        };
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("{}"), Ok(Reports::default()));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_shown() {
        for (reports, expected) in [
            ("7", "`reports` is 7; allowed: an object with cluster, token or both"),
            (r#"{"cluster":""}"#, "`reports.cluster` is \"\"; allowed: a cluster's name"),
            (r#"{"path":"x"}"#, "`reports.path` is \"x\"; allowed: a path without a query"),
            (r#"{"path":"/x?y"}"#, "`reports.path` is \"/x?y\"; allowed: a path without a query"),
            (r#"{"authority":"a b"}"#, "`reports.authority` is \"a b\"; allowed: a host, or host:port"),
            (
                r#"{"token":"my secret"}"#,
                "`reports.token` is \"…\"; allowed: a token of 1 to 1024 visible ASCII characters",
            ),
            (r#"{"timeout_ms":99}"#, "`reports.timeout_ms` is 99; allowed: a whole number from 100 to 60000"),
            (r#"{"timeout_ms":900}"#, "`reports.timeout_ms` is 900; allowed: more than wait_ms, 1000"),
            (r#"{"wait_ms":5000}"#, "`reports.wait_ms` is 5000; allowed: less than timeout_ms, 5000"),
        ] {
            assert_eq!(parse(reports).unwrap_err(), expected);
        }
        let unknown = parse(r#"{"tokn":"secret"}"#).unwrap_err();
        assert!(unknown.contains("did you mean `token`?") && !unknown.contains("secret"), "{unknown}");
    }

    #[test]
    fn the_variable_stands_in_for_a_token() {
        let with = |mut reports: Reports, variable| reports.take_variable(variable).map(|()| reports.token);
        let own = Reports { token: Token::new("own"), ..Reports::default() };
        assert_eq!(with(own.clone(), Some("other")), Ok(Token::new("own")));
        assert_eq!(with(own, Some("")), Ok(Token::new("own")));
        assert_eq!(with(Reports::default(), Some("other\n")), Ok(Token::new("other")));
        assert_eq!(with(Reports::default(), None), Ok(None));
        let refused = with(Reports::default(), Some(" ")).unwrap_err().to_string();
        assert!(refused.starts_with("`SMG_REPORTS_TOKEN` is \"…\"; allowed: a token of"), "{refused}");
    }

    #[test]
    fn an_ingest_listener_fetches_nothing() {
        let config = Config::parse(br#"{"role":"ingest","reports":{"cluster":"sidecar"}}"#).unwrap();
        assert_eq!(config.without_effect, ["reports.cluster (an ingest listener fetches nothing)"]);
    }
}
