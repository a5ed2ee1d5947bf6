//! The known key that a mistyped one was meant to be.

/// The name that takes the fewest edits to get from `key`, if these are few enough to be a slip.
pub(super) fn nearest<'n>(key: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let key: String = key.trim_start_matches('-').to_ascii_lowercase().replace('-', "_");
    if key.len() > 64 {
        return None;
    }
    let (edits, name) = names.map(|name| (edits(&key, name), name)).min_by_key(|&(edits, _)| edits)?;
    (edits <= (key.len() / 3).max(1)).then_some(name)
}

/// Insertions, deletions and replacements between two names.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut above_left = i;
        let mut left = i + 1;
        for (cell, b) in row.iter_mut().skip(1).zip(to.bytes()) {
            let here = (above_left + usize::from(a != b)).min(*cell + 1).min(left + 1);
            above_left = *cell;
            *cell = here;
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        for (from, to, expected) in [("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("same", "same", 0)] {
            assert_eq!(edits(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn suggests_only_what_can_be_meant() {
        let names = ["policy", "block_size"];
        assert_eq!(nearest("polcy", names.into_iter()), Some("policy"));
        assert_eq!(nearest("--block-size", names.into_iter()), Some("block_size"));
        assert_eq!(nearest("timeout", names.into_iter()), None);
        assert_eq!(nearest(&"policy".repeat(1000), names.into_iter()), None);
    }
}
