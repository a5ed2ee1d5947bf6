//! A worker's load, and its five numbers on the wire.

use serde::{Deserialize, Serialize, Serializer};

/// A worker's load, its data-parallel ranks already added up (`policies` rules: queue, waiting and throughput are
/// sums over the ranks, KV usage is their mean). On the wire an array of the fields in this order; more numbers may
/// follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(try_from = "Vec<f64>")]
pub struct Load {
    /// Tokens of waiting requests that no cache holds.
    pub queued_tokens: f64,
    /// Requests that wait.
    pub waiting: f64,
    /// Requests that run.
    pub running: f64,
    /// Share of the KV memory in use, 0 to 1.
    pub kv_usage: f64,
    /// Generated tokens per second, 0 when the engine does not say.
    pub throughput: f64,
}

/// Tokens per second that no engine generates. A worker that was believed more would empty any queue in no time, and be
/// sent everything.
const NO_THROUGHPUT: f64 = 1e8;

/// Digits after the decimal point that are sent.
const SCALE: f64 = 1e4;

impl Load {
    /// The load with every number that cannot be true made harmless: not finite or negative becomes 0,
    /// KV usage is at most 1, counts fit 32 bits, and a throughput beyond belief is none that is told.
    #[must_use]
    pub fn sanitized(self) -> Self {
        // The sum of nothing is -0, which would be shown: + 0 makes it 0.
        let clean = |value: f64, most: f64| if value.is_finite() { value.clamp(0.0, most) + 0.0 } else { 0.0 };
        let most = f64::from(u32::MAX);
        Self {
            queued_tokens: clean(self.queued_tokens, most),
            waiting: clean(self.waiting, most),
            running: clean(self.running, most),
            kv_usage: clean(self.kv_usage, 1.0),
            throughput: if self.throughput < NO_THROUGHPUT { clean(self.throughput, NO_THROUGHPUT) } else { 0.0 },
        }
    }

    /// The load as its reader will see it: sanitized, and with the digits that are sent.
    #[must_use]
    pub fn as_sent(self) -> Self {
        let round = |value: f64| (value * SCALE).round() / SCALE;
        let clean = self.sanitized();
        Self {
            queued_tokens: round(clean.queued_tokens),
            waiting: round(clean.waiting),
            running: round(clean.running),
            kv_usage: round(clean.kv_usage),
            throughput: round(clean.throughput),
        }
    }
}

impl Serialize for Load {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let load = self.as_sent();
        let numbers = [load.queued_tokens, load.waiting, load.running, load.kv_usage, load.throughput];
        serializer.collect_seq(numbers.map(Number))
    }
}

/// A number that is written without its decimal point where it is whole: most are.
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A sanitized number is neither negative nor above 10^12.
        if self.0.fract() == 0.0 { serializer.serialize_u64(self.0 as u64) } else { serializer.serialize_f64(self.0) }
    }
}

impl TryFrom<Vec<f64>> for Load {
    type Error = &'static str;

    fn try_from(numbers: Vec<f64>) -> Result<Self, Self::Error> {
        match *numbers.as_slice() {
            [queued_tokens, waiting, running, kv_usage, throughput, ..] => {
                Ok(Self { queued_tokens, waiting, running, kv_usage, throughput })
            }
            _ => Err("a load is an array of at least five numbers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_true_are_made_harmless() {
        let load =
            Load { queued_tokens: -5.0, waiting: f64::NAN, running: 1e300, kv_usage: 5.0, throughput: f64::INFINITY };
        let expected =
            Load { queued_tokens: 0.0, waiting: 0.0, running: f64::from(u32::MAX), kv_usage: 1.0, throughput: 0.0 };
        assert_eq!(load.sanitized(), expected);
        assert!(Load { waiting: -0.0, ..Load::default() }.sanitized().waiting.is_sign_positive());
    }

    #[test]
    fn a_load_is_five_short_numbers_and_later_ones_may_follow() {
        for (throughput, believed) in [(99_999_999.0, 99_999_999.0), (1e8, 0.0), (1e300, 0.0), (f64::NAN, 0.0)] {
            assert_eq!(Load { throughput, ..Load::default() }.sanitized().throughput, believed);
        }
        let load = Load { queued_tokens: 9216.0, waiting: 4.0, running: 17.0, kv_usage: 1.0 / 3.0, throughput: 812.45 };
        assert_eq!(serde_json::to_string(&load).unwrap(), "[9216,4,17,0.3333,812.45]");
        assert_eq!(serde_json::from_str::<Load>("[1,2,3,0.5,4,99]").unwrap().throughput, 4.0);
        for text in ["[1,2,3,4]", "[]", "{}", "[1,2,3,null,5]", "7"] {
            assert!(serde_json::from_str::<Load>(text).is_err(), "{text}");
        }
    }
}
