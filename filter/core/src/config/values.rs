//! Values of the configuration by kind. `None` is a value of another kind or out of range.

use serde_json::Value;

/// A whole number, 0 or more. `64.0` is one: a configuration that went through a protobuf `Struct` knows no integers.
pub(super) fn whole(value: &Value) -> Option<u64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
    })
}

/// A whole number that fits 32 bits and is at least `least`.
pub(super) fn count(value: &Value, least: u32) -> Option<u32> {
    u32::try_from(whole(value)?).ok().filter(|&count| count >= least)
}

/// A number for which `valid` holds.
pub(super) fn number(value: &Value, valid: impl Fn(f64) -> bool) -> Option<f64> {
    value.as_f64().filter(|&number| number.is_finite() && valid(number))
}

/// One of a few names.
pub(super) fn name(value: &Value, names: &[&str]) -> Option<()> {
    names.contains(&value.as_str()?).then_some(())
}

/// An array of strings that are not empty.
pub(super) fn strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(text).collect()
}

/// A string that is not empty.
pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A header's name, in lower case.
pub(super) fn header(value: &Value) -> Option<String> {
    let name = value.as_str()?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (!name.is_empty() && name.len() <= 256 && name.bytes().all(token)).then(|| name.to_ascii_lowercase())
}

/// Whole numbers above 0, each above the one before.
pub(super) fn ascending(value: &Value) -> Option<Vec<u32>> {
    let numbers: Vec<u32> = value.as_array()?.iter().map(|number| count(number, 1)).collect::<Option<_>>()?;
    numbers.is_sorted_by(|a, b| a < b).then_some(numbers)
}

/// HTTP statuses.
pub(super) fn statuses(value: &Value) -> Option<Vec<u16>> {
    let status = |value: &Value| u16::try_from(whole(value)?).ok().filter(|status| (100..600).contains(status));
    value.as_array()?.iter().map(status).collect()
}
