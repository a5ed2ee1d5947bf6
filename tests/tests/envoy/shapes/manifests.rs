//! The manifests of `envoy/kubernetes`, and what the control planes do with those of their resources that patch Envoy's
//! configuration.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use serde_json_path::JsonPath;

use super::xds::Xds;

/// The resources of one file.
pub struct Manifests(Vec<Value>);

impl Manifests {
    /// Reads a file of `envoy/kubernetes`.
    pub fn read(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy/kubernetes").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let documents = serde_norway::Deserializer::from_str(&text);
        Self(documents.map(|document| Value::deserialize(document).unwrap()).collect())
    }

    /// The specification of the only resource of this kind and name.
    pub fn spec(&self, kind: &str, name: &str) -> &Value {
        let mut found = self.0.iter().filter(|one| one["kind"] == kind && one["metadata"]["name"] == name);
        let one = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
        assert!(found.next().is_none(), "two {kind} {name}");
        &one["spec"]
    }

    /// Applies an EnvoyPatchPolicy as Envoy Gateway does.
    pub fn patch(&self, name: &str, xds: &mut Xds) {
        for patch in list(&self.spec("EnvoyPatchPolicy", name)["jsonPatches"]) {
            let kind = patch["type"].as_str().unwrap();
            let resources = match kind.rsplit('.').next() {
                Some("Listener") => &mut xds.listeners,
                Some("RouteConfiguration") => &mut xds.routes,
                Some("Cluster") => &mut xds.clusters,
                _ => panic!("{kind}"),
            };
            let operation = &patch["operation"];
            let path = operation["path"].as_str().unwrap_or_default();
            if operation["op"] == "add" && path.is_empty() {
                assert_eq!(patch["name"], operation["value"]["name"]);
                resources.push(operation["value"].clone());
                continue;
            }
            let resource = resources.iter_mut().find(|one| one["name"] == patch["name"]);
            let resource = resource.unwrap_or_else(|| panic!("nothing has the name {}", patch["name"]));
            let mut places = vec![String::new()];
            if let Some(query) = operation["jsonPath"].as_str() {
                let found = JsonPath::parse(query).unwrap().query_located(resource);
                places = found.locations().map(|location| location.to_json_pointer()).collect();
                assert!(!places.is_empty(), "{query} finds nothing");
            }
            for place in places {
                let pointer = format!("{place}/{}", path.trim_start_matches('/'));
                apply(resource, &pointer, operation);
            }
        }
    }

    /// Applies an EnvoyFilter as Istio does.
    pub fn filter(&self, name: &str, xds: &mut Xds) {
        for patch in list(&self.spec("EnvoyFilter", name)["configPatches"]) {
            let (matched, value) = (&patch["match"], &patch["patch"]["value"]);
            let listener = format!("0.0.0.0_{}", matched["listener"]["portNumber"]);
            let cluster = &matched["cluster"];
            let cluster =
                format!("outbound|{}||{}", cluster["portNumber"], cluster["service"].as_str().unwrap_or_default());
            let operation = patch["patch"]["operation"].as_str().unwrap();
            match (patch["applyTo"].as_str().unwrap(), operation) {
                ("EXTENSION_CONFIG", "ADD") => xds.extensions.push(value.clone()),
                ("CLUSTER", "ADD") => xds.clusters.push(value.clone()),
                ("LISTENER", "MERGE") => merge(named(&mut xds.listeners, &listener), value),
                ("CLUSTER", "MERGE") => merge(named(&mut xds.clusters, &cluster), value),
                ("NETWORK_FILTER", "MERGE") => merge(network_filter(named(&mut xds.listeners, &listener)), value),
                ("HTTP_FILTER", "INSERT_BEFORE") => {
                    let manager = network_filter(named(&mut xds.listeners, &listener));
                    let filters = manager["typed_config"]["http_filters"].as_array_mut().unwrap();
                    let anchor = &matched["listener"]["filterChain"]["filter"]["subFilter"]["name"];
                    let position = filters.iter().position(|filter| filter["name"] == *anchor).unwrap();
                    filters.insert(position, value.clone());
                }
                // Read at start; that the labels are those of `envoy/envoy.yaml` is checked elsewhere.
                ("BOOTSTRAP", "MERGE") => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The members of a list.
pub fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// The resource of the name.
pub fn named<'a>(resources: &'a mut [Value], name: &str) -> &'a mut Value {
    resources.iter_mut().find(|one| one["name"] == name).unwrap_or_else(|| panic!("nothing has the name {name}"))
}

fn network_filter(listener: &mut Value) -> &mut Value {
    &mut listener["filter_chains"][0]["filters"][0]
}

/// RFC 6902, with the members on the way to what is added created, as Envoy Gateway does.
fn apply(resource: &mut Value, pointer: &str, operation: &Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let mut target = resource;
    for step in parent.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")) {
        target = match target {
            Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
            other => &mut other[step.as_str()],
        };
    }
    match operation["op"].as_str().unwrap() {
        "add" => target[key] = operation["value"].clone(),
        "remove" => {
            target.as_object_mut().unwrap().remove(key).unwrap_or_else(|| panic!("there is no {pointer}"));
        }
        other => panic!("{other}"),
    }
}

/// Protocol buffers' way: messages are merged, lists appended, the rest replaced.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(members), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(members.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(items), Value::Array(more)) => items.extend(more.iter().cloned()),
        (target, patch) => *target = patch.clone(),
    }
}
