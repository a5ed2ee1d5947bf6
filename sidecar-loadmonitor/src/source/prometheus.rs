//! Prometheus text, as far as gauges need it.

/// One line that carries a number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    /// In the order of the line; values with their escapes.
    pub(super) labels: Vec<Label<'a>>,
    pub(super) value: f64,
}

pub(super) type Label<'a> = (&'a str, &'a str);

impl<'a> Sample<'a> {
    /// The value of a label.
    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| *value)
    }
}

/// The samples with names that are `wanted`. Comments, lines that cannot be read, and values that are not finite or
/// negative are left out: they say nothing. A timestamp or an exemplar after the value is ignored.
pub(super) fn samples<'a>(text: &'a str, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = Sample<'a>> {
    text.lines().map(str::trim_start).filter_map(move |line| {
        let name = line.split(['{', ' ', '\t']).next().filter(|name| wanted(name))?;
        let (labels, value) = after_name(line.get(name.len()..)?)?;
        (value.is_finite() && value >= 0.0).then_some(Sample { name, labels, value })
    })
}

fn after_name(text: &str) -> Option<(Vec<Label<'_>>, f64)> {
    let mut labels = Vec::new();
    let mut rest = text.trim_start();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list.trim_start();
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once('=')?;
            let quoted = after.trim_start().strip_prefix('"')?;
            let (value, after) = quoted.split_at_checked(closing_quote(quoted)?)?;
            labels.push((label.trim(), value));
            rest = after.strip_prefix('"')?.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
    }
    Some((labels, rest.split_ascii_whitespace().next()?.parse().ok()?))
}

/// Where the first quote stands that no backslash protects.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_braces_timestamps_exemplars_and_spaces_are_understood() {
        let text = concat!(
            "# TYPE a gauge\n",
            "a{model_name=\"a\\\"}b, c=\\\\\"} 3 1790586843000\r\n",
            "  a { engine = \"0\" , } 4 # {trace_id=\"x\"} 9 1.0\n",
            "other 1\na{broken=\"0} 5\na{b} 6\na\na NaN\na -1\na +Inf\n",
            "a 2.5e-1"
        );
        let found: Vec<_> = samples(text, |name| name == "a").collect();
        let sample = |labels: &[Label<'static>], value| Sample { name: "a", labels: labels.to_vec(), value };
        let expected =
            [sample(&[("model_name", "a\\\"}b, c=\\\\")], 3.0), sample(&[("engine", "0")], 4.0), sample(&[], 0.25)];
        assert_eq!(found, expected);
    }
}
